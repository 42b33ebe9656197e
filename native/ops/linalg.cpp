// SPDX-License-Identifier: Apache-2.0
//
// Products of arrays.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

Array as_row(const Array& x) {
  const mixgrad_view v = x.view();
  return detail::view_of(x, {1, v.shape[0]}, {0, v.strides[0]});
}
Array as_column(const Array& x) {
  const mixgrad_view v = x.view();
  return detail::view_of(x, {v.shape[0], 1}, {v.strides[0], 0});
}

/// Sums over the axes along which an array of this shape was broadcast.
Array sum_to(const Array& x, std::span<const std::int64_t> shape) {
  const auto have = x.shape();
  const std::size_t lead = have.size() - shape.size();
  std::uint64_t axes = (std::uint64_t{1} << lead) - 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == 1 && have[lead + i] != 1) axes |= std::uint64_t{1} << (lead + i);
  return axes == 0 ? x : reshape(sum(x, {.axis = Axis::of_bits(axes)}), Shape(shape));
}

/// The matrix product of arrays that have axes, of one dtype.
Array product(const Array& x, const Array& y) {
  const bool row = x.ndim() == 1, column = y.ndim() == 1;
  if (!row && !column) return kernel::matmul(x, y);
  const Array product = kernel::matmul(row ? as_row(x) : x, column ? as_column(y) : y);
  Shape shape(product.shape());
  if (column) shape.erase(shape.size() - 1);
  if (row) shape.erase(shape.size() - (column ? 1 : 2));
  return detail::view_of(product, shape, detail::contiguous_strides(shape, item_size(product.dtype())));
}

/// Real, and without gaps: there np.dot and np.matmul agree to the bit.
bool dot_is_matmul(const Array& x) {
  const mixgrad_view v = x.view();
  const auto dtype = static_cast<Dtype>(v.dtype);
  if (!is_real(dtype) || v.ndim == 0 || v.ndim > 2) return false;
  return v.contiguous ||
         (v.ndim == 2 && v.strides[0] == item_size(dtype) && v.strides[1] == v.shape[0] * item_size(dtype));
}

Array flipped(const Array& x) { return swapaxes(x, -1, -2); }

Array left_gradient(const Call& op, const Array& g) {
  const auto shape = op.input_shape(0);
  const Array y = op.input(1);
  if (y.ndim() == 1) return shape.size() == 1 ? g * y : expand_dims(g, -1) * y;
  if (shape.size() == 1) return sum_to(squeeze(matmul(y, expand_dims(g, -1)), -1), shape);
  return sum_to(matmul(g, flipped(y)), shape);
}

Array right_gradient(const Call& op, const Array& g) {
  const auto shape = op.input_shape(1);
  const Array x = op.input(0);
  if (x.ndim() == 1) return shape.size() == 1 ? g * x : expand_dims(x, -1) * expand_dims(g, -2);
  if (shape.size() == 1) return sum_to(squeeze(matmul(flipped(x), expand_dims(g, -1)), -1), shape);
  if (shape.size() == 2 && x.ndim() > 2) {
    // One product of tall matrices in place of a batch of products and a sum.
    const std::int64_t rows = Shape(x.shape()).product() / (x.shape(-1) ? x.shape(-1) : 1);
    if (x.size() > 0 && g.size() > 0)
      return matmul(transpose(reshape(x, {rows, shape[0]})), reshape(g, {rows, shape[1]}));
  }
  return sum_to(matmul(flipped(x), g), shape);
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(matmul) {
  const Array x = op.input(0), y = op.input(1);
  if (x.ndim() == 0 || y.ndim() == 0) return decline;
  return product(x, y);
}

MIXGRAD_REGISTER_GRADIENT(matmul) {
  return {op.needs_gradient(0) ? left_gradient(op, g) : Array(),
          op.needs_gradient(1) ? right_gradient(op, g) : Array()};
}

MIXGRAD_REGISTER_FORWARD(dot) {
  const Array x = op.input(0), y = op.input(1);
  if (!dot_is_matmul(x) || !dot_is_matmul(y)) return decline;
  return product(x, y);
}

// Up to matrices, np.dot is the same product.
MIXGRAD_REGISTER_GRADIENT(dot) {
  for (std::size_t i = 0; i < 2; ++i)
    if (op.input_shape(i).empty() || op.input_shape(i).size() > 2) return decline;
  return {op.needs_gradient(0) ? left_gradient(op, g) : Array(),
          op.needs_gradient(1) ? right_gradient(op, g) : Array()};
}

}  // namespace mixgrad
