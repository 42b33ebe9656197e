// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "core/dispatch.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

// The gradients of the op "probe" tell by their value who ran: native gives 2 g, Python 20 g, overrides 200 g and more.

mixgrad_status twice(mixgrad_call* call) {
  const ValueRef& g = call->upstream[0];
  return guarded(MIXGRAD_ERROR, [&] {
    call->results[0] = tests::call("add", {g, g});
    return MIXGRAD_OK;
  });
}
mixgrad_status declines(mixgrad_call*) { return MIXGRAD_DECLINED; }
mixgrad_status fails(mixgrad_call*) {
  PyErr_SetString(PyExc_ValueError, "it failed");
  return MIXGRAD_ERROR;
}

/// An op with gradients in both languages, or in one.
class Probe {
 public:
  explicit Probe(mixgrad_function function, mixgrad_kind kind = MIXGRAD_KIND_GRADIENT)
      : registration_(native("probe", function, kind)) {
    if (function) Registry::instance().add_native(&registration_, "probe");
  }
  Op& operator*() const noexcept { return *op_; }
  Op* operator->() const noexcept { return &*op_; }

 private:
  mixgrad_registration registration_;
  Registered op_{blank_op("probe"), "lambda x: x"};
};

constexpr const char* kPython = "lambda op, g: 20 * g";

/// The gradient of the op at 1, which tells who ran.
double gradient_of(const Op& op) {
  Window window;
  const ValueRef x = window.watch(vector({1}));
  return numbers(window.gradient(call(op, {x}), x))[0];
}

/// One call of a gradient, as the engine makes it.
struct GradientCall : Call {
  GradientCall(const Op& called, std::vector<ValueRef> given, ValueRef output)
      : inputs_(std::move(given)), output_(std::move(output)), results_(inputs_.size()), needs_(inputs_.size(), 1) {
    op = &called;
    for (const ValueRef& input : inputs_) pointers_.push_back(input.get());
    output_pointer_ = output_.get();
    inputs = pointers_;
    outputs = {&output_pointer_, 1};
    upstream = {&output_, 1};
    results = results_;
    needs = needs_;
    attributes = called.defaults.get();
  }
  explicit GradientCall(const Op& called) : GradientCall(called, {vector({1})}, vector({1})) {}
  GradientCall(const GradientCall&) = delete;
  GradientCall& operator=(const GradientCall&) = delete;

 private:
  std::vector<ValueRef> inputs_;
  ValueRef output_;
  Value* output_pointer_;
  std::vector<Value*> pointers_;
  std::vector<ValueRef> results_;
  std::vector<std::uint8_t> needs_;
};

using Texts = std::vector<std::string>;

/// The candidates as text, the chosen one with an arrow.
Texts explained(Call& call) {
  std::vector<Candidate> why;
  choose_gradient(call, &why);
  Texts all;
  for (const Candidate& one : why) all.push_back((one.chosen ? "> " : "") + one.language + ": " + one.verdict);
  return all;
}

Texts explained(const Op& op, bool recorded = false) {
  GradientCall call(op);
  call.recorded = recorded;
  return explained(call);
}

/// An override, or a preference.
struct Override {
  PyObject* op = Py_None;
  std::optional<Language> language = {};
  std::string function = "None", when = "None";
  bool differentiable = true;
};

Ref record(PyObject* previous, const Override& given) {
  const Ref language = evaluate(given.language ? std::to_string(static_cast<int>(*given.language)) : "None"),
            function = evaluate(given.function), when = evaluate(given.when);
  return Ref::steal(Py_BuildValue("(OOOOOOsO)", previous, given.op, language.get(), function.get(),
                                  given.differentiable ? Py_True : Py_False, when.get(), "probe.py:9", Py_None));
}

