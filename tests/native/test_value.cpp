// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/convert.h"
#include "core/value.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

Shape strides(const ValueRef& value) { return {value->strides, value->strides + value->ndim}; }

/// A view by element strides.
ValueRef view(const ValueRef& base, const Shape& shape, Shape strides, std::int64_t first = 0) {
  for (std::int64_t& stride : strides) stride *= 8;
  return make_view(*base, shape, strides, first * 8);
}

TEST_SUITE_BEGIN("value");

TEST_CASE("dtypes have NumPy's sizes and names") {
  CHECK(item_size(Dtype::boolean) == 1);
  CHECK(item_size(Dtype::float32) == 4);
  CHECK(item_size(Dtype::complex128) == 16);
  CHECK(item_size(Dtype::other) == 0);
  CHECK(std::string(dtype_name(Dtype::longlong)) == "int64");
  CHECK(std::string(dtype_name(Dtype::complex64)) == "complex64");
  CHECK(std::string(dtype_name(Dtype::other)) == "other");
}

TEST_CASE_FIXTURE(NoLeaks, "a new value is C-contiguous, unrecorded and its own") {
  const ValueRef value = make_value(Dtype::float32, Shape{2, 3, 4});
  CHECK(value->size == 24);
  CHECK(value->bytes() == 96);
  CHECK(strides(value) == Shape{48, 16, 4});
  CHECK(value->contiguous);
  CHECK(value->position == -1);
  CHECK(value->windows == 0);
  CHECK(value->buffer->references == 1);
}

TEST_CASE_FIXTURE(NoLeaks, "as many axes as NumPy has") {
  const Shape many(kMaxDims, 1);
  const ValueRef value = array(many, {7.0});
  CHECK(shape(value) == many);
  CHECK(numbers(make_alias(*value)) == Numbers{7.0});
}

TEST_CASE_FIXTURE(NoLeaks, "views share a buffer and keep it alive") {
  ValueRef base = array({2, 3}, {1, 2, 3, 4, 5, 6});
  const ValueRef transposed = view(base, {3, 2}, {1, 3}), reversed = view(base, {3}, {-1}, 5);
  CHECK(base->buffer->references == 3);
  base = {};
  CHECK(numbers(transposed) == Numbers{1, 4, 2, 5, 3, 6});
  CHECK(numbers(reversed) == Numbers{6, 5, 4});
}

TEST_CASE_FIXTURE(NoLeaks, "contiguity looks at axes that have a length only") {
  const ValueRef base = array({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(view(base, {2, 3}, {3, 1})->contiguous);
  CHECK(view(base, {2, 1, 3}, {3, 77, 1})->contiguous);
  CHECK(view(base, {3, 0}, {5, 5})->contiguous);
  CHECK_FALSE(view(base, {3, 2}, {1, 3})->contiguous);
  CHECK_FALSE(view(base, {2, 2}, {3, 1})->contiguous);
  CHECK_FALSE(view(base, {2, 3}, {0, 1})->contiguous);
}

TEST_CASE_FIXTURE(NoLeaks, "an alias is the same data under another identity") {
  const ValueRef value = vector({1, 2});
  value->position = 5;
  value->windows = 1;
  const ValueRef alias = make_alias(*value);
  CHECK(alias->data == value->data);
  CHECK(alias->same_shape(*value));
  CHECK(alias->position == -1);
  CHECK(alias->windows == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "two counts: uses keep the data, references the shape") {
  ValueRef value = array({2, 3}, {1, 2, 3, 4, 5, 6});
  Value* const kept = value.get();
  const std::int64_t buffers = counters.buffers;
  kept->retain();
  value = {};
  CHECK(counters.buffers == buffers - 1);
  CHECK(kept->buffer == nullptr);
  CHECK(kept->shape[1] == 3);
  CHECK(kept->dtype == Dtype::float64);
  kept->release();
}

TEST_CASE_FIXTURE(NoLeaks, "handles count uses") {
  ValueRef first = scalar(3.0);
  const ValueRef second = first;
  CHECK(first->uses == 2);
  ValueRef third = std::move(first);
  CHECK_FALSE(first);
  CHECK(third->uses == 2);
  third = second;
  CHECK(second->uses == 2);
  first = ValueRef::steal(third.release());
  CHECK(first.get() == second.get());
}

TEST_CASE_FIXTURE(NoLeaks, "scalars and Python's numbers") {
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::complex64, Dtype::complex128}) {
    const ValueRef value = make_scalar(dtype, 1.5, 2.0);
    CHECK(value->dtype == dtype);
    CHECK(value->ndim == 0);
    CHECK(numbers(value) == Numbers{1.5});
    CHECK_FALSE(value->weak);
  }
  CHECK(make_number(2.0, 0.0, false)->weak);
  CHECK(make_number(2.0, 1.0, true)->dtype == Dtype::complex128);
}

TEST_CASE_FIXTURE(NoLeaks, "zeros of any size take the memory of one element") {
  const std::int64_t bytes = counters.buffer_bytes;
  const ValueRef zeros = make_zeros(Dtype::float64, Shape{2, 2});
  CHECK(counters.buffer_bytes == bytes + 8);
  CHECK(numbers(zeros) == Numbers{0, 0, 0, 0});
}

TEST_CASE_FIXTURE(NoLeaks, "casts") {
  const ValueRef value = vector({1.0, std::pow(2.0, -30) + 1.0});
  CHECK(cast(value, Dtype::float64).get() == value.get());
  CHECK(numbers(cast(value, Dtype::float32)) == Numbers{1.0, 1.0});
  CHECK(numbers(cast(make_scalar(Dtype::complex128, 3.0, 4.0), Dtype::float64)) == Numbers{3.0});
  CHECK(cast(value, Dtype::complex64)->bytes() == 16);
}

TEST_CASE_FIXTURE(NoLeaks, "copies are contiguous, or in the order of the original") {
  const ValueRef base = array({2, 3}, {1, 2, 3, 4, 5, 6}), transposed = view(base, {3, 2}, {1, 3});
  const ValueRef copy = copy_of(*transposed), in_order = copy_in_order(*transposed);
  CHECK(copy->contiguous);
  CHECK(strides(in_order) == strides(transposed));
  CHECK(in_order->buffer != base->buffer);
  CHECK(numbers(copy) == numbers(in_order));
}

TEST_CASE_FIXTURE(NoLeaks, "what is saved of foreign memory: small is copied, large is shared") {
  const ValueRef small = foreign("np.arange(3.0)"), large = foreign("np.zeros(5000)"), own = vector({1, 2});
  const ValueRef sparse = foreign("np.zeros(10000)[::2]");
  CHECK(saved_form(own).get() == own.get());
  CHECK(saved_form(large).get() == large.get());
  CHECK_FALSE(saved_form(small)->buffer->foreign());
  CHECK(numbers(saved_form(small)) == Numbers{0, 1, 2});
  CHECK_FALSE(saved_form(sparse)->buffer->foreign());
}

TEST_CASE("promotion is NumPy's") {
  CHECK(promote(Dtype::float32, Dtype::float64) == Dtype::float64);
  CHECK(promote(Dtype::float64, Dtype::complex64) == Dtype::complex128);
  CHECK(promote(Dtype::float32, Dtype::int64) == Dtype::float64);
  CHECK(promote(Dtype::float32, Dtype::boolean) == Dtype::float32);
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
