// The gradients of d1, the standardised distance to the strike.
#include <mixgrad/mixgrad.hpp>

using namespace mixgrad;

static const Elementwise d1_{"bs_d1", [](auto g, auto, auto t, auto v, auto, auto) { return g / (v * sqrt(t)); },
                             [](auto g, auto, auto t, auto v, auto r, auto out) {
                               return g * ((r + 0.5 * v * v) / (v * sqrt(t)) - 0.5 * out / t);
                             },
                             [](auto g, auto, auto t, auto v, auto, auto out) { return g * (sqrt(t) - out / v); },
                             [](auto g, auto, auto t, auto v, auto, auto) { return g * sqrt(t) / v; }};
