// SPDX-License-Identifier: Apache-2.0
//
// Element-wise gradients, one expression per input. The forwards are NumPy's own loops, which the core calls; `where`
// has none and is here.
#include "runs.h"
#include "vector_math.h"

namespace mixgrad {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kLn10 = 2.302585092994045684018;
constexpr double kDegree = 0.017453292519943295769;

// What several expressions share; S is a number of a loop, or Array.

/// a / b, and 0 where b is 0, in every order of derivatives.
template <class S>
S ratio(S a, S b) {
  const auto zero = b == 0;
  return where(zero, 0, a / where(zero, 1, b));
}

/// The share of g that belongs to x where the larger of x and y is taken.
template <class S>
S to_larger(S g, S x, S y) {
  return where(x > y, g, where(x == y, g / 2, 0));
}

/// x - y, and 0 where both are the same infinity.
template <class S>
S excess(S x, S y) {
  return where(isinf(x) & (x == y), 0, x - y);
}

/// a / (x*x + y*y), and 0 at the origin and at infinity. The square would overflow before the distance does.
template <class S>
S over_square(S a, S x, S y) {
  const S distance = hypot(x, y);
  const auto outside = (distance == 0) | isinf(distance);
  const S divisor = where(outside, 1, distance);
  return where(outside, 0, a / divisor / divisor);
}

/// 1 of the dtype of x.
template <class S>
S one_of(S) {
  return S(1);
}
Array one_of(const Array& x) { return scalar(x.dtype(), 1.0); }

// Registrars end in an underscore: without it, the next lambda's cos(x) would find the variable.

static const Elementwise add_{"add", [](auto g, auto, auto, auto) { return g; },
                              [](auto g, auto, auto, auto) { return g; }};
static const Elementwise subtract_{"subtract", [](auto g, auto, auto, auto) { return g; },
                                   [](auto g, auto, auto, auto) { return -g; }};
static const Elementwise multiply_{"multiply", [](auto g, auto, auto y, auto) { return g * y; },
                                   [](auto g, auto x, auto, auto) { return g * x; }};
static const Elementwise divide_{"divide", [](auto g, auto, auto y, auto) { return g / y; },
                                 [](auto g, auto, auto y, auto out) { return -g * out / y; }};
static const Elementwise positive_{"positive", [](auto g, auto, auto) { return g; }};
static const Elementwise negative_{"negative", [](auto g, auto, auto) { return -g; }};
static const Elementwise reciprocal_{"reciprocal", [](auto g, auto, auto out) { return -g * out * out; }};

// x**0 is 1 everywhere: at 0 the exponent -1 must not meet it. And 0**y is 0.
static const Elementwise power_{
    "power", [](auto g, auto x, auto y, auto) { return g * (y * power(x, where((x == 0) & (y == 0), 0, y - 1))); },
    [](auto g, auto x, auto, auto out) { return g * (out * log(where(x == 0, one_of(out), x))); }};
static const Elementwise square_{"square", [](auto g, auto x, auto) { return g * (2 * x); }};
static const Elementwise sqrt_{"sqrt", [](auto g, auto, auto out) { return g / (2 * out); }};
static const Elementwise cbrt_{"cbrt", real_only, [](auto g, auto, auto out) { return g / (3 * out * out); }};

static const Elementwise exp_{"exp", [](auto g, auto, auto out) { return g * out; }};
static const Elementwise exp2_{"exp2", [](auto g, auto, auto out) { return g * (out * kLn2); }};
static const Elementwise expm1_{"expm1", [](auto g, auto x, auto) { return g * exp(x); }};
static const Elementwise log_{"log", [](auto g, auto x, auto) { return g / x; }};
static const Elementwise log2_{"log2", [](auto g, auto x, auto) { return g / (x * kLn2); }};
static const Elementwise log10_{"log10", [](auto g, auto x, auto) { return g / (x * kLn10); }};
static const Elementwise log1p_{"log1p", [](auto g, auto x, auto) { return g / (1 + x); }};
static const Elementwise logaddexp_{"logaddexp", real_only,
                                    [](auto g, auto x, auto y, auto) { return g * sigmoid(excess(x, y)); },
                                    [](auto g, auto x, auto y, auto) { return g * sigmoid(excess(y, x)); }};
static const Elementwise logaddexp2_{"logaddexp2", real_only,
                                     [](auto g, auto x, auto y, auto) { return g * sigmoid(kLn2 * excess(x, y)); },
                                     [](auto g, auto x, auto y, auto) { return g * sigmoid(kLn2 * excess(y, x)); }};

static const Elementwise sin_{"sin", [](auto g, auto x, auto) { return g * cos(x); }};
static const Elementwise cos_{"cos", [](auto g, auto x, auto) { return -g * sin(x); }};
static const Elementwise tan_{"tan", [](auto g, auto, auto out) { return g * (1 + out * out); }};
// (1 - x)(1 + x) keeps the digits that 1 - x*x loses near 1.
static const Elementwise arcsin_{"arcsin", [](auto g, auto x, auto) { return g / sqrt((1 - x) * (1 + x)); }};
static const Elementwise arccos_{"arccos", [](auto g, auto x, auto) { return -g / sqrt((1 - x) * (1 + x)); }};
static const Elementwise arctan_{"arctan", [](auto g, auto x, auto) { return g / (1 + x * x); }};
static const Elementwise sinh_{"sinh", [](auto g, auto x, auto) { return g * cosh(x); }};
static const Elementwise cosh_{"cosh", [](auto g, auto x, auto) { return g * sinh(x); }};
static const Elementwise tanh_{"tanh", [](auto g, auto, auto out) { return g * (1 - out * out); }};
static const Elementwise arcsinh_{"arcsinh", [](auto g, auto x, auto) { return g / sqrt(1 + x * x); }};
// Two square roots: the root of the product lies on the other branch in the left half-plane.
static const Elementwise arccosh_{"arccosh", [](auto g, auto x, auto) { return g / (sqrt(x - 1) * sqrt(x + 1)); }};
static const Elementwise arctanh_{"arctanh", [](auto g, auto x, auto) { return g / ((1 - x) * (1 + x)); }};
static const Elementwise arctan2_{"arctan2", real_only,
                                  [](auto g, auto x, auto y, auto) { return g * over_square(y, x, y); },
                                  [](auto g, auto x, auto y, auto) { return -g * over_square(x, x, y); }};
static const Elementwise hypot_{"hypot", real_only, [](auto g, auto x, auto, auto out) { return g * ratio(x, out); },
                                [](auto g, auto, auto y, auto out) { return g * ratio(y, out); }};
static const Elementwise deg2rad_{"deg2rad", real_only, [](auto g, auto, auto) { return g * kDegree; }};
static const Elementwise radians_{"radians", real_only, [](auto g, auto, auto) { return g * kDegree; }};
static const Elementwise rad2deg_{"rad2deg", real_only, [](auto g, auto, auto) { return g / kDegree; }};
static const Elementwise degrees_{"degrees", real_only, [](auto g, auto, auto) { return g / kDegree; }};

static const Elementwise absolute_{"absolute", real_only, [](auto g, auto x, auto) { return g * sign(x); }};
static const Elementwise fabs_{"fabs", real_only, [](auto g, auto x, auto) { return g * sign(x); }};
static const Elementwise conjugate_{"conjugate", [](auto g, auto, auto) { return conj(g); }};

static const Elementwise maximum_{"maximum", [](auto g, auto x, auto y, auto) { return to_larger(g, x, y); },
                                  [](auto g, auto x, auto y, auto) { return to_larger(g, y, x); }};
static const Elementwise minimum_{"minimum", [](auto g, auto x, auto y, auto) { return to_larger(g, y, x); },
                                  [](auto g, auto x, auto y, auto) { return to_larger(g, x, y); }};
static const Elementwise fmax_{
    "fmax", real_only, [](auto g, auto x, auto y, auto) { return where(isnan(y), g, to_larger(g, x, y)); },
    [](auto g, auto x, auto y, auto) { return where(isnan(x) & !isnan(y), g, to_larger(g, y, x)); }};
static const Elementwise fmin_{
    "fmin", real_only, [](auto g, auto x, auto y, auto) { return where(isnan(y), g, to_larger(g, y, x)); },
    [](auto g, auto x, auto y, auto) { return where(isnan(x) & !isnan(y), g, to_larger(g, x, y)); }};
// The smaller of `high` and the larger of a and `low`, so that all shares add up to one.
static const Elementwise clip_{
    "clip", real_only,
    [](auto g, auto a, auto low, auto high, auto) { return to_larger(to_larger(g, high, maximum(a, low)), a, low); },
    [](auto g, auto a, auto low, auto high, auto) { return to_larger(to_larger(g, high, maximum(a, low)), low, a); },
    [](auto g, auto a, auto low, auto high, auto) { return to_larger(g, maximum(a, low), high); }};

}  // namespace