/// Puts a record in force until the end of the scope.
class Overriding {
 public:
  explicit Overriding(const Override& given) {
    PyObject* previous = nullptr;
    REQUIRE(PyContextVar_Get(overrides::variable, nullptr, &previous) == 0);
    const Ref keep = Ref::steal(previous), made = record(previous, given);
    token_ = Ref::steal(PyContextVar_Set(overrides::variable, made.get()));
    ++overrides::active;
  }
  ~Overriding() {
    --overrides::active;
    PyContextVar_Reset(overrides::variable, token_.get());
  }
  Overriding(const Overriding&) = delete;
  Overriding& operator=(const Overriding&) = delete;

 private:
  Ref token_;
};

TEST_SUITE_BEGIN("dispatch");

TEST_CASE("a few values live in place, more on the heap") {
  Few<std::string, 2> few(2);
  few[1] = "second";
  CHECK(few.size() == 2);
  CHECK(few.data()[1] == "second");
  few.resize(5);
  few[4] = "fifth";
  CHECK(Texts(few.begin(), few.end()) == Texts{"", "", "", "", "fifth"});
}

TEST_CASE_FIXTURE(NoLeaks, "native comes first, then Python") {
  const Probe probe(twice);
  give_python_gradient(*probe, kPython);
  CHECK(gradient_of(*probe) == 2);
  CHECK(explained(*probe) ==
        Texts{"> native: the first that takes this call", "python: not needed: the one above runs"});
  const Implementation &native = probe->of(What::gradient, Language::native),
                       &python = probe->of(What::gradient, Language::python);
  CHECK(native.calls == 1);
  CHECK(python.calls == 0);
  CHECK(native.declined == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "Python runs where nothing native is registered") {
  const Probe probe(nullptr);
  give_python_gradient(*probe, kPython);
  CHECK(gradient_of(*probe) == 20);
  CHECK(explained(*probe) == Texts{"native: not registered", "> python: the first that takes this call"});
}

TEST_CASE_FIXTURE(NoLeaks, "a native gradient may decline once it has seen the call") {
  const Probe probe(declines);
  give_python_gradient(*probe, kPython);
  CHECK(gradient_of(*probe) == 20);
  CHECK(probe->of(What::gradient, Language::native).declined == 1);
  CHECK(probe->of(What::gradient, Language::native).calls == 0);
  CHECK(probe->of(What::gradient, Language::python).calls == 1);
}

TEST_CASE_FIXTURE(NoLeaks, "nothing is left of what a native gradient gave before it declined") {
  mixgrad_registration half = native("probe", [](mixgrad_call* call) {
    call->results[1] = make_scalar(Dtype::float64, 7.0);
    return MIXGRAD_DECLINED;
  });
  const Registered probe(blank_op("probe", {"x", "y"}), "lambda x, y: x + y");
  Registry::instance().add_native(&half, "probe");
  give_python_gradients(*probe, {"lambda g, x, y, out: 20 * g", "zero"});
  Window window;
  const ValueRef x = window.watch(scalar(1)), y = window.watch(scalar(1));
  const auto gradients = window.gradients(call(*probe, {x, y}), {x, y});
  CHECK(numbers(gradients[0]) == Numbers{20});
  CHECK_FALSE(gradients[1]);
}

TEST_CASE_FIXTURE(NoLeaks, "a fallback is told once per op, when asked for") {
  const Probe probe(declines);
  give_python_gradient(*probe, kPython);
  evaluate("__import__('warnings').simplefilter('error', mixgrad.errors.FallbackWarning)");
  tell_fallbacks = true;
  CHECK(raised_by([&] { gradient_of(*probe); }) ==
        doctest::Contains("FallbackWarning: the native gradient of op 'probe' (probe (tests/probe.cpp:7)) declined"));
  CHECK(gradient_of(*probe) == 20);
  tell_fallbacks = false;
}

TEST_CASE_FIXTURE(NoLeaks, "an error of a native gradient arrives as it is") {
  const Probe probe(fails);
  give_python_gradient(*probe, kPython);
  CHECK(raised_by([&] { gradient_of(*probe); }) ==
        doctest::Contains("ValueError: it failed\nwhile computing the gradient of op 'probe' (native, probe "
                          "(tests/probe.cpp:7))"));
}

TEST_CASE_FIXTURE(NoLeaks, "in a recorded pass, only what is differentiable runs") {
  const Probe probe(twice, MIXGRAD_KIND_KERNEL_GRADIENT);
  give_python_gradient(*probe, kPython);
  CHECK(gradient_of(*probe) == 2);
  CHECK(explained(*probe, true) ==
        Texts{"native: declined: first order only, and this backward pass is itself being recorded",
              "> python: the first that takes this call"});
  GradientCall call(*probe);
  call.recorded = true;
  CHECK(choose_gradient(call).implementation == &probe->of(What::gradient, Language::python));
  give_python_gradient(*probe, kPython, false);
  CHECK(raised_by([&] { choose_gradient(call); }) ==
        doctest::Contains("NotDifferentiableError: the gradient of op 'probe' is needed in a backward pass that is "
                          "itself recorded"));
}

TEST_CASE_FIXTURE(NoLeaks, "a condition sees metadata") {
  const Probe probe(twice);
  give_python_gradient(*probe, kPython);
  probe->of(What::gradient, Language::native).when = evaluate("lambda call: call.inputs[0].shape == (2,)");
  CHECK(gradient_of(*probe) == 20);
  CHECK(explained(*probe)[0] == "native: declined: its condition (when=) does not hold");
  GradientCall call(*probe, {vector({1, 2})}, vector({1, 2}));
  CHECK(explained(call)[0] == "> native: the first that takes this call");
}

TEST_CASE_FIXTURE(NoLeaks, "an element-wise gradient takes the dtypes that it has loops for") {
  mixgrad_registration loops = native("probe", twice, MIXGRAD_KIND_ELEMENTWISE);
  loops.n_inputs = 1;
  loops.loops[0][dtype_index(Dtype::float64)] = [](char**, const std::int64_t*, const std::int64_t*, void*) {};
  const Registered probe(blank_op("probe"), "lambda x: x");
  Registry::instance().add_native(&loops, "probe");
  CHECK(explained(*probe)[0] == "> native: the first that takes this call");
  struct Case {
    Dtype input, output;
    std::uint32_t flags;
    const char* verdict;
  };
  const Case cases[] = {
      {Dtype::float32, Dtype::float32, 0, "native: declined: it has no loop for this dtype"},
      {Dtype::int64, Dtype::int64, 0, "native: declined: it has no loop for this dtype"},
      {Dtype::complex128, Dtype::float64, 0, "native: declined: it has no loop for a complex input with a real output"},
      {Dtype::complex128, Dtype::complex128, MIXGRAD_FLAG_REAL_ONLY, "native: declined: it takes real dtypes only"},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.verdict));
    loops.flags = one.flags;
    GradientCall call(*probe, {make_value(one.input, Shape{1})}, make_value(one.output, Shape{1}));
    CHECK(explained(call)[0] == one.verdict);
    CHECK(raised_by([&] { choose_gradient(call); }) ==
          doctest::Contains("MissingGradientError: the gradient of op 'probe' is needed, but none that is registered "
                            "takes this call: native"));
  }
}

