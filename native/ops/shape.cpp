// SPDX-License-Identifier: Apache-2.0
//
// Ops that move elements about. Forwards are views where they can be.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

Shape input_shape(const Call& op) { return Shape(op.input_shape()); }

/// The shape with the axes of these bits left out; declined where one of them is not of length one.
Shape without(const mixgrad_view& v, std::uint64_t axes, const std::int64_t* of) {
  Shape kept;
  for (int i = 0; i < v.ndim; ++i) {
    if (!(axes >> i & 1))
      kept.push_back(of[i]);
    else if (v.shape[i] != 1)
      throw Decline();
  }
  return kept;
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(reshape) {
  if (op.attribute("order", "C") != "C") return decline;
  const Array x = op.input();
  const std::int64_t size = x.size();
  auto shape = op.attribute<Shape>("shape");
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& n : shape) {
    if (n >= 0)
      known *= n;
    else if (n == -1 && !open)
      open = &n;
    else
      return decline;
  }
  if (open) {
    if (known == 0 || size % known != 0) return decline;
    *open = size / known;
    known = size;
  }
  if (known != size) return decline;
  return detail::view_of(contiguous(x), shape, detail::contiguous_strides(shape, item_size(x.dtype())));
}

MIXGRAD_REGISTER_GRADIENT(reshape) {
  if (op.attribute("order", "C") != "C") return decline;
  return reshape(g, input_shape(op));
}

MIXGRAD_REGISTER_FORWARD(transpose) {
  const Array x = op.input();
  const mixgrad_view v = x.view();
  const auto axes = op.attribute<std::optional<Shape>>("axes");
  if (axes && axes->size() != static_cast<std::size_t>(v.ndim)) return decline;
  Shape shape, strides;
  std::uint64_t seen = 0;
  for (int i = 0; i < v.ndim; ++i) {
    std::int64_t axis = axes ? (*axes)[static_cast<std::size_t>(i)] : v.ndim - 1 - i;
    if (axis < 0) axis += v.ndim;
    if (axis < 0 || axis >= v.ndim || (seen >> axis & 1)) return decline;
    seen |= std::uint64_t{1} << axis;
    shape.push_back(v.shape[axis]);
    strides.push_back(v.strides[axis]);
  }
  return detail::view_of(x, shape, strides);
}

MIXGRAD_REGISTER_GRADIENT(transpose) {
  const auto axes = op.attribute<std::optional<Shape>>("axes");
  if (!axes) return transpose(g);
  Shape back(axes->size(), 0);
  for (std::size_t i = 0; i < axes->size(); ++i)
    back[detail::axis_index((*axes)[i], static_cast<std::int64_t>(axes->size()))] = static_cast<std::int64_t>(i);
  return transpose(g, back);
}

MIXGRAD_REGISTER_FORWARD(expand_dims) {
  const Array x = op.input();
  const mixgrad_view v = x.view();
  const auto axes = op.attribute<Shape>("axis");
  const std::size_t ndim = static_cast<std::size_t>(v.ndim) + axes.size();
  const std::uint64_t added = op.axes("axis", ndim);
  Shape shape, strides;
  for (std::size_t i = 0, from = 0; i < ndim; ++i) {
    const bool is_new = (added >> i & 1) != 0;
    shape.push_back(is_new ? 1 : v.shape[from]);
    strides.push_back(is_new ? 0 : v.strides[from]);
    if (!is_new) ++from;
  }
  return detail::view_of(x, shape, strides);
}

MIXGRAD_REGISTER_GRADIENT(expand_dims) { return reshape(g, input_shape(op)); }

MIXGRAD_REGISTER_FORWARD(squeeze) {
  const Array x = op.input();
  const mixgrad_view v = x.view();
  std::uint64_t axes = 0;
  if (op.attribute("axis").kind == MIXGRAD_ATTRIBUTE_NONE) {
    for (int i = 0; i < v.ndim; ++i)
      if (v.shape[i] == 1) axes |= std::uint64_t{1} << i;
  } else {
    axes = op.axes("axis", static_cast<std::size_t>(v.ndim));
  }
  return detail::view_of(x, without(v, axes, v.shape), without(v, axes, v.strides));
}

MIXGRAD_REGISTER_GRADIENT(squeeze) { return reshape(g, input_shape(op)); }

MIXGRAD_REGISTER_FORWARD(broadcast_to) {
  const Array x = op.input();
  const mixgrad_view v = x.view();
  const auto shape = op.attribute<Shape>("shape");
  const auto ndim = static_cast<std::size_t>(v.ndim);
  if (shape.size() < ndim) return decline;
  const std::size_t lead = shape.size() - ndim;
  Shape strides(shape.size(), 0);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) return decline;
    if (i < lead || (v.shape[i - lead] == 1 && shape[i] != 1)) continue;
    if (v.shape[i - lead] != shape[i]) return decline;
    strides[i] = v.strides[i - lead];
  }
  return detail::view_of(x, shape, strides);
}

// The engine sums.
MIXGRAD_REGISTER_GRADIENT(broadcast_to) { return g; }

