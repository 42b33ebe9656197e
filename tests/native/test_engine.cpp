// SPDX-License-Identifier: Apache-2.0
#include "core/engine.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

TEST_SUITE_BEGIN("engine");

TEST_CASE_FIXTURE(NoLeaks, "the product rule") {
  Window window;
  const ValueRef x = window.watch(vector({2, 3})), y = window.watch(vector({5, 7}));
  const auto gradients = window.gradients(call("multiply", {x, y}), {x, y});
  CHECK(numbers(gradients[0]) == Numbers{5, 7});
  CHECK(numbers(gradients[1]) == Numbers{2, 3});
  CHECK_FALSE(window.recorded());
}

TEST_CASE_FIXTURE(NoLeaks, "contributions of every use are added") {
  Window window;
  const ValueRef x = window.watch(vector({2, 3}));
  const ValueRef square = call("multiply", {x, x});
  const ValueRef y = call("add", {call("multiply", {square, x}), call("add", {x, square})});
  // 3 x^2 + 1 + 2 x
  CHECK(numbers(window.gradient(y, x)) == Numbers{17, 34});
}

TEST_CASE_FIXTURE(NoLeaks, "adding up does not write into what others see") {
  Window window;
  const ValueRef x = window.watch(vector({2, 3}));
  const ValueRef y = call("add", {x, x}), z = call("add", {y, x});
  const auto gradients = window.gradients(z, {x, y, z});
  CHECK(numbers(gradients[0]) == Numbers{3, 3});
  CHECK(numbers(gradients[1]) == Numbers{1, 1});
  CHECK(numbers(gradients[2]) == Numbers{1, 1});
}

TEST_CASE_FIXTURE(NoLeaks, "broadcast axes are summed") {
  struct Case {
    Shape shape;
    Numbers gradient;
  };
  const Case cases[] = {
      {{2, 3}, {1, 2, 3, 4, 5, 6}},
      {{3}, {5, 7, 9}},
      {{1, 3}, {5, 7, 9}},
      {{2, 1}, {6, 15}},
      {{1, 1, 1}, {21}},
      {{}, {21}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.shape);
    Window window;
    const std::size_t size = one.gradient.size();
    const ValueRef x = window.watch(array(one.shape, Numbers(size, 1.0)));
    const ValueRef gradient = window.gradient(call("multiply", {x, array({2, 3}, {1, 2, 3, 4, 5, 6})}), x);
    CHECK(shape(gradient) == one.shape);
    CHECK(numbers(gradient) == one.gradient);
  }
}

TEST_CASE_FIXTURE(NoLeaks, "a gradient has the dtype of its input") {
  Window window;
  const ValueRef single = window.watch(array({2}, {1, 2}, Dtype::float32));
  const ValueRef gradient = window.gradient(call("multiply", {single, vector({3, 4})}), single);
  CHECK(gradient->dtype == Dtype::float32);
  CHECK(numbers(gradient) == Numbers{3, 4});
  Window other;
  const ValueRef x = other.watch(vector({1, 2}));
  const ValueRef real = other.gradient(call("multiply", {x, make_scalar(Dtype::complex128, 3.0, 4.0)}), x);
  CHECK(real->dtype == Dtype::float64);
  CHECK(numbers(real) == Numbers{3, 3});
}

TEST_CASE_FIXTURE(NoLeaks, "several outputs: zeros for one that nobody used") {
  auto op = blank_op("probe");
  op->multiple = true;
  const Registered probe(std::move(op), "lambda x: (x[:1] + 1, 2 * x[1:])");
  give_python_gradient(*probe, "lambda op, g: np.concatenate([g[0], 2 * g[1]])");
  Window window;
  const ValueRef x = window.watch(vector({1, 2, 3}));
  const auto parts = call_all(*probe, {x});
  REQUIRE(parts.size() == 2);
  CHECK(numbers(parts[1]) == Numbers{4, 6});
  CHECK(numbers(window.gradient(parts[0], x)) == Numbers{1, 0, 0});
  CHECK(numbers(window.gradient(parts[1], x)) == Numbers{0, 2, 2});

  Window both;
  const ValueRef y = both.watch(vector({1, 2, 3}));
  const auto halves = call_all(*probe, {y});
  const ValueRef product = call("multiply", {halves[0], halves[1]});
  // (x0 + 1) 2 (x1 + x2)
  const auto gradients = both.gradients(product, {y, halves[1]});
  CHECK(numbers(gradients[0]) == Numbers{10, 4, 4});
  CHECK(numbers(gradients[1]) == Numbers{2, 2});
}

