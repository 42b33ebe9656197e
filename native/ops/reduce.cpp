// SPDX-License-Identifier: Apache-2.0
//
// Reductions over all axes or some. With `where`, `initial` or another dtype they are Python's.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

bool is_absent(const mixgrad_attribute& a) {
  return a.kind == MIXGRAD_ATTRIBUTE_NONE || a.kind == MIXGRAD_ATTRIBUTE_MISSING;
}

/// Whether every element takes part.
bool is_whole(const Call& op) {
  const mixgrad_attribute where = op.attribute("where");
  return is_absent(where) || (where.kind == MIXGRAD_ATTRIBUTE_BOOL && where.integer != 0);
}

/// Whether nothing but axis and keepdims is given.
bool is_plain(const Call& op) {
  return is_whole(op) && is_absent(op.attribute("initial")) && is_absent(op.attribute("dtype"));
}

/// The number of elements that become one; 1 where there are none, so that it can divide.
std::int64_t count_of(std::span<const std::int64_t> shape, std::uint64_t axes) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (axes >> i & 1) n *= shape[i];
  return n ? n : 1;
}

/// A reduction's output (or its gradient) with the reduced axes back, of length one.
Array with_axes(const Array& x, std::span<const std::int64_t> shape, std::uint64_t axes) {
  if (x.ndim() == shape.size()) return x;
  Shape kept(shape);
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (axes >> i & 1) kept[i] = 1;
  return reshape(x, kept);
}

Results reduce(const Call& op, const char* kernel) {
  const Array x = op.input();
  if (!is_plain(op) || !is_differentiable(x.dtype())) return decline;
  return kernel::reduce(kernel, x, op.axes("axis", x.ndim()), op.attribute<bool>("keepdims"));
}

/// The gradient of max and min: elements that are equal to the result share it.
Results to_the_chosen(const Call& op, const Array& g) {
  if (!is_plain(op)) return decline;
  const Array x = op.input();
  const std::uint64_t axes = op.axes("axis", x.ndim());
  const Array chosen = x == with_axes(op.output(), x.shape(), axes);
  const Dtype dtype = x.dtype();
  const Array ties =
      sum(where(chosen, scalar(dtype, 1.0), scalar(dtype, 0.0)), {.axis = Axis::of_bits(axes), .keepdims = true});
  // No ties at all: the result is nan.
  return where(chosen, with_axes(g, x.shape(), axes) / maximum(ties, 1), 0);
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(sum) { return reduce(op, "add"); }

MIXGRAD_REGISTER_GRADIENT(sum) {
  if (!is_whole(op)) return decline;
  const auto shape = op.input_shape();
  return broadcast_to(with_axes(g, shape, op.axes("axis", shape.size())), Shape(shape));
}

MIXGRAD_REGISTER_FORWARD(mean) {
  const Array x = op.input();
  if (!is_plain(op) || !is_differentiable(x.dtype())) return decline;
  const std::uint64_t axes = op.axes("axis", x.ndim());
  // NumPy's own call warns of the mean of nothing.
  if (x.size() == 0) return decline;
  const std::int64_t count = count_of(x.shape(), axes);
  Array out = kernel::reduce("add", x, axes, op.attribute<bool>("keepdims"));
  dispatch(x.dtype(), [&]<class T>() {
    const Scalar<T> divisor(static_cast<double>(count));
    for (T& item : out.mutable_elements<T>()) item = (Scalar<T>(item) / divisor).value;
  });
  return out;
}

MIXGRAD_REGISTER_GRADIENT(mean) {
  if (!is_whole(op)) return decline;
  const auto shape = op.input_shape();
  const std::uint64_t axes = op.axes("axis", shape.size());
  const Array share = with_axes(g, shape, axes) / static_cast<double>(count_of(shape, axes));
  return broadcast_to(share, Shape(shape));
}

MIXGRAD_REGISTER_FORWARD(max) { return reduce(op, "maximum"); }
MIXGRAD_REGISTER_GRADIENT(max) { return to_the_chosen(op, g); }

MIXGRAD_REGISTER_FORWARD(min) { return reduce(op, "minimum"); }
MIXGRAD_REGISTER_GRADIENT(min) { return to_the_chosen(op, g); }

}  // namespace mixgrad
