// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the core share.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"

/// So that a failed comparison shows the elements.
template <class T>
struct doctest::StringMaker<std::vector<T>> {
  static String convert(const std::vector<T>& elements) {
    String text = "{";
    for (std::size_t i = 0; i < elements.size(); ++i) text += (i ? ", " : "") + toString(elements[i]);
    return text + "}";
  }
};

namespace mixgrad::tests {

using namespace core;

using Shape = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

/// A fixture: no test leaves more live objects than there were before.
class NoLeaks {
 public:
  NoLeaks() = default;
  ~NoLeaks();
  NoLeaks(const NoLeaks&) = delete;
  NoLeaks& operator=(const NoLeaks&) = delete;

 private:
  Counters before_ = counters;
};

// --- values ---------------------------------------------------------------------------------------------------------

ValueRef array(const Shape& shape, const Numbers& numbers, Dtype dtype = Dtype::float64);
ValueRef vector(const Numbers& numbers);
ValueRef scalar(double number);
/// The elements in C order, whatever the layout and dtype; of complex ones the real parts.
Numbers numbers(const ValueRef& value);
/// The value of a Python expression: of an ndarray, which may change it.
ValueRef foreign(const std::string& expression);
Shape shape(const ValueRef& value);

// --- Python ---------------------------------------------------------------------------------------------------------

/// The value of a Python expression, in which `mixgrad` and `np` are known.
Ref evaluate(const std::string& expression);
/// The class, message and notes of the Python exception that `body` raises; "nothing" when it raises none.
doctest::String raised_by(const std::function<void()>& body);

// --- ops ------------------------------------------------------------------------------------------------------------

/// Runs an op through the dispatcher, and records it.
std::vector<ValueRef> call_all(const Op& op, std::vector<ValueRef> inputs);
ValueRef call(const Op& op, std::vector<ValueRef> inputs);
ValueRef call(const char* op, std::vector<ValueRef> inputs);

/// An op without implementations.
std::unique_ptr<Op> blank_op(const std::string& name, const std::vector<std::string>& inputs = {"x"},
                             const std::vector<std::string>& aliases = {});
/// A native implementation; its file and line are probe.cpp:7.
mixgrad_registration native(const char* op, mixgrad_function function, mixgrad_kind kind = MIXGRAD_KIND_GRADIENT);

/// Gives the op a gradient `lambda op, g: ...` of all its inputs.
void give_python_gradient(Op& op, const Ref& function, bool differentiable = true);
void give_python_gradient(Op& op, const std::string& function, bool differentiable = true);
/// Gives the op a gradient per input: `lambda g, *inputs, out: ...`, "zero", or "missing".
void give_python_gradients(Op& op, const std::vector<std::string>& functions);

/// An op of the one registry, removed with this object. Its Python forward is an expression.
class Registered {
 public:
  Registered(std::unique_ptr<Op> op, const std::string& forward);
  ~Registered() { Registry::instance().remove(op_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  Op& operator*() const noexcept { return op_; }
  Op* operator->() const noexcept { return &op_; }

 private:
  Op& op_;
};

// --- the tape -------------------------------------------------------------------------------------------------------

/// A window of this thread's tape, as mixgrad.Tape is one.
class Window {
 public:
  explicit Window(bool greedy = false);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  ValueRef watch(const ValueRef& source) const;
  /// Ends recording, and gives the gradients of the target's sum; null where not connected.
  std::vector<ValueRef> gradients(const ValueRef& target, std::vector<ValueRef> sources, bool keep = true);
  ValueRef gradient(const ValueRef& target, const ValueRef& source) { return gradients(target, {source})[0]; }
  void stop();

  int bit() const noexcept { return bit_; }
  Position start() const noexcept { return start_; }
  /// Whether the backward pass that ran last was itself recorded.
  bool recorded() const noexcept { return recorded_; }

 private:
  Tape& tape_ = Tape::current();
  int bit_ = tape_.open_window();
  Position start_ = tape_.next();
  Position end_ = -1;  ///< -1: it is recording
  bool greedy_;
  bool recorded_ = false;
};

}  // namespace mixgrad::tests
