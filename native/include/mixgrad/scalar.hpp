// SPDX-License-Identifier: Apache-2.0
//
// What the lambdas of an element-wise gradient are called with in a loop: one number, with the operators and functions
// that Array has. Literals convert to the number's own type, so `2.0 * x` is right for float and complex alike.
#ifndef MIXGRAD_SCALAR_HPP
#define MIXGRAD_SCALAR_HPP

#include "mixgrad/array.hpp"

namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {

// The compiler's own functions: the header <cmath> would cost more time than all of this one.
namespace detail::math {

#define MIXGRAD_REAL(name, function)                                         \
  inline float name(float x) noexcept { return __builtin_##function##f(x); } \
  inline double name(double x) noexcept { return __builtin_##function(x); }
#define MIXGRAD_REAL2(name, function)                                                    \
  inline float name(float x, float y) noexcept { return __builtin_##function##f(x, y); } \
  inline double name(double x, double y) noexcept { return __builtin_##function(x, y); }
MIXGRAD_REAL(abs, fabs)
MIXGRAD_REAL(exp, exp)
MIXGRAD_REAL(exp2, exp2)
MIXGRAD_REAL(expm1, expm1)
MIXGRAD_REAL(log, log)
MIXGRAD_REAL(log2, log2)
MIXGRAD_REAL(log10, log10)
MIXGRAD_REAL(log1p, log1p)
MIXGRAD_REAL(sqrt, sqrt)
MIXGRAD_REAL(cbrt, cbrt)
MIXGRAD_REAL(sin, sin)
MIXGRAD_REAL(cos, cos)
MIXGRAD_REAL(tan, tan)
MIXGRAD_REAL(arcsin, asin)
MIXGRAD_REAL(arccos, acos)
MIXGRAD_REAL(arctan, atan)
MIXGRAD_REAL(sinh, sinh)
MIXGRAD_REAL(cosh, cosh)
MIXGRAD_REAL(tanh, tanh)
MIXGRAD_REAL(arcsinh, asinh)
MIXGRAD_REAL(arccosh, acosh)
MIXGRAD_REAL(arctanh, atanh)
MIXGRAD_REAL(floor, floor)
MIXGRAD_REAL(ceil, ceil)
MIXGRAD_REAL(trunc, trunc)
MIXGRAD_REAL(rint, rint)
MIXGRAD_REAL2(power, pow)
MIXGRAD_REAL2(arctan2, atan2)
MIXGRAD_REAL2(hypot, hypot)
#undef MIXGRAD_REAL
#undef MIXGRAD_REAL2

// The C library's own complex type is what its complex functions take.
__extension__ typedef float _Complex CFloat;
__extension__ typedef double _Complex CDouble;
template <class C, class T>
inline C pack(Complex<T> x) noexcept {
  C z;
  __real__ z = x.re;
  __imag__ z = x.im;
  return z;
}
inline Complex<float> unpack(CFloat z) noexcept { return {__real__ z, __imag__ z}; }
inline Complex<double> unpack(CDouble z) noexcept { return {__real__ z, __imag__ z}; }
#define MIXGRAD_COMPLEX(name, function)                                                                              \
  inline Complex<float> name(Complex<float> x) noexcept { return unpack(__builtin_##function##f(pack<CFloat>(x))); } \
  inline Complex<double> name(Complex<double> x) noexcept { return unpack(__builtin_##function(pack<CDouble>(x))); }
MIXGRAD_COMPLEX(exp, cexp)
MIXGRAD_COMPLEX(log, clog)
MIXGRAD_COMPLEX(sqrt, csqrt)
MIXGRAD_COMPLEX(sin, csin)
MIXGRAD_COMPLEX(cos, ccos)
MIXGRAD_COMPLEX(tan, ctan)
MIXGRAD_COMPLEX(arcsin, casin)
MIXGRAD_COMPLEX(arccos, cacos)
MIXGRAD_COMPLEX(arctan, catan)
MIXGRAD_COMPLEX(sinh, csinh)
MIXGRAD_COMPLEX(cosh, ccosh)
MIXGRAD_COMPLEX(tanh, ctanh)
MIXGRAD_COMPLEX(arcsinh, casinh)
MIXGRAD_COMPLEX(arccosh, cacosh)
MIXGRAD_COMPLEX(arctanh, catanh)
#undef MIXGRAD_COMPLEX
inline Complex<float> power(Complex<float> x, Complex<float> y) noexcept {
  return unpack(__builtin_cpowf(pack<CFloat>(x), pack<CFloat>(y)));
}
inline Complex<double> power(Complex<double> x, Complex<double> y) noexcept {
  return unpack(__builtin_cpow(pack<CDouble>(x), pack<CDouble>(y)));
}

}  // namespace detail::math

template <class T>
class Scalar;

/// The outcome of a comparison, element by element: for where(), & and | and !.
template <class T>
struct Truth {
  bool value;
  friend constexpr Truth operator&(Truth a, Truth b) noexcept { return {a.value && b.value}; }
  friend constexpr Truth operator|(Truth a, Truth b) noexcept { return {a.value || b.value}; }
  friend constexpr Truth operator!(Truth a) noexcept { return {!a.value}; }
  friend constexpr Scalar<T> where(Truth c, Scalar<T> x, Scalar<T> y) noexcept { return {c.value ? x.value : y.value}; }
};

/// One real number of a loop over float or double.
template <class T>
class Scalar {
 public:
  using real_type = T;
  T value;

  constexpr Scalar() noexcept = default;
  constexpr Scalar(T v) noexcept : value(v) {}
  template <class N>
    requires(std::is_arithmetic_v<N> && !std::is_same_v<N, T>)
  constexpr Scalar(N number) noexcept : value(static_cast<T>(number)) {}

  friend constexpr Scalar operator+(Scalar x, Scalar y) noexcept { return x.value + y.value; }
  friend constexpr Scalar operator-(Scalar x, Scalar y) noexcept { return x.value - y.value; }
  friend constexpr Scalar operator*(Scalar x, Scalar y) noexcept { return x.value * y.value; }
  friend constexpr Scalar operator/(Scalar x, Scalar y) noexcept { return x.value / y.value; }
  friend constexpr Scalar operator-(Scalar x) noexcept { return -x.value; }
  friend constexpr Scalar operator+(Scalar x) noexcept { return x; }
  constexpr Scalar& operator+=(Scalar y) noexcept { return *this = *this + y; }
  constexpr Scalar& operator-=(Scalar y) noexcept { return *this = *this - y; }
  constexpr Scalar& operator*=(Scalar y) noexcept { return *this = *this * y; }
  constexpr Scalar& operator/=(Scalar y) noexcept { return *this = *this / y; }
  friend constexpr Truth<T> operator<(Scalar x, Scalar y) noexcept { return {x.value < y.value}; }
  friend constexpr Truth<T> operator<=(Scalar x, Scalar y) noexcept { return {x.value <= y.value}; }
  friend constexpr Truth<T> operator>(Scalar x, Scalar y) noexcept { return {x.value > y.value}; }
  friend constexpr Truth<T> operator>=(Scalar x, Scalar y) noexcept { return {x.value >= y.value}; }
  friend constexpr Truth<T> operator==(Scalar x, Scalar y) noexcept { return {x.value == y.value}; }
  friend constexpr Truth<T> operator!=(Scalar x, Scalar y) noexcept { return {x.value != y.value}; }

#define MIXGRAD_UNARY(name) \
  friend Scalar name(Scalar x) noexcept { return detail::math::name(x.value); }
  MIXGRAD_UNARY(abs)
  MIXGRAD_UNARY(exp)
  MIXGRAD_UNARY(exp2)
  MIXGRAD_UNARY(expm1)
  MIXGRAD_UNARY(log)
  MIXGRAD_UNARY(log2)
  MIXGRAD_UNARY(log10)
  MIXGRAD_UNARY(log1p)
  MIXGRAD_UNARY(sqrt)
  MIXGRAD_UNARY(cbrt)
  MIXGRAD_UNARY(sin)
  MIXGRAD_UNARY(cos)
  MIXGRAD_UNARY(tan)
  MIXGRAD_UNARY(arcsin)
  MIXGRAD_UNARY(arccos)
  MIXGRAD_UNARY(arctan)
  MIXGRAD_UNARY(sinh)
  MIXGRAD_UNARY(cosh)
  MIXGRAD_UNARY(tanh)
  MIXGRAD_UNARY(arcsinh)
  MIXGRAD_UNARY(arccosh)
  MIXGRAD_UNARY(arctanh)
  MIXGRAD_UNARY(floor)
  MIXGRAD_UNARY(ceil)
  MIXGRAD_UNARY(trunc)
  MIXGRAD_UNARY(rint)
#undef MIXGRAD_UNARY
  friend Scalar power(Scalar x, Scalar y) noexcept { return detail::math::power(x.value, y.value); }
  friend Scalar arctan2(Scalar x, Scalar y) noexcept { return detail::math::arctan2(x.value, y.value); }
  friend Scalar hypot(Scalar x, Scalar y) noexcept { return detail::math::hypot(x.value, y.value); }
  friend constexpr Truth<T> isnan(Scalar x) noexcept { return {x.value != x.value}; }
  friend constexpr Truth<T> isinf(Scalar x) noexcept { return (!isfinite(x)) & !isnan(x); }
  friend constexpr Truth<T> isfinite(Scalar x) noexcept { return {x.value - x.value == T(0)}; }
  friend constexpr Scalar real(Scalar x) noexcept { return x; }
  friend constexpr Scalar imag(Scalar) noexcept { return T(0); }
  friend constexpr Scalar conj(Scalar x) noexcept { return x; }
  friend constexpr Scalar sign(Scalar x) noexcept {
    return x.value > T(0) ? T(1) : x.value < T(0) ? T(-1) : x.value == T(0) ? T(0) : x.value;
  }
};

/// One number of a loop over complex elements.
template <class T>
class Scalar<Complex<T>> {
 public:
  using real_type = T;
  Complex<T> value;

  constexpr Scalar() noexcept = default;
  constexpr Scalar(Complex<T> v) noexcept : value(v) {}
  constexpr Scalar(T re, T im) noexcept : value{re, im} {}
  constexpr Scalar(Scalar<T> x) noexcept : value{x.value, T(0)} {}
  template <class N>
    requires std::is_arithmetic_v<N>
  constexpr Scalar(N number) noexcept : value{static_cast<T>(number), T(0)} {}
  template <ComplexLike N>
    requires(!std::is_same_v<N, Complex<T>>)
  constexpr Scalar(const N& number) noexcept : value{static_cast<T>(number.real()), static_cast<T>(number.imag())} {}

  constexpr T re() const noexcept { return value.re; }
  constexpr T im() const noexcept { return value.im; }

  friend constexpr Scalar operator+(Scalar x, Scalar y) noexcept { return {x.re() + y.re(), x.im() + y.im()}; }
  friend constexpr Scalar operator-(Scalar x, Scalar y) noexcept { return {x.re() - y.re(), x.im() - y.im()}; }
  // NumPy's formula: std::complex would give inf where NumPy gives nan.
  friend constexpr Scalar operator*(Scalar x, Scalar y) noexcept {
    return {x.re() * y.re() - x.im() * y.im(), x.re() * y.im() + x.im() * y.re()};
  }
  // Smith's formula, as NumPy has it, with selections for its branches.
  friend constexpr Scalar operator/(Scalar x, Scalar y) noexcept {
    const T size_re = y.re() < 0 ? -y.re() : y.re(), size_im = y.im() < 0 ? -y.im() : y.im();
    if (size_re == T(0) && size_im == T(0)) return {x.re() / size_re, x.im() / size_re};
    const bool real_larger = size_re >= size_im;
    const T larger = real_larger ? y.re() : y.im(), smaller = real_larger ? y.im() : y.re();
    const T ratio = smaller / larger;
    const T scale = T(1) / (larger + smaller * ratio);
    const T re = real_larger ? x.re() + x.im() * ratio : x.re() * ratio + x.im();
    const T im = real_larger ? x.im() - x.re() * ratio : x.im() * ratio - x.re();
    return {re * scale, im * scale};
  }
  friend constexpr Scalar operator-(Scalar x) noexcept { return {-x.re(), -x.im()}; }
  friend constexpr Scalar operator+(Scalar x) noexcept { return x; }
  constexpr Scalar& operator+=(Scalar y) noexcept { return *this = *this + y; }
  constexpr Scalar& operator-=(Scalar y) noexcept { return *this = *this - y; }
  constexpr Scalar& operator*=(Scalar y) noexcept { return *this = *this * y; }
  constexpr Scalar& operator/=(Scalar y) noexcept { return *this = *this / y; }
  // Lexicographic, as in NumPy.
  friend constexpr Truth<Complex<T>> operator<(Scalar x, Scalar y) noexcept {
    const bool ordered = x.im() == x.im() && y.im() == y.im();
    return {(x.re() < y.re() && ordered) || (x.re() == y.re() && x.im() < y.im())};
  }
  friend constexpr Truth<Complex<T>> operator<=(Scalar x, Scalar y) noexcept {
    const bool ordered = x.im() == x.im() && y.im() == y.im();
    return {(x.re() < y.re() && ordered) || (x.re() == y.re() && x.im() <= y.im())};
  }
  friend constexpr Truth<Complex<T>> operator>(Scalar x, Scalar y) noexcept { return y < x; }
  friend constexpr Truth<Complex<T>> operator>=(Scalar x, Scalar y) noexcept { return y <= x; }
  friend constexpr Truth<Complex<T>> operator==(Scalar x, Scalar y) noexcept {
    return {x.re() == y.re() && x.im() == y.im()};
  }
  friend constexpr Truth<Complex<T>> operator!=(Scalar x, Scalar y) noexcept {
    return {x.re() != y.re() || x.im() != y.im()};
  }

#define MIXGRAD_UNARY(name) \
  friend Scalar name(Scalar x) noexcept { return detail::math::name(x.value); }
  MIXGRAD_UNARY(exp)
  MIXGRAD_UNARY(log)
  MIXGRAD_UNARY(sqrt)
  MIXGRAD_UNARY(sin)
  MIXGRAD_UNARY(cos)
  MIXGRAD_UNARY(tan)
  MIXGRAD_UNARY(arcsin)
  MIXGRAD_UNARY(arccos)
  MIXGRAD_UNARY(arctan)
  MIXGRAD_UNARY(sinh)
  MIXGRAD_UNARY(cosh)
  MIXGRAD_UNARY(tanh)
  MIXGRAD_UNARY(arcsinh)
  MIXGRAD_UNARY(arccosh)
  MIXGRAD_UNARY(arctanh)
#undef MIXGRAD_UNARY
  friend Scalar exp2(Scalar x) noexcept { return exp(x * 0.69314718055994530942); }
  friend Scalar log2(Scalar x) noexcept { return log(x) * 1.44269504088896340736; }
  friend Scalar log10(Scalar x) noexcept { return log(x) * 0.43429448190325182765; }
  friend Scalar expm1(Scalar x) noexcept {
    using namespace detail::math;
    const T half = sin(x.im() / 2);
    return {expm1(x.re()) * cos(x.im()) - 2 * half * half, exp(x.re()) * sin(x.im())};
  }
  friend Scalar log1p(Scalar x) noexcept {
    using namespace detail::math;
    return {log(hypot(x.re() + 1, x.im())), arctan2(x.im(), x.re() + 1)};
  }
  // As NumPy: 0 to a power is settled first, and small whole exponents are products.
  friend Scalar power(Scalar x, Scalar y) noexcept {
    if (y.re() == 0 && y.im() == 0) return Scalar(1);
    if (x.re() == 0 && x.im() == 0 && y.re() > 0) return Scalar(0);
    const T whole = detail::math::trunc(y.re());
    if (y.im() != 0 || whole != y.re() || !(whole > -100 && whole < 100)) return detail::math::power(x.value, y.value);
    Scalar result(1), factor = x;
    for (int n = static_cast<int>(whole < 0 ? -whole : whole);;) {
      if (n & 1) result = result * factor;
      n >>= 1;
      if (n == 0) break;
      factor = factor * factor;
    }
    return whole < 0 ? Scalar(1) / result : result;
  }
  friend Scalar sign(Scalar x) noexcept {
    const T size = detail::math::hypot(x.re(), x.im());
    return where(Truth<T>{size == 0}, Scalar(0), Scalar(x.re() / size, x.im() / size));
  }
  friend constexpr Scalar where(Truth<T> c, Scalar x, Scalar y) noexcept { return c.value ? x : y; }
  friend Scalar<T> abs(Scalar x) noexcept { return detail::math::hypot(x.re(), x.im()); }
  friend constexpr Scalar<T> real(Scalar x) noexcept { return x.re(); }
  friend constexpr Scalar<T> imag(Scalar x) noexcept { return x.im(); }
  friend constexpr Scalar conj(Scalar x) noexcept { return {x.re(), -x.im()}; }
  friend constexpr Truth<Complex<T>> isnan(Scalar x) noexcept { return {x.re() != x.re() || x.im() != x.im()}; }
  friend constexpr Truth<Complex<T>> isinf(Scalar x) noexcept {
    return {isinf(Scalar<T>(x.re())).value || isinf(Scalar<T>(x.im())).value};
  }
  friend constexpr Truth<Complex<T>> isfinite(Scalar x) noexcept {
    return {x.re() - x.re() == T(0) && x.im() - x.im() == T(0)};
  }
};

/// Stands for a number while it is found out which operands an expression reads.
struct Probe {
  enum Form : std::uint8_t { other, operand, product };
  std::uint32_t reads = 0;
  Form form = other;  ///< nothing but an operand, or the product of two

  constexpr Probe() noexcept = default;
  template <Number N>
  constexpr Probe(const N&) noexcept {}
  static constexpr Probe of(std::uint32_t bits, Form form) noexcept {
    Probe probe;
    probe.reads = bits;
    probe.form = form;
    return probe;
  }

  friend constexpr Probe join(Probe x, Probe y) noexcept { return of(x.reads | y.reads, other); }
  friend constexpr Probe operator*(Probe x, Probe y) noexcept {
    return of(x.reads | y.reads, x.form == operand && y.form == operand ? product : other);
  }
#define MIXGRAD_BINARY(name) \
  friend constexpr Probe name(Probe x, Probe y) noexcept { return join(x, y); }
  MIXGRAD_BINARY(operator+)
  MIXGRAD_BINARY(operator-)
  MIXGRAD_BINARY(operator/)
  MIXGRAD_BINARY(operator<)
  MIXGRAD_BINARY(operator<=)
  MIXGRAD_BINARY(operator>)
  MIXGRAD_BINARY(operator>=)
  MIXGRAD_BINARY(operator==)
  MIXGRAD_BINARY(operator!=)
  MIXGRAD_BINARY(operator&)
  MIXGRAD_BINARY(operator|)
#undef MIXGRAD_BINARY
  friend constexpr Probe operator-(Probe x) noexcept { return join(x, x); }
  friend constexpr Probe operator+(Probe x) noexcept { return x; }
  friend constexpr Probe operator!(Probe x) noexcept { return join(x, x); }
  constexpr Probe& operator+=(Probe y) noexcept { return *this = join(*this, y); }
  constexpr Probe& operator-=(Probe y) noexcept { return *this = join(*this, y); }
  constexpr Probe& operator*=(Probe y) noexcept { return *this = *this * y; }
  constexpr Probe& operator/=(Probe y) noexcept { return *this = join(*this, y); }
  friend constexpr Probe where(Probe c, Probe x, Probe y) noexcept { return join(c, join(x, y)); }
#define MIXGRAD_UNARY(name) \
  friend constexpr Probe name(Probe x) noexcept { return join(x, x); }
  MIXGRAD_UNARY(abs)
  MIXGRAD_UNARY(exp)
  MIXGRAD_UNARY(exp2)
  MIXGRAD_UNARY(expm1)
  MIXGRAD_UNARY(log)
  MIXGRAD_UNARY(log2)
  MIXGRAD_UNARY(log10)
  MIXGRAD_UNARY(log1p)
  MIXGRAD_UNARY(sqrt)
  MIXGRAD_UNARY(cbrt)
  MIXGRAD_UNARY(sin)
  MIXGRAD_UNARY(cos)
  MIXGRAD_UNARY(tan)
  MIXGRAD_UNARY(arcsin)
  MIXGRAD_UNARY(arccos)
  MIXGRAD_UNARY(arctan)
  MIXGRAD_UNARY(sinh)
  MIXGRAD_UNARY(cosh)
  MIXGRAD_UNARY(tanh)
  MIXGRAD_UNARY(arcsinh)
  MIXGRAD_UNARY(arccosh)
  MIXGRAD_UNARY(arctanh)
  MIXGRAD_UNARY(floor)
  MIXGRAD_UNARY(ceil)
  MIXGRAD_UNARY(trunc)
  MIXGRAD_UNARY(rint)
  MIXGRAD_UNARY(isnan)
  MIXGRAD_UNARY(isfinite)
  MIXGRAD_UNARY(isinf)
  MIXGRAD_UNARY(real)
  MIXGRAD_UNARY(imag)
  MIXGRAD_UNARY(conj)
  MIXGRAD_UNARY(sign)
#undef MIXGRAD_UNARY
#define MIXGRAD_BINARY(name) \
  friend constexpr Probe name(Probe x, Probe y) noexcept { return join(x, y); }
  MIXGRAD_BINARY(power)
  MIXGRAD_BINARY(arctan2)
  MIXGRAD_BINARY(hypot)
#undef MIXGRAD_BINARY
};

// --- composed of the above, for numbers of every kind ---------------------------------------------------------------

template <class S>
concept ScalarLike = requires { typename S::real_type; } || std::is_same_v<S, Probe>;

template <ScalarLike S>
constexpr S square(S x) noexcept {
  return x * x;
}
template <ScalarLike S>
constexpr S reciprocal(S x) noexcept {
  return S(1) / x;
}
template <ScalarLike S>
constexpr auto absolute(S x) noexcept {
  return abs(x);
}
// A nan comes through, as in NumPy.
template <ScalarLike S>
constexpr S maximum(S x, std::type_identity_t<S> y) noexcept {
  return where((x >= y) | isnan(x), x, y);
}
template <ScalarLike S>
constexpr S minimum(S x, std::type_identity_t<S> y) noexcept {
  return where((x <= y) | isnan(x), x, y);
}
// A nan is passed over.
template <ScalarLike S>
constexpr S fmax(S x, std::type_identity_t<S> y) noexcept {
  return where((x >= y) | isnan(y), x, y);
}
template <ScalarLike S>
constexpr S fmin(S x, std::type_identity_t<S> y) noexcept {
  return where((x <= y) | isnan(y), x, y);
}
template <ScalarLike S>
S logaddexp(S x, std::type_identity_t<S> y) noexcept {
  const S d = x - y;
  return where(x == y, x + 0.69314718055994530942, where(d > 0, x, y) + log1p(exp(-abs(d))));
}
template <ScalarLike S>
S logaddexp2(S x, std::type_identity_t<S> y) noexcept {
  const S d = x - y;
  return where(x == y, x + 1, where(d > 0, x, y) + log1p(exp2(-abs(d))) * 1.44269504088896340736);
}
template <ScalarLike S>
S relu(S x) noexcept {
  return where(x > 0, x, S(0));
}
// Neither side overflows.
template <ScalarLike S>
S sigmoid(S x) noexcept {
  const S e = exp(-abs(x));
  return where(x >= 0, S(1), e) / (1 + e);
}

}  // namespace v1
}  // namespace mixgrad

#endif  // MIXGRAD_SCALAR_HPP