TEST_CASE_FIXTURE(NoLeaks, "what is not connected has no gradient; what the target is has 1") {
  Window window;
  const ValueRef x = window.watch(scalar(2)), y = window.watch(scalar(3));
  const ValueRef square = call("multiply", {x, x});
  const auto gradients = window.gradients(square, {y, square, x});
  CHECK_FALSE(gradients[0]);
  CHECK(numbers(gradients[1]) == Numbers{1});
  CHECK(numbers(gradients[2]) == Numbers{4});
  CHECK_FALSE(window.gradient(scalar(1), x));
}

TEST_CASE_FIXTURE(NoLeaks, "only what lies between source and target is visited") {
  const Registered probe(blank_op("probe"), "lambda x: x");
  give_python_gradient(*probe, "lambda op, g: 1 / 0");
  Window window;
  const ValueRef x = window.watch(scalar(2));
  const ValueRef y = call(*probe, {x});
  const ValueRef z = call("multiply", {y, y});
  call(*probe, {z});
  CHECK(numbers(window.gradient(z, y)) == Numbers{4});
  CHECK(probe->of(What::gradient, Language::python).calls == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "a gradient that breaks the contract is refused, and the tape is usable afterwards") {
  struct Case {
    const char *gradient, *raised;
  };
  const Case cases[] = {
      {"lambda op, g: (g, g)",
       "GradientCountError: the gradient of op 'probe' (python, probe.py:3) returned 2 values, but the op has 1 input"},
      {"lambda op, g: None",
       "GradientCountError: the gradient of op 'probe' (python, probe.py:3) returned nothing (None) for input 0"},
      {"lambda op, g: np.ones(5)",
       "GradientShapeError: the gradient of op 'probe' (python, probe.py:3) returned shape (5,) for input 0, which has "
       "shape (2,)"},
      {"lambda op, g: g > 0",
       "GradientDtypeError: the gradient of op 'probe' (python, probe.py:3) returned dtype bool for input 0"},
      {"lambda op, g: 1 / 0", "ZeroDivisionError: division by zero\nwhile computing the gradient of op 'probe'"},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.gradient));
    const Registered probe(blank_op("probe"), "lambda x: 3 * x");
    give_python_gradient(*probe, one.gradient);
    Window window;
    const ValueRef x = window.watch(vector({1, 2}));
    const ValueRef y = call(*probe, {x}), z = call("multiply", {x, x});
    CHECK(raised_by([&] { window.gradient(y, x); }) == doctest::Contains(one.raised));
    CHECK(Tape::current().walks == 0);
    CHECK(numbers(window.gradient(z, x)) == Numbers{2, 4});
    give_python_gradient(*probe, "lambda op, g: 3 * g");
    CHECK(numbers(window.gradient(y, x)) == Numbers{3, 3});
  }
}

TEST_CASE_FIXTURE(NoLeaks, "the engine sums for an op that broadcasts, to a shape that does, and in no other case") {
  struct Case {
    bool broadcasts;
    Numbers x, gradient;
    const char* raised;
  };
  const Case cases[] = {
      {true, {1}, {3}, "nothing"},
      {false, {1}, {}, "returned shape (3,) for input 0, which has shape (1,); return the input's shape\n"},
      {true, {1, 2, 3, 4}, {}, "returned shape (3,) for input 0, which has shape (4,)"},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.raised));
    auto op = blank_op("probe", {"x", "y"});
    op->broadcasts = one.broadcasts;
    const Registered probe(std::move(op), "lambda x, y: x[0] + y");
    give_python_gradient(*probe, "lambda op, g: (g, g)");
    Window window;
    const ValueRef x = window.watch(vector(one.x)), y = call(*probe, {x, vector({1, 2, 3})});
    Numbers gradient;
    CHECK(raised_by([&] { gradient = numbers(window.gradient(y, x)); }) == doctest::Contains(one.raised));
    CHECK(gradient == one.gradient);
  }
}