TEST_CASE_FIXTURE(NoLeaks, "a missing gradient is an error that says what to do") {
  auto probe = std::make_unique<Probe>(nullptr);
  Op& op = **probe;
  CHECK(explained(op) == Texts{"native: not registered", "python: not registered"});
  const auto raised = raised_by([&] { gradient_of(op); });
  CHECK(raised ==
        doctest::Contains("MissingGradientError: the gradient of op 'probe' is needed, but none is registered"));
  CHECK(raised == doctest::Contains("@mixgrad.register_gradient(\"probe\")"));
  CHECK(raised == doctest::Contains("MIXGRAD_REGISTER_GRADIENT(probe)"));
  probe.reset();
  GradientCall call(op);
  CHECK(raised_by([&] { choose_gradient(call); }) == doctest::Contains("the op has been unregistered"));
}

TEST_CASE_FIXTURE(NoLeaks, "a Python gradient per input: the one that lacks is refused") {
  const Registered probe(blank_op("probe", {"x", "y"}), "lambda x, y: x");
  give_python_gradients(*probe, {"lambda g, x, y, out: 20 * g", "missing"});
  GradientCall call(*probe, {vector({1}), vector({1})}, vector({1}));
  CHECK(explained(call)[1] == "python: declined: it has no gradient for input 1");
  const std::uint8_t first_only[] = {1, 0};
  call.needs = first_only;
  CHECK(explained(call)[1] == "> python: the first that takes this call");
}

