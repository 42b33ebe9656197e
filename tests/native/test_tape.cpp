// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "core/tape.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

Mask mask(const Window& window) { return Mask{1} << window.bit(); }

/// Records a blank operation with one output for the windows.
ValueRef push(Mask windows, const std::vector<ValueRef>& inputs = {}, std::uint32_t saved = 0) {
  Tape& tape = Tape::current();
  ValueRef value = scalar(1.0);
  value->windows = windows;
  value->position = tape.next();
  value->tape = tape.id();
  std::vector<Value*> pointers;
  for (const ValueRef& input : inputs) pointers.push_back(input.get());
  Entry& entry = tape.push(windows, 1, static_cast<std::uint32_t>(inputs.size()));
  fill(entry, nullptr, pointers, saved);
  entry.output = value.get();
  value->retain();
  return value;
}

/// The references to Python objects that the tape shows the garbage collector.
std::vector<PyObject*> objects_of(Position start, Mask windows) {
  std::vector<PyObject*> seen;
  const auto visit = [](PyObject* object, void* list) {
    static_cast<std::vector<PyObject*>*>(list)->push_back(object);
    return 0;
  };
  Tape& tape = Tape::current();
  CHECK(tape.for_each_object(start, tape.next(), windows, visit, &seen) == 0);
  return seen;
}

TEST_SUITE_BEGIN("tape");

TEST_CASE_FIXTURE(NoLeaks, "positions are never reused") {
  Tape& tape = Tape::current();
  const Position before = tape.next();
  {
    const Window window;
    for (int i = 0; i < 10; ++i) push(mask(window));
  }
  const Window window;
  CHECK(window.start() == before + 10);
  CHECK(push(mask(window))->position == before + 10);
  CHECK(tape.at(before) == nullptr);
}

