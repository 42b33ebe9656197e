// SPDX-License-Identifier: Apache-2.0
//
// Ops of neural networks. Real dtypes; a complex call is Python's.
#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

// Elements below which a second thread costs more than it brings.
constexpr std::int64_t kGrain = 1 << 15;

/// f of every element.
template <class F>
Array map(const Array& x, F f) {
  const Array from = contiguous(x);
  Array to = empty_like(from);
  dispatch_real(x.dtype(), [&]<class T>() {
    const T* in = from.data<T>();
    T* out = to.mutable_data<T>();
    parallel_for(from.size(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(Scalar<T>(in[i])).value;
    });
  });
  return to;
}

/// The rows along the last axis of a contiguous array.
struct Rows {
  explicit Rows(const Array& x) : classes(x.shape(-1)), count(classes ? x.size() / classes : 0) {}
  std::int64_t classes, count;
};

template <class T>
T largest(const T* row, std::int64_t n) noexcept {
  T top = row[0];
  for (std::int64_t i = 1; i < n; ++i) top = row[i] > top || row[i] != row[i] ? row[i] : top;
  return top;
}

template <class T>
T sum_of_exp(const T* row, std::int64_t n, T top) noexcept {
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += detail::math::exp(row[i] - top);
  return sum;
}

/// Calls body(row) for each row, on several threads when there is much to do.
template <class Body>
void each_row(const Rows& rows, Body body) {
  parallel_for(rows.count, 1 + kGrain / (rows.classes + 1), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

enum class Reduction { mean, sum, none };

Reduction reduction_of(const Call& op) {
  const std::string name = op.attribute("reduction", "mean");
  if (name == "mean") return Reduction::mean;
  if (name == "sum") return Reduction::sum;
  if (name == "none") return Reduction::none;
  throw Decline();
}

/// Labels that are classes, one per row: checked, contiguous, int64. Anything else is Python's, its errors too.
Array classes_of(const Array& logits, const Array& labels) {
  const auto shape = logits.shape(), rows = labels.shape();
  if (shape.empty() || rows.size() + 1 != shape.size()) throw Decline();
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != shape[i]) throw Decline();
  switch (labels.dtype()) {
    case Dtype::boolean:
    case Dtype::uint64:
    case Dtype::float32:
    case Dtype::float64:
    case Dtype::complex64:
    case Dtype::complex128:
      throw Decline();
    default:
      break;
  }
  Array classes = contiguous(labels, Dtype::int64);
  for (const std::int64_t label : classes.elements<std::int64_t>())
    if (label < 0 || label >= shape.back()) throw Decline();
  return classes;
}

}  // namespace

MIXGRAD_REGISTER_FORWARD(relu) {
  // A nan comes through.
  return map(op.input(), [](auto x) { return where(x <= 0, 0, x); });
}

static const Elementwise relu_{"relu", real_only, [](auto g, auto, auto out) { return where(out > 0, g, 0); }};

MIXGRAD_REGISTER_FORWARD(sigmoid) {
  return map(op.input(), [](auto x) { return sigmoid(x); });
}

static const Elementwise sigmoid_{"sigmoid", real_only, [](auto g, auto, auto out) { return g * (out * (1 - out)); }};

MIXGRAD_REGISTER_FORWARD(log_softmax) {
  const Array x = op.input();
  if (x.ndim() == 0 || x.size() == 0) return decline;
  if (op.axes("axis", x.ndim()) != std::uint64_t{1} << (x.ndim() - 1)) return decline;
  const Array from = contiguous(x);
  Array to = empty_like(from);
  dispatch_real(x.dtype(), [&]<class T>() {
    const Rows rows(from);
    const T* in = from.data<T>();
    T* out = to.mutable_data<T>();
    each_row(rows, [=](std::int64_t row) {
      const T* x_row = in + row * rows.classes;
      T* out_row = out + row * rows.classes;
      const T top = largest(x_row, rows.classes);
      const T log_sum = detail::math::log(sum_of_exp(x_row, rows.classes, top));
      for (std::int64_t i = 0; i < rows.classes; ++i) out_row[i] = x_row[i] - top - log_sum;
    });
  });
  return to;
}

