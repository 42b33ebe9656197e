// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/observe.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

/// Looks on until the end of the scope.
class Looking {
 public:
  explicit Looking(std::uint8_t what) noexcept : what_(what) { observe::start(what_); }
  ~Looking() { observe::stop(what_); }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  std::uint8_t what_;
};

std::vector<observe::Event> take_events() {
  std::vector<observe::Event> events = observe::take_events();
  for (const observe::Event& event : events) Ref::steal_or_null(event.where.code);
  return events;
}

/// "multiply forward native", in the order in which they ended.
std::vector<std::string> texts(const std::vector<observe::Event>& events) {
  std::vector<std::string> all;
  for (const observe::Event& event : events)
    all.push_back(event.op->name + " " + to_string(event.what) + " " + observe::to_string(event.by));
  return all;
}

/// What the account knows of a value's buffer.
std::vector<observe::Live> lives_of(std::int64_t bytes) {
  std::vector<observe::Live> all = observe::live_buffers();
  std::erase_if(all, [&](const observe::Live& live) { return live.bytes != bytes; });
  return all;
}

mixgrad_status squared_sum(mixgrad_call* call) {
  return guarded(MIXGRAD_ERROR, [&] {
    const ValueRef x = ValueRef::borrow(call->inputs[0]);
    call->results[0] = tests::call("sum", {tests::call("multiply", {x, x})});
    return MIXGRAD_OK;
  });
}

TEST_SUITE_BEGIN("observe");

TEST_CASE_FIXTURE(NoLeaks, "nothing is noted while nothing looks on") {
  call("exp", {scalar(1.0)});
  CHECK(observe::looking == 0);
  CHECK(observe::take_events().empty());
  CHECK(observe::live_buffers().empty());
  CHECK(observe::last_forward() == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "a profile has every forward and gradient, and who ran it") {
  const Registered probe(blank_op("probe"), "lambda x: 2 * x");
  give_python_gradient(*probe, "lambda op, g: 2 * g");
  const Looking looking(observe::kProfile);
  Window window;
  const ValueRef x = window.watch(vector({1, 2}));
  const ValueRef y = call(*probe, {call("exp", {x})});
  CHECK(texts(take_events()) == std::vector<std::string>{"exp forward native", "probe forward python"});
  window.gradient(y, x);
  CHECK(texts(take_events()) == std::vector<std::string>{"probe gradient python", "exp gradient native"});
  CHECK(observe::take_lost() == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "time and memory are told with and without what ran inside") {
  mixgrad_registration forward = native("probe", squared_sum, MIXGRAD_KIND_FORWARD);
  const Registered probe(blank_op("probe"), "lambda x: x");
  Registry::instance().add_native(&forward, "probe");
  const Looking looking(observe::kProfile);
  call(*probe, {vector(Numbers(100, 2.0))});
  const auto events = take_events();
  REQUIRE(texts(events) ==
          std::vector<std::string>{"multiply forward native", "sum forward native", "probe forward native"});
  CHECK(events[0].bytes == 800);
  CHECK(events[1].bytes == 8);
  // What it gives counts as its own, whoever allocated it.
  CHECK(events[2].bytes == 8);
  CHECK(events[0].own == events[0].duration);
  CHECK(events[2].own == events[2].duration - events[0].duration - events[1].duration);
  CHECK(events[0].start >= events[2].start);
}

TEST_CASE_FIXTURE(NoLeaks, "profiles nest; the first begins anew") {
  {
    const Looking outer(observe::kProfile);
    {
      const Looking inner(observe::kProfile);
    }
    CHECK(observe::looking == observe::kProfile);
    call("exp", {scalar(1.0)});
  }
  CHECK(observe::looking == 0);
  call("exp", {scalar(1.0)});
  const Looking again(observe::kProfile);
  CHECK(take_events().empty());
}

TEST_CASE_FIXTURE(NoLeaks, "the account has the buffers that live, and the op that made them") {
  const Looking looking(observe::kBuffers);
  const ValueRef x = vector(Numbers(101, 1.0));
  REQUIRE(lives_of(808).size() == 1);
  CHECK(lives_of(808)[0].op == nullptr);
  ValueRef y = call("sum", {array({101, 3}, Numbers(303, 1.0))});
  CHECK(lives_of(303 * 8).empty());
  y = call("exp", {vector(Numbers(103, 1.0))});
  const auto lives = lives_of(824);
  REQUIRE(lives.size() == 1);
  CHECK(lives[0].op == &Registry::instance().get("exp"));
  CHECK(lives[0].what == What::forward);
  CHECK(lives[0].by == observe::By::native);
  CHECK(lives[0].kept_by == nullptr);
  y = {};
  CHECK(lives_of(824).empty());
}

TEST_CASE_FIXTURE(NoLeaks, "a gradient that keeps what it was given is named") {
  const Ref kept = evaluate("[]");
  const Registered probe(blank_op("probe"), "lambda x: 2 * x");
  const Registered honest(blank_op("honest"), "lambda x: 2 * x");
  const Ref give = evaluate("lambda kept: lambda op, g: kept.append(op.inputs[0]) or 2 * g");
  give_python_gradient(*honest, "lambda op, g: 2 * g + 0 * op.inputs[0]");
  give_python_gradient(*probe, Ref::steal(PyObject_CallOneArg(give.get(), kept.get())));

  const Looking looking(observe::kBuffers);
  for (const Op* op : {&*honest, &*probe}) {
    Window window;
    const ValueRef x = window.watch(vector(Numbers(107, 1.0)));
    CHECK(numbers(window.gradient(call(*op, {x}), x)) == Numbers(107, 2.0));
    const auto lives = lives_of(107 * 8);
    const bool named = std::ranges::any_of(lives, [](const observe::Live& live) { return live.kept_by != nullptr; });
    CHECK(named == (op == &*probe));
    for (const observe::Live& live : lives)
      if (live.kept_by) CHECK(live.keeper == observe::By::python);
  }
  CHECK(PyList_SetSlice(kept.get(), 0, 1, nullptr) == 0);
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