TEST_CASE_FIXTURE(NoLeaks, "the innermost override runs, and concerns its op only") {
  const Probe probe(twice);
  give_python_gradient(*probe, kPython);
  const Overriding outer({.op = probe->object, .function = "lambda op, g: 200 * g"});
  CHECK(gradient_of(*probe) == 200);
  {
    const Overriding inner({.op = probe->object, .function = "lambda op, g: 300 * g"});
    CHECK(gradient_of(*probe) == 300);
    CHECK(explained(*probe) == Texts{"> override: the innermost override in force",
                                     "override: an inner override comes first", "native: an override is in force",
                                     "python: an override is in force"});
    CHECK(gradient_of(Registry::instance().get("positive")) == 1);
  }
  CHECK(gradient_of(*probe) == 200);
}

TEST_CASE_FIXTURE(NoLeaks, "an override calls the next, and either language") {
  const Probe probe(twice);
  give_python_gradient(*probe, kPython);
  const Overriding outer({.op = probe->object, .function = "lambda op, g: op.next(g)[0] + 200"});
  const Overriding inner({.op = probe->object, .function = "lambda op, g: op.next(g)[0] + 3000"});
  CHECK(gradient_of(*probe) == 3202);
  const Overriding both({.op = probe->object, .function = "lambda op, g: op.native(g)[0] + op.python(g)[0]"});
  CHECK(gradient_of(*probe) == 22);
}

TEST_CASE_FIXTURE(NoLeaks, "an override obeys its condition, and the rule of recorded passes") {
  const Probe probe(twice);
  const Overriding conditional(
      {.op = probe->object, .function = "lambda op, g: 200 * g", .when = "lambda call: call.inputs[0].shape == (2,)"});
  CHECK(gradient_of(*probe) == 2);
  const Overriding first_order({.op = probe->object, .function = "lambda op, g: 300 * g", .differentiable = false});
  CHECK(gradient_of(*probe) == 300);
  GradientCall call(*probe);
  call.recorded = true;
  CHECK(raised_by([&] { choose_gradient(call); }) ==
        doctest::Contains("NotDifferentiableError: the gradient of op 'probe' is overridden at probe.py:9"));
}

TEST_CASE_FIXTURE(NoLeaks, "an override in force when the op was recorded still counts") {
  const Probe probe(twice);
  Window window;
  const ValueRef x = window.watch(vector({1}));
  std::optional<Overriding> override_function(std::in_place,
                                              Override{.op = probe->object, .function = "lambda op, g: 200 * g"});
  const ValueRef y = call(*probe, {x});
  override_function.reset();
  CHECK(numbers(window.gradient(y, x)) == Numbers{200});
}

TEST_CASE_FIXTURE(NoLeaks, "a standing record comes after those of contexts") {
  const Probe probe(twice);
  probe->standing = record(Py_None, {.op = probe->object, .function = "lambda op, g: op.next(g)[0] + 200"});
  CHECK(gradient_of(*probe) == 202);
  const Overriding context({.op = probe->object, .function = "lambda op, g: op.next(g)[0] + 3000"});
  CHECK(gradient_of(*probe) == 3202);
  probe->standing = {};
  CHECK(gradient_of(*probe) == 3002);
}

TEST_CASE_FIXTURE(NoLeaks, "a preference changes the order, for one op or for all") {
  const Probe probe(twice);
  give_python_gradient(*probe, kPython);
  const Overriding all({.language = Language::python});
  CHECK(gradient_of(*probe) == 20);
  CHECK(explained(*probe) ==
        Texts{"> python: preferred by prefer at probe.py:9", "native: not needed: the one above runs"});
  const Overriding one({.op = probe->object, .language = Language::native});
  CHECK(gradient_of(*probe) == 2);
}