MIXGRAD_REGISTER_GRADIENT(softmax) {
  const Array out = op.output();
  const std::uint64_t axes = op.axes("axis", out.ndim());
  return out * (g - sum(g * out, {.axis = Axis::of_bits(axes), .keepdims = true}));
}

MIXGRAD_REGISTER_GRADIENT(log_softmax) {
  const Array out = op.output();
  const std::uint64_t axes = op.axes("axis", out.ndim());
  return g - exp(out) * sum(g, {.axis = Axis::of_bits(axes), .keepdims = true});
}

MIXGRAD_REGISTER_FORWARD(softmax_cross_entropy) {
  const Array logits = op.input(0);
  const Array labels = classes_of(logits, op.input(1));
  const Reduction reduction = reduction_of(op);
  if (logits.size() == 0) return decline;
  const Array from = contiguous(logits);
  const Rows rows(from);
  return dispatch_real(logits.dtype(), [&]<class T>() -> Array {
    Array losses = empty(logits.dtype(), labels.shape());
    const T* in = from.data<T>();
    const std::int64_t* label = labels.data<std::int64_t>();
    T* loss = losses.mutable_data<T>();
    each_row(rows, [=](std::int64_t row) {
      const T* x_row = in + row * rows.classes;
      const T top = largest(x_row, rows.classes);
      loss[row] = detail::math::log(sum_of_exp(x_row, rows.classes, top)) - (x_row[label[row]] - top);
    });
    if (reduction == Reduction::none) return losses;
    double total = 0;
    for (std::int64_t row = 0; row < rows.count; ++row) total += static_cast<double>(loss[row]);
    return scalar(logits.dtype(), reduction == Reduction::mean ? total / static_cast<double>(rows.count) : total);
  });
}

MIXGRAD_REGISTER_GRADIENT(softmax_cross_entropy) {
  if (op.needs_gradient(1)) return decline;
  const Array logits = op.input(0);
  const Array labels = classes_of(logits, op.input(1));
  const Reduction reduction = reduction_of(op);
  const Array from = contiguous(logits);
  const Rows rows(from);
  const auto count = static_cast<double>(rows.count);
  if (op.is_recorded()) {
    Array chosen = zeros(logits.dtype(), logits.shape());
    dispatch_real(logits.dtype(), [&]<class T>() {
      T* to = chosen.mutable_data<T>();
      const std::int64_t* label = labels.data<std::int64_t>();
      for (std::int64_t row = 0; row < rows.count; ++row) to[row * rows.classes + label[row]] = 1;
    });
    const Array difference = exp(call("log_softmax", {logits})) - chosen;
    if (reduction == Reduction::none) return {difference * expand_dims(g, -1), {}};
    return {difference * (reduction == Reduction::mean ? g / count : g), {}};
  }
  const Array upstream = contiguous(g, logits.dtype());
  Array result = empty_like(from);
  dispatch_real(logits.dtype(), [&]<class T>() {
    const T* in = from.data<T>();
    const T* g_in = upstream.data<T>();
    const std::int64_t* label = labels.data<std::int64_t>();
    T* out = result.mutable_data<T>();
    const bool each = reduction == Reduction::none;
    const T divisor = reduction == Reduction::mean ? static_cast<T>(count) : T(1);
    each_row(rows, [=](std::int64_t row) {
      const T* x_row = in + row * rows.classes;
      T* out_row = out + row * rows.classes;
      const T top = largest(x_row, rows.classes);
      T sum = 0;
      for (std::int64_t i = 0; i < rows.classes; ++i) sum += out_row[i] = detail::math::exp(x_row[i] - top);
      const T scale = g_in[each ? row : 0] / divisor, share = scale / sum;
      for (std::int64_t i = 0; i < rows.classes; ++i) out_row[i] *= share;
      out_row[label[row]] -= scale;
    });
  });
  return {result, {}};
}

}  // namespace mixgrad
