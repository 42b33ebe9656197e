// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <pybind11/eval.h>

#include <algorithm>

#include "core/convert.h"
#include "core/op.h"

namespace mixgrad::tests {

namespace py = pybind11;

NoLeaks::~NoLeaks() {
  CHECK(counters.buffers == before_.buffers);
  CHECK(counters.buffer_bytes == before_.buffer_bytes);
  CHECK(counters.values == before_.values);
  CHECK(counters.arrays == before_.arrays);
  CHECK(counters.entries == before_.entries);
}

// --- values ---------------------------------------------------------------------------------------------------------

ValueRef array(const Shape& shape, const Numbers& numbers, Dtype dtype) {
  const ValueRef value = make_value(Dtype::float64, shape);
  REQUIRE(value->size == static_cast<std::int64_t>(numbers.size()));
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<double*>(value->data));
  return cast(value, dtype);
}

ValueRef vector(const Numbers& numbers) { return array({static_cast<std::int64_t>(numbers.size())}, numbers); }

ValueRef scalar(double number) { return make_scalar(Dtype::float64, number); }

Numbers numbers(const ValueRef& value) {
  const ValueRef copy = copy_of(*cast(value, Dtype::float64));
  const auto* first = reinterpret_cast<const double*>(copy->data);
  return {first, first + copy->size};
}

ValueRef foreign(const std::string& expression) { return to_value(evaluate(expression).get(), "an operand"); }

Shape shape(const ValueRef& value) { return {value->shape_span().begin(), value->shape_span().end()}; }

// --- Python ---------------------------------------------------------------------------------------------------------

Ref evaluate(const std::string& expression) {
  py::dict names;
  names["mixgrad"] = py::module_::import("mixgrad");
  names["np"] = py::module_::import("numpy");
  return Ref::steal(py::eval(expression, names).release().ptr());
}

doctest::String raised_by(const std::function<void()>& body) {
  try {
    body();
  } catch (const PythonError&) {
    const py::error_already_set error;
    std::string text = py::str("{}: {}").format(error.type().attr("__name__"), error.value());
    for (const py::handle note : py::getattr(error.value(), "__notes__", py::list()))
      text += "\n" + note.cast<std::string>();
    return text.c_str();
  }
  return "nothing";
}

// --- ops ------------------------------------------------------------------------------------------------------------

std::vector<ValueRef> call_all(const Op& op, std::vector<ValueRef> inputs) {
  Results results;
  run(op, inputs, op.defaults.get(), results);
  return {results.values.begin(), results.values.end()};
}

ValueRef call(const Op& op, std::vector<ValueRef> inputs) { return call_all(op, std::move(inputs))[0]; }

ValueRef call(const char* op, std::vector<ValueRef> inputs) {
  return call(Registry::instance().get(op), std::move(inputs));
}

std::unique_ptr<Op> blank_op(const std::string& name, const std::vector<std::string>& inputs,
                             const std::vector<std::string>& aliases) {
  auto op = std::make_unique<Op>();
  op->name = name;
  op->name_object = evaluate("'" + name + "'");
  op->input_names = inputs;
  op->aliases = aliases;
  op->defaults = evaluate("()");
  return op;
}

mixgrad_registration native(const char* op, mixgrad_function function, mixgrad_kind kind) {
  mixgrad_registration registration{};
  registration.struct_size = sizeof registration;
  registration.kind = kind;
  registration.op = op;
  registration.function = function;
  registration.file = "/somewhere/tests/probe.cpp";
  registration.line = 7;
  return registration;
}

namespace {

void give(Op& op, std::shared_ptr<PythonGradient> gradient, bool differentiable) {
  gradient->origin = "probe.py:3";
  Implementation& implementation = op.of(What::gradient, Language::python);
  implementation.language = Language::python;
  implementation.present = true;
  implementation.differentiable = differentiable;
  implementation.origin = gradient->origin;
  implementation.gradient = std::move(gradient);
  op.update_whole_reads();
}

}  // namespace

void give_python_gradient(Op& op, const Ref& function, bool differentiable) {
  auto gradient = std::make_shared<PythonGradient>();
  gradient->whole = function;
  give(op, std::move(gradient), differentiable);
}

void give_python_gradient(Op& op, const std::string& function, bool differentiable) {
  give_python_gradient(op, evaluate(function), differentiable);
}

void give_python_gradients(Op& op, const std::vector<std::string>& functions) {
  using State = ArgumentGradient::State;
  auto gradient = std::make_shared<PythonGradient>();
  for (const std::string& function : functions) {
    ArgumentGradient& argument = gradient->arguments.emplace_back();
    argument.state = function == "missing" ? State::missing : function == "zero" ? State::zero : State::function;
    if (argument.state == State::function) argument.function.callable = evaluate(function);
  }
  give(op, std::move(gradient), true);
}

namespace {

Op& add_with_forward(std::unique_ptr<Op> op, const std::string& forward) {
  Implementation& python = op->of(What::forward, Language::python);
  python.language = Language::python;
  python.present = true;
  python.origin = "probe.py:1";
  python.forward = evaluate(forward);
  Op& added = Registry::instance().add(std::move(op), false);
  added.object = make_op_object(added).release();
  return added;
}

}  // namespace

Registered::Registered(std::unique_ptr<Op> op, const std::string& forward)
    : op_(add_with_forward(std::move(op), forward)) {}

// --- the tape -------------------------------------------------------------------------------------------------------

Window::Window(bool greedy) : greedy_(greedy) {
  if (greedy) tape_.set_greedy(bit_, true);
}

Window::~Window() {
  stop();
  if (end_ > start_) tape_.drop(bit_, start_, end_);
}

void Window::stop() {
  if (end_ >= 0) return;
  end_ = tape_.next();
  tape_.close_window(bit_);
}

ValueRef Window::watch(const ValueRef& source) const {
  ValueRef value = make_alias(*source);
  const Mask outer = tape_.live(*source);
  value->windows = outer | Mask{1} << bit_;
  value->position = tape_.next();
  value->tape = tape_.id();
  Entry& entry = tape_.push(value->windows, 1, outer ? 1 : 0);
  Value* const before[] = {source.get()};
  if (outer) fill(entry, nullptr, before, 0);
  entry.watcher = static_cast<std::int16_t>(bit_);
  entry.output = value.get();
  value->retain();
  return value;
}

std::vector<ValueRef> Window::gradients(const ValueRef& target, std::vector<ValueRef> sources, bool keep) {
  stop();
  const ValueRef targets[] = {target}, upstream[] = {fit_upstream(scalar(1.0), *target, tape_)};
  return run_backward({tape_, bit_, start_, end_, greedy_, keep, targets, upstream, sources}, recorded_);
}

}  // namespace mixgrad::tests
