// SPDX-License-Identifier: Apache-2.0
//
// Indexing and the scatter that undoes it: basic indices, and one array of integers on the first axis.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

/// The part that a basic index selects, as a view; empty for any other index.
Array basic_part(const Array& base, const Call& op) {
  mixgrad_array* part = nullptr;
  const mixgrad_status status = api()->array_index(base.handle(), op.handle(), "index", &part);
  if (status == MIXGRAD_ERROR) throw Error();
  return Array::own(status == MIXGRAD_OK ? part : nullptr);
}

/// The index, where it is an array of integers that all fit an axis of this length; else empty.
Array integers(const Call& op, std::int64_t length) {
  const mixgrad_attribute index = op.attribute("index");
  if (index.kind != MIXGRAD_ATTRIBUTE_ARRAY) return {};
  api()->array_retain(index.array);
  const Array array = Array::own(index.array);
  if (array.dtype() != Dtype::int64) return {};
  Array places = contiguous(array);
  // One question about all of them: this loop is vectorised.
  bool fit = true;
  for (const std::int64_t i : places.elements<std::int64_t>()) fit = fit & (i >= -length) & (i < length);
  return fit ? places : Array();
}

/// Rows of one array that are picked by integers from another: how many, and how large.
struct Rows {
  Shape shape;
  std::int64_t items;
};

Rows rows_of(std::span<const std::int64_t> base, const Array& places) {
  Rows rows{Shape(places.shape()), 1};
  for (std::size_t i = 1; i < base.size(); ++i) {
    rows.shape.push_back(base[i]);
    rows.items *= base[i];
  }
  return rows;
}

Array gather(const Array& base, const Array& places) {
  const mixgrad_view v = base.view();
  const Rows rows = rows_of(base.shape(), places);
  Array out = empty(static_cast<Dtype>(v.dtype), rows.shape);
  return dispatch(base.dtype(), [&]<class T>() {
    const T* from = base.data<T>();
    T* to = out.mutable_data<T>();
    if (rows.items == 1) {
      for (const std::int64_t i : places.elements<std::int64_t>()) *to++ = from[i < 0 ? i + v.shape[0] : i];
      return out;
    }
    for (const std::int64_t i : places.elements<std::int64_t>()) {
      const T* row = from + (i < 0 ? i + v.shape[0] : i) * rows.items;
      __builtin_memcpy(to, row, static_cast<std::size_t>(rows.items) * sizeof(T));
      to += rows.items;
    }
    return out;
  });
}

/// Zeros, to which `values` are added at the index; empty where the index is of another kind.
Array scatter(const Array& values, const Shape& shape, const Call& op) {
  const Dtype dtype = values.dtype();
  if (!is_differentiable(dtype)) return {};
  Array out = zeros(dtype, shape);
  if (const Array part = basic_part(out, op); !part.empty()) {
    const auto to = part.shape(), from = values.shape();
    if (from.size() > to.size()) return {};
    for (std::size_t i = 0; i < from.size(); ++i)
      if (from[i] != 1 && from[i] != to[to.size() - from.size() + i]) return {};
    kernel::copy(values, part);
    return out;
  }
  if (shape.empty()) return {};
  const Array places = integers(op, shape[0]);
  if (places.empty()) return {};
  const Rows rows = rows_of(std::span(shape.data(), shape.size()), places);
  if (!(Shape(values.shape()) == rows.shape)) return {};
  const Array packed = contiguous(values);
  return dispatch(dtype, [&]<class T>() {
    const T* from = packed.data<T>();
    T* to = out.mutable_data<T>();
    if (rows.items == 1) {
      for (const std::int64_t i : places.elements<std::int64_t>()) {
        T& sum = to[i < 0 ? i + shape[0] : i];
        sum = (Scalar<T>(sum) + Scalar<T>(*from++)).value;
      }
      return out;
    }
    for (const std::int64_t i : places.elements<std::int64_t>()) {
      T* row = to + (i < 0 ? i + shape[0] : i) * rows.items;
      for (std::int64_t k = 0; k < rows.items; ++k) row[k] = (Scalar<T>(row[k]) + Scalar<T>(from[k])).value;
      from += rows.items;
    }
    return out;
  });
}

/// What an index selects; empty where it is of another kind.
Array select(const Array& a, const Call& op) {
  if (const Array part = basic_part(a, op); !part.empty()) return part;
  const mixgrad_view v = a.view();
  if (v.ndim == 0 || !v.contiguous) return {};
  const Array places = integers(op, v.shape[0]);
  return places.empty() ? Array() : gather(a, places);
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(getitem) {
  const Array part = select(op.input(), op);
  if (part.empty()) return decline;
  return part;
}

MIXGRAD_REGISTER_GRADIENT(getitem) {
  const Shape shape(op.input_shape());
  if (!op.is_recorded())
    if (const Array out = scatter(g, shape, op); !out.empty()) return out;
  static constinit detail::NamedOp index_add{"index_add"};
  return index_add(g, {op.pass("index"), {"shape", shape}});
}

MIXGRAD_REGISTER_FORWARD(index_add) {
  const Array out = scatter(op.input(), op.attribute<Shape>("shape"), op);
  if (out.empty()) return decline;
  return out;
}

MIXGRAD_REGISTER_GRADIENT(index_add) {
  static constinit detail::NamedOp getitem{"getitem"};
  Array part;
  if (!op.is_recorded()) part = select(g, op);
  if (part.empty()) part = getitem(g, {op.pass("index")});
  // Values that were broadcast are Python's.
  if (!(Shape(part.shape()) == Shape(op.input_shape()))) return decline;
  return part;
}

}  // namespace mixgrad
