// SPDX-License-Identifier: Apache-2.0
//
// Ops of neural networks. Real dtypes; a complex call is Python's.
#include "mixgrad/mixgrad.hpp"
#include "vector_math.h"

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

/// Combines n > 0 numbers, in four chains that do not wait for each other.
template <class T, class F>
T combine(const T* from, std::int64_t n, F f) noexcept {
  if (n < 8) {
    T all = from[0];
    for (std::int64_t i = 1; i < n; ++i) all = f(all, from[i]);
    return all;
  }
  T part[4] = {from[0], from[1], from[2], from[3]};
  std::int64_t i = 4;
  for (; i + 4 <= n; i += 4)
    for (std::int64_t k = 0; k < 4; ++k) part[k] = f(part[k], from[i + k]);
  for (; i < n; ++i) part[0] = f(part[0], from[i]);
  return f(f(part[0], part[1]), f(part[2], part[3]));
}

/// A nan may be passed over here: the sum of the exponentials meets it again.
template <class T>
T largest(const T* row, std::int64_t n) noexcept {
  return combine(row, n, [](T a, T b) { return b > a ? b : a; });
}

/// The sum of exp(row - top), whose terms are kept where `terms` is given. In blocks, which lose fewer digits.
template <class T>
T sum_of_exp(const T* row, std::int64_t n, T top, T* terms = nullptr) noexcept {
  constexpr std::int64_t size = 128;
  T own[size], sum = 0;
  for (std::int64_t done = 0; done < n; done += size) {
    const std::int64_t m = n - done < size ? n - done : size;
    T* block = terms ? terms + done : own;
    for (std::int64_t i = 0; i < m; ++i) block[i] = detail::math::exp(row[done + i] - top);
    sum += combine(block, m, [](T a, T b) { return a + b; });
  }
  return sum;
}

/// The sum of a row, in blocks too.
template <class T>
T sum_of(const T* row, std::int64_t n) noexcept {
  T sum = 0;
  for (std::int64_t done = 0; done < n; done += 128)
    sum += combine(row + done, n - done < 128 ? n - done : 128, [](T a, T b) { return a + b; });
  return sum;
}

/// Calls body(row) for each row, on several threads when there is much to do.
template <class Body>
void each_row(const Rows& rows, Body body) {
  parallel_for(rows.count, 1 + kGrain / (rows.classes + 1), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

/// Whether the op goes along the last axis, of an array that has elements and a real dtype.
bool is_last_axis(const Call& op, const Array& x) {
  return x.size() > 0 && x.ndim() > 0 && is_real(x.dtype()) &&
         op.axes("axis", x.ndim()) == std::uint64_t{1} << (x.ndim() - 1);
}

/// body(row, result's row, n) for each row of x along the last axis; any other axis is Python's.
template <class Body>
Results by_rows(const Call& op, const Array& x, Body body) {
  if (!is_last_axis(op, x)) return decline;
  const Array from = contiguous(x);
  Array to = empty_like(from);
  const Rows rows(from);
  dispatch_real(x.dtype(), [&]<class T>() {
    const T* in = from.data<T>();
    T* out = to.mutable_data<T>();
    each_row(rows, [=](std::int64_t row) { body(in + row * rows.classes, out + row * rows.classes, rows.classes); });
  });
  return to;
}

/// body(g's row, the output's row, result's row, n) for each row.
template <class Body>
Results by_rows(const Array& g, const Array& output, Body body) {
  const Array upstream = contiguous(g, output.dtype()), from = contiguous(output);
  Array to = empty_like(from);
  const Rows rows(from);
  dispatch_real(output.dtype(), [&]<class T>() {
    const T *g_in = upstream.data<T>(), *in = from.data<T>();
    T* out = to.mutable_data<T>();
    each_row(rows, [=](std::int64_t row) {
      const std::int64_t at = row * rows.classes;
      body(g_in + at, in + at, out + at, rows.classes);
    });
  });
  return to;
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

MIXGRAD_REGISTER_FORWARD(softmax) {
  return by_rows(op, op.input(), [](const auto* x, auto* out, std::int64_t n) {
    const auto sum = sum_of_exp(x, n, largest(x, n), out);
    for (std::int64_t i = 0; i < n; ++i) out[i] /= sum;
  });
}

MIXGRAD_REGISTER_GRADIENT(softmax) {
  const Array out = op.output();
  if (!op.is_recorded() && is_last_axis(op, out))
    return by_rows(g, out, [](const auto* g_row, const auto* y, auto* result, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) result[i] = g_row[i] * y[i];
      const auto sum = sum_of(result, n);
      for (std::int64_t i = 0; i < n; ++i) result[i] = y[i] * (g_row[i] - sum);
    });
  const Axis axes = Axis::of_bits(op.axes("axis", out.ndim()));
  return out * (g - sum(g * out, {.axis = axes, .keepdims = true}));
}

MIXGRAD_REGISTER_FORWARD(log_softmax) {
  return by_rows(op, op.input(), [](const auto* x, auto* out, std::int64_t n) {
    const auto top = largest(x, n);
    const auto log_sum = detail::math::log(sum_of_exp(x, n, top));
    for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] - top - log_sum;
  });
}

MIXGRAD_REGISTER_GRADIENT(log_softmax) {
  const Array out = op.output();
  if (!op.is_recorded() && is_last_axis(op, out))
    return by_rows(g, out, [](const auto* g_row, const auto* y, auto* result, std::int64_t n) {
      const auto sum = sum_of(g_row, n);
      for (std::int64_t i = 0; i < n; ++i) result[i] = g_row[i] - detail::math::exp(y[i]) * sum;
    });
  const Axis axes = Axis::of_bits(op.axes("axis", out.ndim()));
  return g - exp(out) * sum(g, {.axis = axes, .keepdims = true});
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
      const T sum = sum_of_exp(x_row, rows.classes, top, out_row);
      const T scale = g_in[each ? row : 0] / divisor, share = scale / sum;
      for (std::int64_t i = 0; i < rows.classes; ++i) out_row[i] *= share;
      out_row[label[row]] -= scale;
    });
  });
  return {result, {}};
}

}  // namespace mixgrad