/// The derivative of x^4 of an order, one window in another.
ValueRef derivative(int order, const ValueRef& x) {
  if (order == 0) return call("multiply", {call("multiply", {x, x}), call("multiply", {x, x})});
  Window window;
  const ValueRef y = window.watch(x);
  const ValueRef gradient = window.gradient(derivative(order - 1, y), y);
  CHECK(window.recorded() == (Tape::current().recording() != 0));
  return gradient;
}

TEST_CASE_FIXTURE(NoLeaks, "gradients of gradients") {
  CHECK(numbers(derivative(1, scalar(2))) == Numbers{32});
  CHECK(numbers(derivative(2, scalar(2))) == Numbers{48});
  CHECK(numbers(derivative(3, scalar(2))) == Numbers{48});
  CHECK(numbers(derivative(4, scalar(2))) == Numbers{24});
}

TEST_CASE_FIXTURE(NoLeaks, "nested derivatives of one variable do not mix") {
  Window outer;
  const ValueRef x = outer.watch(scalar(3));
  Window inner;
  const ValueRef y = inner.watch(x);
  const ValueRef gradient = inner.gradient(call("multiply", {x, y}), y);
  CHECK(numbers(gradient) == Numbers{3});
  CHECK(inner.recorded());
  CHECK(numbers(outer.gradient(gradient, x)) == Numbers{1});
}

TEST_CASE_FIXTURE(NoLeaks, "broadcasting and casts in a recorded pass") {
  Window outer;
  const ValueRef x = outer.watch(array({1, 2}, {2, 3}, Dtype::float32));
  Window inner;
  const ValueRef y = inner.watch(x);
  const ValueRef cube = call("multiply", {call("multiply", {y, y}), call("multiply", {y, array({2, 1}, {1, 10})})});
  const ValueRef first = inner.gradient(cube, y);
  CHECK(first->dtype == Dtype::float32);
  CHECK(numbers(first) == Numbers{132, 297});
  const ValueRef second = outer.gradient(first, x);
  CHECK(shape(second) == Shape{1, 2});
  CHECK(numbers(second) == Numbers{132, 198});
}

TEST_CASE_FIXTURE(NoLeaks, "a greedy window has gradients of what was recorded before it") {
  Window before;
  const ValueRef x = before.watch(vector({2, 3}));
  Window greedy(true);
  const ValueRef y = call("multiply", {x, x});
  CHECK(numbers(greedy.gradient(y, x)) == Numbers{4, 6});
}

TEST_CASE_FIXTURE(NoLeaks, "a pass that keeps nothing frees entries as it goes") {
  Window window;
  const ValueRef x = window.watch(scalar(2));
  const std::int64_t entries = counters.entries;
  const ValueRef y = call("exp", {call("multiply", {x, x})});
  CHECK(counters.entries == entries + 2);
  window.gradients(y, {x});
  CHECK(counters.entries == entries + 2);
  window.gradients(y, {x}, false);
  CHECK(counters.entries == entries);
}

TEST_CASE_FIXTURE(NoLeaks, "an array that was changed since it was recorded is refused") {
  Window window;
  const ValueRef x = window.watch(scalar(2)), array = foreign("np.ones(5000)");
  const ValueRef y = call("multiply", {x, array});
  CHECK(numbers(window.gradient(y, x)) == Numbers{5000});
  reinterpret_cast<double*>(array->data)[0] = 7.0;
  CHECK(raised_by([&] { window.gradient(y, x); }) ==
        doctest::Contains("MutatedInputError: input 1 of op 'multiply' was changed in place"));
}

TEST_CASE_FIXTURE(NoLeaks, "g is given the target's shape and dtype") {
  const ValueRef target = array({2}, {1, 2}, Dtype::float32);
  const ValueRef g = fit_upstream(scalar(3), *target, Tape::current());
  CHECK(g->dtype == Dtype::float32);
  CHECK(numbers(g) == Numbers{3, 3});
  const ValueRef fits = array({2}, {5, 6}, Dtype::float32);
  CHECK(fit_upstream(fits, *target, Tape::current()).get() == fits.get());
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
