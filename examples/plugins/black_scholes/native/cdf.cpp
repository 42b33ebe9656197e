// The gradient of the normal distribution function: the density.
#include <mixgrad/mixgrad.hpp>

using namespace mixgrad;

static const Elementwise cdf_{"bs_cdf",
                              [](auto g, auto x, auto) { return g * exp(-0.5 * x * x) * 0.3989422804014327; }};