TEST_CASE_FIXTURE(NoLeaks, "a preference for what is not there falls through, counted") {
  const Probe probe(twice);
  probe->preferred = static_cast<int>(Language::python);
  CHECK(gradient_of(*probe) == 2);
  CHECK(probe->of(What::gradient, Language::python).declined == 1);
  CHECK(explained(*probe) == Texts{"python: not registered", "> native: the first that takes this call"});
}

TEST_CASE_FIXTURE(NoLeaks, "forwards: native first, Python where it declines") {
  mixgrad_registration forward = native("probe", declines, MIXGRAD_KIND_FORWARD);
  const Registered probe(blank_op("probe"), "lambda x: 3 * x");
  Registry::instance().add_native(&forward, "probe");
  const Implementation& native = probe->of(What::forward, Language::native);
  CHECK(numbers(call(*probe, {scalar(2)})) == Numbers{6});
  CHECK(native.declined == 1);
  forward.function = [](mixgrad_call* call) {
    call->results[0] = make_scalar(Dtype::float64, 7.0);
    return MIXGRAD_OK;
  };
  CHECK(numbers(call(*probe, {scalar(2)})) == Numbers{7});
  CHECK(native.calls == 1);
  probe->preferred = static_cast<int>(Language::python);
  CHECK(numbers(call(*probe, {scalar(2)})) == Numbers{6});
  probe->preferred = -1;
  forward.function = [](mixgrad_call*) { return MIXGRAD_OK; };
  CHECK(raised_by([&] { call(*probe, {scalar(2)}); }) ==
        "RuntimeError: the native forward of op 'probe' returned nothing");
}

TEST_CASE_FIXTURE(NoLeaks, "Python's numbers take the dtype of what they meet") {
  const ValueRef single = array({2}, {1, 2}, Dtype::float32), two = make_number(2.0, 0.0, false);
  CHECK(call("multiply", {single, two})->dtype == Dtype::float32);
  CHECK(call("multiply", {single, make_number(0.0, 1.0, true)})->dtype == Dtype::complex64);
  CHECK(call("multiply", {single, scalar(2.0)})->dtype == Dtype::float64);
  CHECK(call("multiply", {two, two})->dtype == Dtype::float64);
}

TEST_CASE_FIXTURE(NoLeaks, "an op is recorded when an input is, and saves what is read of it") {
  Tape& tape = Tape::current();
  const Window window;
  const ValueRef x = window.watch(vector({1, 2})), c = vector({3, 4});
  CHECK(call("multiply", {c, c})->position == -1);
  const Entry& product = *tape.at(call("multiply", {x, c})->position);
  CHECK(product.op == &Registry::instance().get("mul"));
  // Only the gradient of x is ever taken, and that reads c.
  CHECK(product.saved == saved_bit(1));
  const Entry& exponential = *tape.at(call("exp", {x})->position);
  CHECK(exponential.saved == kSavedOutput);
  {
    const PausedTape paused(tape);
    CHECK(call("exp", {x})->position == -1);
  }
  const Overriding override_function({.function = "lambda op, g: g"});
  CHECK(tape.at(call("multiply", {x, c})->position)->saved == kSavedAll);
}

TEST_CASE_FIXTURE(NoLeaks, "what a gradient of all inputs from outside may read is saved") {
  auto op = blank_op("probe", {"x", "y"});
  op->reads = {saved_bit(1), saved_bit(0)};
  const Registered probe(std::move(op), "lambda x, y: x + y");
  const Window window;
  const ValueRef x = window.watch(scalar(1));
  const auto saved = [&] { return Tape::current().at(call(*probe, {x, scalar(2)})->position)->saved; };
  CHECK(saved() == saved_bit(1));
  give_python_gradient(*probe, "lambda op, g: (g, g)");
  CHECK(saved() == (saved_bit(0) | saved_bit(1)));
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
