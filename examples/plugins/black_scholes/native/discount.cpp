// The gradients of the discount factor.
#include <mixgrad/mixgrad.hpp>

using namespace mixgrad;

static const Elementwise discount_{"bs_discount", [](auto g, auto, auto r, auto out) { return -g * r * out; },
                                   [](auto g, auto t, auto, auto out) { return -g * t * out; }};