MIXGRAD_REGISTER_GRADIENT(copy) { return g; }

// The engine casts back, and takes the real part for a real input.
MIXGRAD_REGISTER_GRADIENT(astype) { return g; }

MIXGRAD_REGISTER_FORWARD(concatenate) {
  if (op.attribute("dtype").kind != MIXGRAD_ATTRIBUTE_NONE) return decline;
  const std::vector<Array> arrays = op.inputs();
  if (arrays.empty()) return decline;
  const mixgrad_view first = arrays[0].view();
  const auto ndim = static_cast<std::size_t>(first.ndim);
  const std::size_t axis = op.axis("axis", ndim);
  Shape shape = detail::shape_of(first);
  shape[axis] = 0;
  for (const Array& array : arrays) {
    const mixgrad_view v = array.view();
    if (v.ndim != first.ndim || v.dtype != first.dtype) return decline;
    for (std::size_t i = 0; i < ndim; ++i)
      if (i != axis && v.shape[i] != shape[i]) return decline;
    shape[axis] += v.shape[axis];
  }
  const auto dtype = static_cast<Dtype>(first.dtype);
  if (!is_differentiable(dtype)) return decline;
  Array out = empty(dtype, shape);
  const Shape strides = detail::contiguous_strides(shape, item_size(dtype));
  std::int64_t offset = 0;
  for (const Array& array : arrays) {
    const std::span<const std::int64_t> part = array.shape();
    kernel::copy(array, strided(out, part, std::span(strides.data(), ndim), offset));
    offset += part[axis] * strides[axis];
  }
  return out;
}

MIXGRAD_REGISTER_GRADIENT(concatenate) {
  const std::size_t n = op.n_inputs();
  std::vector<Array> results(n);
  const bool flat = op.attribute("axis").kind == MIXGRAD_ATTRIBUTE_NONE;
  const std::size_t axis = flat ? 0 : op.axis("axis", g.ndim());
  const mixgrad_view v = g.view();
  Shape places;
  std::vector<Array> pieces;
  if (op.is_recorded()) {
    if (n > MIXGRAD_MAX_NDIM) return decline;
    std::int64_t start = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      const auto shape = op.input_shape(i);
      start += flat ? Shape(shape).product() : shape[axis];
      places.push_back(start);
    }
    pieces = split(g, places, static_cast<std::int64_t>(axis));
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Shape shape(op.input_shape(i));
    Shape part = detail::shape_of(v);
    part[axis] = flat ? shape.product() : shape[axis];
    if (op.needs_gradient(i)) {
      const Array piece =
          pieces.empty() ? strided(g, std::span(part.data(), part.size()), g.strides(), offset) : pieces[i];
      results[i] = flat ? reshape(piece, shape) : piece;
    }
    offset += part[axis] * v.strides[axis];
  }
  return results;
}

MIXGRAD_REGISTER_FORWARD(stack) {
  if (op.attribute("dtype").kind != MIXGRAD_ATTRIBUTE_NONE) return decline;
  const std::vector<Array> arrays = op.inputs();
  if (arrays.empty()) return decline;
  const Dtype dtype = arrays[0].dtype();
  const Shape part(arrays[0].shape());
  if (!is_differentiable(dtype)) return decline;
  const std::size_t axis = op.axis("axis", part.size() + 1);
  for (const Array& array : arrays)
    if (array.dtype() != dtype || !(Shape(array.shape()) == part)) return decline;
  Shape shape = part;
  shape.insert(axis, static_cast<std::int64_t>(arrays.size()));
  Array out = empty(dtype, shape);
  Shape strides = detail::contiguous_strides(shape, item_size(dtype));
  const std::int64_t step = strides[axis];
  strides.erase(axis);
  for (std::size_t i = 0; i < arrays.size(); ++i)
    kernel::copy(arrays[i], strided(out, std::span(part.data(), part.size()), std::span(strides.data(), strides.size()),
                                    static_cast<std::int64_t>(i) * step));
  return out;
}

MIXGRAD_REGISTER_GRADIENT(stack) {
  const std::size_t n = op.n_inputs(), axis = op.axis("axis", g.ndim());
  std::vector<Array> results(n), pieces;
  if (op.is_recorded()) {
    if (n > MIXGRAD_MAX_NDIM) return decline;
    Shape places;
    for (std::size_t i = 1; i < n; ++i) places.push_back(static_cast<std::int64_t>(i));
    pieces = split(g, places, static_cast<std::int64_t>(axis));
  }
  Shape shape(g.shape()), strides(g.strides());
  const std::int64_t step = strides[axis];
  shape.erase(axis);
  strides.erase(axis);
  for (std::size_t i = 0; i < n; ++i) {
    if (!op.needs_gradient(i)) continue;
    results[i] = pieces.empty()
                     ? strided(g, std::span(shape.data(), shape.size()), std::span(strides.data(), strides.size()),
                               static_cast<std::int64_t>(i) * step)
                     : reshape(pieces[i], shape);
  }
  return results;
}

}  // namespace mixgrad
