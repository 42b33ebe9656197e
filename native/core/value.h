// SPDX-License-Identifier: Apache-2.0
//
// A value: a strided view of a buffer, and where on the tape it comes from.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "buffer.h"

namespace mixgrad::core {

/// NumPy's type numbers.
enum class Dtype : std::uint8_t {
  boolean = 0,
  int8 = 1,
  uint8 = 2,
  int16 = 3,
  uint16 = 4,
  int32 = 5,
  uint32 = 6,
  int64 = 7,
  uint64 = 8,
  longlong = 9,
  ulonglong = 10,
  float32 = 11,
  float64 = 12,
  complex64 = 14,
  complex128 = 15,
  other = 255
};

std::size_t item_size(Dtype) noexcept;
const char* dtype_name(Dtype) noexcept;
constexpr bool is_complex(Dtype d) noexcept { return d == Dtype::complex64 || d == Dtype::complex128; }
constexpr bool is_real(Dtype d) noexcept { return d == Dtype::float32 || d == Dtype::float64; }
constexpr bool is_differentiable(Dtype d) noexcept { return is_real(d) || is_complex(d); }
/// 0 to 3 for float32, float64, complex64, complex128: the index into a table of loops.
constexpr int dtype_index(Dtype d) noexcept {
  return d == Dtype::float32 ? 0 : d == Dtype::float64 ? 1 : d == Dtype::complex64 ? 2 : 3;
}

inline constexpr int kMaxDims = 64;

/// Memory and its layout, owned by somebody else. Strides in bytes, zero and negative ones too.
struct View {
  char* data;
  Dtype dtype;
  int ndim;
  const std::int64_t* shape;
  const std::int64_t* strides;

  std::int64_t size() const noexcept {
    std::int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
  bool contiguous() const noexcept;
};

/// Windows of a thread's tape, one bit each.
using Mask = std::uint64_t;
/// A place on the tape: never reused.
using Position = std::int64_t;

/// A value has two counts, as std::shared_ptr has: `uses` keep the data, `references` keep shape, dtype and position.
/// An entry that does not need an input's data holds a reference only.
struct Value {
  std::int32_t references;
  std::int32_t uses;
  Buffer* buffer;
  char* data;
  std::int64_t* shape;
  std::int64_t* strides;
  std::int64_t size;
  Mask windows;
  Position position;
  std::uint32_t tape;
  Dtype dtype;
  std::uint8_t ndim;
  bool contiguous;
  bool weak;  ///< a Python number: it takes the dtype of what it meets
  std::int64_t dims[6];

  View view() const noexcept { return {data, dtype, ndim, shape, strides}; }
  std::span<const std::int64_t> shape_span() const noexcept { return {shape, ndim}; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(size) * item_size(dtype); }
  bool same_shape(const Value& other) const noexcept;

  void use() noexcept { ++uses; }
  void unuse() noexcept {
    if (--uses == 0) drop_data();
  }
  void retain() noexcept { ++references; }
  void release() noexcept {
    if (--references == 0) destroy();
  }

 private:
  void drop_data() noexcept;
  void destroy() noexcept;
};

/// An owning handle: keeps the data.
class ValueRef {
 public:
  ValueRef() noexcept = default;
  ValueRef(std::nullptr_t) noexcept {}
  ValueRef(const ValueRef& other) noexcept : value_(other.value_) {
    if (value_) value_->use();
  }
  ValueRef(ValueRef&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  ValueRef& operator=(ValueRef other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~ValueRef() {
    if (value_) value_->unuse();
  }
  static ValueRef steal(Value* value) noexcept {
    ValueRef ref;
    ref.value_ = value;
    return ref;
  }
  static ValueRef borrow(Value* value) noexcept {
    if (value) value->use();
    return steal(value);
  }
  Value* get() const noexcept { return value_; }
  Value* release() noexcept { return std::exchange(value_, nullptr); }
  Value* operator->() const noexcept { return value_; }
  Value& operator*() const noexcept { return *value_; }
  explicit operator bool() const noexcept { return value_ != nullptr; }

 private:
  Value* value_ = nullptr;
};

/// New, C-contiguous, uninitialised.
ValueRef make_value(Dtype dtype, std::span<const std::int64_t> shape);
/// A view of the same buffer; a constant (no position on the tape).
ValueRef make_view(const Value& base, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                   std::int64_t offset);
/// The same data under a fresh identity.
ValueRef make_alias(const Value& base);
/// Over a buffer, whose reference it takes.
ValueRef make_over(Buffer* buffer, char* data, Dtype dtype, std::span<const std::int64_t> shape,
                   std::span<const std::int64_t> strides);
ValueRef make_scalar(Dtype dtype, double real, double imaginary = 0.0);
ValueRef make_number(double real, double imaginary, bool is_complex);
/// Zeros that take no memory: one element with strides 0.
ValueRef make_zeros(Dtype dtype, std::span<const std::int64_t> shape);

}  // namespace mixgrad::core
