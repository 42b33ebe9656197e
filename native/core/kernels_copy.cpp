// SPDX-License-Identifier: Apache-2.0
//
// Copying, casting and adding: the loops that NumPy offers behind heavy machinery only.
#include <cstring>
#include <type_traits>

#include "iteration.h"
#include "kernels.h"

namespace mixgrad::core::kernels {

namespace {

template <class T>
struct ComplexOf {
  T real, imaginary;
};

template <class T>
inline constexpr bool is_complex_type = false;
template <class T>
inline constexpr bool is_complex_type<ComplexOf<T>> = true;

template <class To, class From>
To convert(From from) noexcept {
  if constexpr (is_complex_type<From> && is_complex_type<To>) {
    using Part = decltype(To{}.real);
    return {static_cast<Part>(from.real), static_cast<Part>(from.imaginary)};
  } else if constexpr (is_complex_type<From>) {
    return convert<To>(from.real);
  } else if constexpr (is_complex_type<To>) {
    return {static_cast<decltype(To{}.real)>(from), 0};
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From{0};
  } else {
    return static_cast<To>(from);
  }
}

/// The C++ type of a dtype, given to `body` as a value.
template <class Body>
void with_type(Dtype dtype, Body&& body) noexcept {
  switch (dtype) {
    case Dtype::boolean:
      return body(bool{});
    case Dtype::int8:
      return body(std::int8_t{});
    case Dtype::uint8:
      return body(std::uint8_t{});
    case Dtype::int16:
      return body(std::int16_t{});
    case Dtype::uint16:
      return body(std::uint16_t{});
    case Dtype::int32:
      return body(std::int32_t{});
    case Dtype::uint32:
      return body(std::uint32_t{});
    case Dtype::int64:
    case Dtype::longlong:
      return body(std::int64_t{});
    case Dtype::uint64:
    case Dtype::ulonglong:
      return body(std::uint64_t{});
    case Dtype::float32:
      return body(float{});
    case Dtype::float64:
      return body(double{});
    case Dtype::complex64:
      return body(ComplexOf<float>{});
    case Dtype::complex128:
      return body(ComplexOf<double>{});
    case Dtype::other:
      return;
  }
}

Iteration<2> iterate(const View& from, const View& to) noexcept {
  Iteration<2> it;
  for (int axis = 0; axis < to.ndim; ++axis) {
    if (to.shape[axis] == 1) continue;
    it.add_axis(to.shape[axis]);
    it.strides[it.ndim - 1][0] = broadcast_stride(from, axis, to.ndim);
    it.strides[it.ndim - 1][1] = to.strides[axis];
  }
  it.sort(1);
  it.coalesce();
  return it;
}

template <class Inner>
void run(const View& from, const View& to, Inner&& inner) noexcept {
  if (to.size() == 0) return;
  const Iteration<2> it = iterate(from, to);
  char* const start[2] = {from.data, to.data};
  it.run(start, 0, it.outer_size(), inner);
}

template <class T>
void add_loop(char** p, std::int64_t n, const std::int64_t* strides) noexcept {
  constexpr auto item = static_cast<std::int64_t>(sizeof(T));
  auto* to = reinterpret_cast<T*>(p[1]);
  if (strides[0] == item && strides[1] == item) {
    const T* from = reinterpret_cast<const T*>(p[0]);
    for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    *reinterpret_cast<T*>(p[1] + i * strides[1]) += *reinterpret_cast<const T*>(p[0] + i * strides[0]);
}

/// A complex array as a real one with an axis of length two.
struct Parts {
  View view;
  std::int64_t shape[kMaxDims + 1], strides[kMaxDims + 1];
  explicit Parts(const View& complex) noexcept : view(complex) {
    for (int i = 0; i < complex.ndim; ++i) {
      shape[i] = complex.shape[i];
      strides[i] = complex.strides[i];
    }
    const bool single = complex.dtype == Dtype::complex64;
    shape[complex.ndim] = 2;
    strides[complex.ndim] = single ? 4 : 8;
    view.dtype = single ? Dtype::float32 : Dtype::float64;
    view.ndim = complex.ndim + 1;
    view.shape = shape;
    view.strides = strides;
  }
};

}  // namespace

void copy(const View& from, const View& to) noexcept {
  if (from.dtype == to.dtype) {
    const std::size_t item = item_size(to.dtype);
    run(from, to, [item](char** p, std::int64_t n, const std::int64_t* strides) {
      const auto step = static_cast<std::int64_t>(item);
      if (strides[0] == step && strides[1] == step) {
        std::memcpy(p[1], p[0], static_cast<std::size_t>(n) * item);
        return;
      }
      const char* source = p[0];
      char* target = p[1];
      const auto each = [&]<class T>(T) {
        for (std::int64_t i = 0; i < n; ++i, source += strides[0], target += strides[1])
          std::memcpy(target, source, sizeof(T));
      };
      switch (item) {
        case 4:
          return each(std::uint32_t{});
        case 8:
          return each(std::uint64_t{});
        case 16:
          return each(ComplexOf<double>{});
        default:
          for (std::int64_t i = 0; i < n; ++i, source += strides[0], target += strides[1])
            std::memcpy(target, source, item);
      }
    });
    return;
  }
  with_type(from.dtype, [&]<class From>(From) {
    with_type(to.dtype, [&]<class To>(To) {
      run(from, to, [](char** p, std::int64_t n, const std::int64_t* strides) {
        for (std::int64_t i = 0; i < n; ++i) {
          From value;
          std::memcpy(&value, p[0] + i * strides[0], sizeof value);
          const To result = convert<To>(value);
          std::memcpy(p[1] + i * strides[1], &result, sizeof result);
        }
      });
    });
  });
}

void accumulate(const View& from, const View& to) noexcept {
  if (is_complex(to.dtype)) {
    // A one-element operand that is broadcast keeps its two parts.
    accumulate(Parts(from).view, Parts(to).view);
    return;
  }
  if (to.dtype == Dtype::float32)
    run(from, to, add_loop<float>);
  else
    run(from, to, add_loop<double>);
}

void fill_zero(const View& to) noexcept {
  if (to.contiguous()) {
    std::memset(to.data, 0, static_cast<std::size_t>(to.size()) * item_size(to.dtype));
    return;
  }
  static const std::uint64_t zero[2] = {};
  copy({reinterpret_cast<char*>(const_cast<std::uint64_t*>(zero)), to.dtype, 0, nullptr, nullptr}, to);
}

}  // namespace mixgrad::core::kernels