TEST_CASE_FIXTURE(NoLeaks, "a value is live while a window that it depends on records") {
  Tape& tape = Tape::current();
  Window window;
  const ValueRef x = window.watch(scalar(2.0));
  CHECK(tape.live(*x) == mask(window));
  CHECK(tape.live(*scalar(2.0)) == 0);
  tape.pause(window.bit());
  CHECK(tape.live(*x) == 0);
  tape.resume(window.bit());
  CHECK(tape.live(*x) == mask(window));
  window.stop();
  CHECK(tape.live(*x) == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "windows nest") {
  Tape& tape = Tape::current();
  const Window outer;
  const ValueRef x = outer.watch(scalar(2.0));
  Position inside = -1;
  {
    const Window inner;
    const ValueRef y = inner.watch(x);
    CHECK(y->windows == (mask(outer) | mask(inner)));
    inside = y->position;
    const ValueRef own = inner.watch(scalar(1.0));
    CHECK(tape.live(*own) == mask(inner));
  }
  REQUIRE(tape.at(inside));
  CHECK(tape.at(inside)->windows == mask(outer));
  CHECK(tape.at(inside + 1) == nullptr);
}

TEST_CASE_FIXTURE(NoLeaks, "windows overlap: an entry lives as long as one that depends on it") {
  Tape& tape = Tape::current();
  auto first = std::make_unique<Window>(), second = std::make_unique<Window>();
  const ValueRef both = push(mask(*first) | mask(*second)), own = push(mask(*first));
  first.reset();
  REQUIRE(tape.at(both->position));
  CHECK(tape.at(both->position)->windows == mask(*second));
  CHECK(tape.at(own->position) == nullptr);
  second.reset();
  CHECK(tape.at(both->position) == nullptr);
}

TEST_CASE_FIXTURE(NoLeaks, "windows interleave: each has the entries of its own") {
  Tape& tape = Tape::current();
  auto first = std::make_unique<Window>();
  const Window second;
  std::vector<ValueRef> firsts, seconds;
  for (int i = 0; i < 1000; ++i) {
    firsts.push_back(push(mask(*first)));
    seconds.push_back(push(mask(second)));
  }
  first.reset();
  CHECK(std::ranges::all_of(firsts, [&](const ValueRef& value) { return tape.at(value->position) == nullptr; }));
  CHECK(std::ranges::all_of(seconds, [&](const ValueRef& value) {
    return tape.at(value->position) && tape.at(value->position)->output == value.get();
  }));
}

TEST_CASE_FIXTURE(NoLeaks, "a bit that is given again knows nothing of its values before") {
  Tape& tape = Tape::current();
  ValueRef old;
  int bit = -1;
  {
    const Window window;
    bit = window.bit();
    old = window.watch(scalar(2.0));
  }
  const Window window;
  REQUIRE(window.bit() == bit);
  CHECK(old->windows == mask(window));
  CHECK(tape.live(*old) == 0);
}

TEST_CASE_FIXTURE(NoLeaks, "64 windows can be open") {
  std::vector<std::unique_ptr<Window>> windows;
  for (int i = 0; i < 64; ++i) windows.push_back(std::make_unique<Window>());
  CHECK(raised_by([] { Window(); }) == doctest::Contains("TapeUsedError: cannot open another tape: 64 tapes"));
  windows.pop_back();
  CHECK(Window().bit() == 63);
}

TEST_CASE_FIXTURE(NoLeaks, "what pauses all others lets them go on") {
  Tape& tape = Tape::current();
  const Window first, second, third;
  tape.pause(second.bit());
  const Mask paused = tape.pause_all_but(third.bit());
  CHECK(paused == mask(first));
  CHECK(tape.recording() == mask(third));
  {
    const PausedTape nothing(tape);
    CHECK(tape.recording() == 0);
  }
  tape.resume_all(paused);
  CHECK(tape.recording() == (mask(first) | mask(third)));
}

TEST_CASE_FIXTURE(NoLeaks, "a million entries are freed without recursion") {
  const std::int64_t entries = counters.entries, values = counters.values;
  {
    const Window window;
    ValueRef x = push(mask(window));
    for (int i = 1; i < 1'000'000; ++i) x = push(mask(window), {x}, saved_bit(0));
    CHECK(counters.entries == entries + 1'000'000);
    CHECK(Tape::current().at(window.start())->output->position == window.start());
  }
  CHECK(counters.entries == entries);
  CHECK(counters.values == values);
}

TEST_CASE_FIXTURE(NoLeaks, "entries are forgotten one operation at a time") {
  Tape& tape = Tape::current();
  const Window first, second;
  const ValueRef own = push(mask(first)), both = push(mask(first) | mask(second));
  tape.forget(first.bit(), own->position, 1);
  tape.forget(first.bit(), both->position, 1);
  CHECK(tape.at(own->position) == nullptr);
  CHECK(tape.at(both->position)->windows == mask(second));
}

TEST_CASE_FIXTURE(NoLeaks, "an entry keeps the data of what it saves, the shape of the rest") {
  const Window window;
  ValueRef saved = vector({1, 2}), other = vector({3, 4, 5});
  const ValueRef out = push(mask(window), {saved, other}, saved_bit(0));
  saved = other = {};
  const Entry& entry = *Tape::current().at(out->position);
  CHECK(numbers(ValueRef::borrow(entry.inputs[0])) == Numbers{1, 2});
  CHECK(entry.inputs[1]->buffer == nullptr);
  CHECK(entry.inputs[1]->size == 3);
}

TEST_CASE_FIXTURE(NoLeaks, "an entry of many inputs: one bit for all from 30 on") {
  const Window window;
  std::vector<ValueRef> inputs;
  for (int i = 0; i < 40; ++i) inputs.push_back(scalar(i));
  const ValueRef out = push(mask(window), inputs, saved_bit(3) | saved_bit(35));
  inputs.clear();
  const Entry& entry = *Tape::current().at(out->position);
  CHECK(entry.n_inputs == 40);
  CHECK(entry.inputs[2]->buffer == nullptr);
  CHECK(numbers(ValueRef::borrow(entry.inputs[3])) == Numbers{3});
  CHECK(entry.inputs[29]->buffer == nullptr);
  CHECK(numbers(ValueRef::borrow(entry.inputs[30])) == Numbers{30});
  CHECK(numbers(ValueRef::borrow(entry.inputs[39])) == Numbers{39});
}

TEST_CASE_FIXTURE(NoLeaks, "saving an array of the user's watches it") {
  const Window window;
  const ValueRef saved = foreign("np.zeros(5000)"), other = foreign("np.zeros(5000)");
  push(mask(window), {saved, other}, saved_bit(0));
  CHECK(saved->buffer->watched == MutationCheck::sampled);
  CHECK(other->buffer->watched == MutationCheck::off);
}

TEST_CASE_FIXTURE(NoLeaks, "an operation with several outputs takes as many positions, across chunks too") {
  Tape& tape = Tape::current();
  const Window window;
  while (tape.next() % Tape::kChunkSize != Tape::kChunkSize - 1) push(mask(window));
  const Position first = tape.next();
  tape.push(mask(window), 3, 1);
  CHECK(tape.next() == first + 3);
  CHECK(tape.at(first)->n_outputs == 3);
  CHECK(tape.at(first)->n_inputs == 1);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(tape.at(first + i)->lead == i);
}

TEST_CASE_FIXTURE(NoLeaks, "a greedy window records what uses anything that was ever recorded") {
  Tape& tape = Tape::current();
  Window first;
  const ValueRef x = first.watch(scalar(3.0));
  first.stop();
  CHECK(call("multiply", {x, x})->position == -1);
  Window greedy(true);
  CHECK(tape.any_greedy());
  CHECK(tape.greedy(*x) == mask(greedy));
  CHECK(tape.greedy(*scalar(3.0)) == 0);
  const ValueRef square = call("multiply", {x, x});
  CHECK(square->windows == mask(greedy));
  CHECK(call("multiply", {scalar(3.0), scalar(3.0)})->position == -1);
  tape.pause(greedy.bit());
  CHECK(tape.greedy(*x) == 0);
  greedy.stop();
  CHECK_FALSE(tape.any_greedy());
}

TEST_CASE_FIXTURE(NoLeaks, "the garbage collector sees the objects that one window alone holds") {
  Tape& tape = Tape::current();
  const Window first, second;
  const Ref attributes = evaluate("[1]"), overrides = evaluate("[2]"), shared = evaluate("[3]");
  const auto give = [&](const ValueRef& value, const Ref& one, const Ref& other) {
    tape.give_objects(value->position, Ref(one).release(), Ref(other).release());
  };
  give(push(mask(first)), attributes, overrides);
  give(push(mask(first) | mask(second)), shared, {});
  push(mask(first));
  CHECK(objects_of(first.start(), mask(first)) == std::vector{attributes.get(), overrides.get()});
  CHECK(objects_of(first.start(), mask(second)).empty());
  CHECK(Py_REFCNT(shared.get()) == 2);
  tape.drop(first.bit(), first.start(), tape.next());
  CHECK(Py_REFCNT(attributes.get()) == 1);
  CHECK(objects_of(first.start(), mask(second)) == std::vector{shared.get()});
  tape.drop(second.bit(), first.start(), tape.next());
  CHECK(Py_REFCNT(shared.get()) == 1);
}

TEST_CASE_FIXTURE(NoLeaks, "every thread has a tape, and knows what another's records") {
  Window window;
  const ValueRef x = window.watch(scalar(2.0)), constant = scalar(2.0);
  struct {
    std::uint32_t id;
    Mask live;
    bool recorded, constant_recorded;
  } there{};
  const auto look = [&] {
    const Tape& tape = Tape::current();
    there = {tape.id(), tape.live(*x), tape.recorded_elsewhere(*x), tape.recorded_elsewhere(*constant)};
  };
  std::thread(look).join();
  CHECK(there.id != Tape::current().id());
  CHECK(there.live == 0);
  CHECK(there.recorded);
  CHECK_FALSE(there.constant_recorded);
  CHECK_FALSE(Tape::current().recorded_elsewhere(*x));
  window.stop();
  std::thread(look).join();
  CHECK_FALSE(there.recorded);
}

TEST_CASE_FIXTURE(NoLeaks, "places in the user's program") {
  const auto text = [](const Location& location) {
    const Ref tuple = location_tuple(location);
    return std::string(PyUnicode_AsUTF8(Ref::steal(PyObject_Str(tuple.get())).get()));
  };
  CHECK(text({}) == "None");
  const Ref code = evaluate("compile('1\\n\\n+ 1', 'user.py', 'exec')");
  CHECK(text({code.get(), 0}).starts_with("('user.py', "));
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
