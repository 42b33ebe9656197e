// SPDX-License-Identifier: Apache-2.0
//
// For code over raw memory: choosing by dtype, loops on several threads, and the core's own kernels.
#ifndef MIXGRAD_KERNEL_HPP
#define MIXGRAD_KERNEL_HPP

#include "mixgrad/array.hpp"

namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {

/// Calls `body.template operator()<T>()` with the element type of a differentiable dtype: float, double, Complex<float>
/// or Complex<double>. Any other dtype declines the call.
///
///     dispatch(x.dtype(), [&]<class T>() { scale(x.data<T>(), out.mutable_data<T>(), x.size()); });
template <class Body>
decltype(auto) dispatch(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::float32:
      return body.template operator()<float>();
    case Dtype::float64:
      return body.template operator()<double>();
    case Dtype::complex64:
      return body.template operator()<Complex<float>>();
    case Dtype::complex128:
      return body.template operator()<Complex<double>>();
    default:
      throw Decline();
  }
}

/// The same for the real dtypes only.
template <class Body>
decltype(auto) dispatch_real(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::float32:
      return body.template operator()<float>();
    case Dtype::float64:
      return body.template operator()<double>();
    default:
      throw Decline();
  }
}

/// Calls body(begin, end) for pieces of [0, n): on several threads, and without Python's lock, when n is above `grain`.
/// The body must not throw, and touches raw memory only: no Array is copied, made or dropped in it.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::checked(api()->parallel_for(
      n, grain,
      [](std::int64_t begin, std::int64_t end, void* data) noexcept { (*static_cast<Plain*>(data))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body))));
}

/// Numeric kernels of the core: plain memory in and out, not recorded. They decline what they do not take.
namespace kernel {

/// Of (..., n, k) and (..., k, m), of one dtype.
inline Array matmul(const Array& a, const Array& b) {
  mixgrad_array* out = nullptr;
  detail::checked(api()->kernel_matmul(a.handle(), b.handle(), &out));
  return Array::own(out);
}

/// Reduces the axes whose bit is set by "add", "multiply", "maximum" or "minimum", equal to NumPy's to the bit.
inline Array reduce(const char* name, const Array& x, std::uint64_t axes, bool keepdims = false) {
  mixgrad_array* out = nullptr;
  detail::checked(api()->kernel_reduce(name, x.handle(), axes, keepdims, &out));
  return Array::own(out);
}

/// Copies with casting, and broadcasting of `from`.
inline void copy(const Array& from, const Array& to) {
  detail::checked(api()->kernel_copy(from.handle(), to.handle(), 0));
}
/// Adds instead.
inline void add_to(const Array& from, const Array& to) {
  detail::checked(api()->kernel_copy(from.handle(), to.handle(), 1));
}

}  // namespace kernel

}  // namespace v1
}  // namespace mixgrad

#endif  // MIXGRAD_KERNEL_HPP