// A real g becomes complex where the input is.
MIXGRAD_REGISTER_GRADIENT(real) { return g; }
MIXGRAD_REGISTER_GRADIENT(imag) { return Complex<double>{0.0, -1.0} * g; }

namespace {

// --- where ----------------------------------------------------------------------------------------------------------

/// One run; `Moves...`: whether the operand advances or is one value for the whole run.
template <class T, bool XMoves, bool YMoves>
void choose(T* out, const bool* c, const T* x, const T* y, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    // Both are read, so that the choice is a blend and not a jump.
    const T a = x[XMoves ? i : 0], b = y[YMoves ? i : 0];
    out[i] = c[i] ? a : b;
  }
}

template <class T>
void choose_run(const std::array<char*, 4>& at, const std::int64_t* strides, std::int64_t n) noexcept {
  constexpr auto item = static_cast<std::int64_t>(sizeof(T));
  T* out = reinterpret_cast<T*>(at[0]);
  const bool* c = reinterpret_cast<const bool*>(at[1]);
  const T *x = reinterpret_cast<const T*>(at[2]), *y = reinterpret_cast<const T*>(at[3]);
  const bool x_moves = strides[2] != 0, y_moves = strides[3] != 0;
  if (strides[0] == item && strides[1] == 1 && (strides[2] == item || !x_moves) && (strides[3] == item || !y_moves)) {
    const auto loop = x_moves ? (y_moves ? &choose<T, true, true> : &choose<T, true, false>)
                              : (y_moves ? &choose<T, false, true> : &choose<T, false, false>);
    loop(out, c, x, y, n);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    *reinterpret_cast<T*>(at[0] + i * strides[0]) = *(at[1] + i * strides[1])
                                                        ? *reinterpret_cast<const T*>(at[2] + i * strides[2])
                                                        : *reinterpret_cast<const T*>(at[3] + i * strides[3]);
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(where) {
  auto [c, x, y] = op.inputs<3>();
  const mixgrad_view views[] = {c.view(), x.view(), y.view()};
  if (c.dtype() != Dtype::boolean || x.dtype() != y.dtype()) return decline;
  Shape shape;
  for (const mixgrad_view& v : views)
    while (shape.size() < static_cast<std::size_t>(v.ndim)) shape.push_back(1);
  for (const mixgrad_view& v : views) {
    const std::size_t lead = shape.size() - static_cast<std::size_t>(v.ndim);
    for (std::size_t i = lead; i < shape.size(); ++i) {
      if (v.shape[i - lead] == shape[i] || v.shape[i - lead] == 1) continue;
      if (shape[i] != 1) return decline;
      shape[i] = v.shape[i - lead];
    }
  }
  Array out = empty(x.dtype(), shape);
  dispatch(x.dtype(), [&]<class T>() {
    Runs<4>(shape, {out.view(), views[0], views[1], views[2]})
        .each([](const std::array<char*, 4>& at, const std::int64_t* strides, std::int64_t n) {
          parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
            std::array<char*, 4> from = at;
            for (std::size_t k = 0; k < 4; ++k) from[k] += begin * strides[k];
            choose_run<T>(from, strides, end - begin);
          });
        });
  });
  return out;
}

MIXGRAD_REGISTER_GRADIENT(where) {
  const bool x = op.needs_gradient(1), y = op.needs_gradient(2);
  const Array c = x || y ? op.input(0) : Array();
  return {{}, x ? where(c, g, 0) : Array(), y ? where(c, 0, g) : Array()};
}

}  // namespace mixgrad
