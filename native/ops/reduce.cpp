// SPDX-License-Identifier: Apache-2.0
//
// Reductions over all axes or some. With `where`, `initial` or another dtype they are Python's.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

/// Whether every element takes part.
bool is_whole(const Call& op) { return op.is_none("where") || op.is("where", true); }

/// Whether nothing but axis and keepdims is given.
bool is_plain(const Call& op) { return is_whole(op) && op.is_none("initial") && op.is_none("dtype"); }

/// A reduction's output (or its gradient) with the reduced axes back, of length one.
Array with_axes(const Array& x, std::span<const std::int64_t> shape, std::uint64_t axes) {
  return x.ndim() == shape.size() ? x : reshape(x, kept(shape, axes));
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
  const std::int64_t elements = count(x.shape(), axes);
  Array out = kernel::reduce("add", x, axes, op.attribute<bool>("keepdims"));
  dispatch(x.dtype(), [&]<class T>() {
    const Scalar<T> divisor(static_cast<double>(elements));
    for (T& item : out.mutable_elements<T>()) item = (Scalar<T>(item) / divisor).value;
  });
  return out;
}

MIXGRAD_REGISTER_GRADIENT(mean) {
  if (!is_whole(op)) return decline;
  const auto shape = op.input_shape();
  const std::uint64_t axes = op.axes("axis", shape.size());
  const Array share = with_axes(g, shape, axes) / static_cast<double>(count(shape, axes));
  return broadcast_to(share, Shape(shape));
}

MIXGRAD_REGISTER_FORWARD(max) { return reduce(op, "maximum"); }
MIXGRAD_REGISTER_GRADIENT(max) { return to_the_chosen(op, g); }

MIXGRAD_REGISTER_FORWARD(min) { return reduce(op, "minimum"); }
MIXGRAD_REGISTER_GRADIENT(min) { return to_the_chosen(op, g); }

}  // namespace mixgrad
