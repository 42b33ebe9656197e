// SPDX-License-Identifier: Apache-2.0
#include "value.h"

#include <complex>
#include <cstring>
#include <new>

namespace mixgrad::core {

std::size_t item_size(Dtype dtype) noexcept {
  static constexpr std::size_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 4, 8, 16, 8, 16};
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(sizes) ? sizes[index] : 0;
}

const char* dtype_name(Dtype dtype) noexcept {
  static constexpr const char* names[] = {"bool",    "int8",       "uint8",     "int16",     "uint16", "int32",
                                          "uint32",  "int64",      "uint64",    "int64",     "uint64", "float32",
                                          "float64", "longdouble", "complex64", "complex128"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(names) ? names[index] : "other";
}

bool View::contiguous() const noexcept {
  std::int64_t expected = static_cast<std::int64_t>(item_size(dtype));
  for (int i = ndim - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

bool Value::same_shape(const Value& other) const noexcept {
  if (ndim != other.ndim) return false;
  for (int i = 0; i < ndim; ++i)
    if (shape[i] != other.shape[i]) return false;
  return true;
}

void Value::drop_data() noexcept {
  if (buffer) buffer->release();
  buffer = nullptr;
  data = nullptr;
  release();
}

namespace {
constexpr std::size_t kInlineDims = std::size(Value{}.dims) / 2;
std::size_t dims_bytes(std::size_t ndim) noexcept { return 2 * ndim * sizeof(std::int64_t); }

Value* new_value(Dtype dtype, std::size_t ndim) {
  auto* value = static_cast<Value*>(pool::allocate(sizeof(Value)));
  value->references = 1;
  value->uses = 1;
  value->buffer = nullptr;
  value->data = nullptr;
  value->windows = 0;
  value->position = -1;
  value->tape = 0;
  value->dtype = dtype;
  value->ndim = static_cast<std::uint8_t>(ndim);
  value->weak = false;
  if (ndim <= kInlineDims) {
    value->shape = value->dims;
    value->strides = value->dims + kInlineDims;
  } else {
    try {
      value->shape = static_cast<std::int64_t*>(pool::allocate(dims_bytes(ndim)));
    } catch (...) {
      pool::release(value, sizeof(Value));
      throw;
    }
    value->strides = value->shape + ndim;
  }
  ++counters.values;
  return value;
}

std::int64_t set_contiguous(Value* value, std::span<const std::int64_t> shape) noexcept {
  std::int64_t stride = static_cast<std::int64_t>(item_size(value->dtype));
  std::int64_t size = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    value->shape[i] = shape[i];
    value->strides[i] = stride;
    stride *= shape[i];
    size *= shape[i];
  }
  value->size = size;
  value->contiguous = true;
  return size;
}
}  // namespace

void Value::destroy() noexcept {
  --counters.values;
  if (ndim > kInlineDims) pool::release(shape, dims_bytes(ndim));
  pool::release(this, sizeof(Value));
}

ValueRef make_value(Dtype dtype, std::span<const std::int64_t> shape) {
  ValueRef ref = ValueRef::steal(new_value(dtype, shape.size()));
  Value* value = ref.get();
  const std::int64_t size = set_contiguous(value, shape);
  value->buffer = Buffer::allocate(static_cast<std::size_t>(size) * item_size(dtype));
  value->data = value->buffer->data;
  return ref;
}

ValueRef make_over(Buffer* buffer, char* data, Dtype dtype, std::span<const std::int64_t> shape,
                   std::span<const std::int64_t> strides) {
  ValueRef ref;
  try {
    ref = ValueRef::steal(new_value(dtype, shape.size()));
  } catch (...) {
    buffer->release();
    throw;
  }
  Value* value = ref.get();
  value->buffer = buffer;
  value->data = data;
  std::int64_t size = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    value->shape[i] = shape[i];
    value->strides[i] = strides[i];
    size *= shape[i];
  }
  value->size = size;
  value->contiguous = value->view().contiguous();
  return ref;
}

ValueRef make_view(const Value& base, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                   std::int64_t offset) {
  base.buffer->retain();
  return make_over(base.buffer, base.data + offset, base.dtype, shape, strides);
}

ValueRef make_alias(const Value& base) {
  ValueRef alias = make_view(base, {base.shape, base.ndim}, {base.strides, base.ndim}, 0);
  return alias;
}

ValueRef make_scalar(Dtype dtype, double real, double imaginary) {
  ValueRef ref = make_value(dtype, {});
  char* const data = ref->data;
  switch (dtype) {
    case Dtype::float32: {
      const auto v = static_cast<float>(real);
      std::memcpy(data, &v, sizeof v);
      break;
    }
    case Dtype::float64:
      std::memcpy(data, &real, sizeof real);
      break;
    case Dtype::complex64: {
      const float v[2] = {static_cast<float>(real), static_cast<float>(imaginary)};
      std::memcpy(data, v, sizeof v);
      break;
    }
    case Dtype::complex128: {
      const double v[2] = {real, imaginary};
      std::memcpy(data, v, sizeof v);
      break;
    }
    default:
      std::memset(data, 0, item_size(dtype));
  }
  return ref;
}

ValueRef make_number(double real, double imaginary, bool complex_number) {
  ValueRef ref = make_scalar(complex_number ? Dtype::complex128 : Dtype::float64, real, imaginary);
  ref->weak = true;
  return ref;
}

ValueRef make_zeros(Dtype dtype, std::span<const std::int64_t> shape) {
  Buffer* buffer = Buffer::allocate(item_size(dtype));
  std::memset(buffer->data, 0, item_size(dtype));
  static constexpr std::int64_t no_strides[kMaxDims] = {};
  return make_over(buffer, buffer->data, dtype, shape, {no_strides, shape.size()});
}

}  // namespace mixgrad::core
