// SPDX-License-Identifier: Apache-2.0
#include <new>
#include <stdexcept>

#include "core/python.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

TEST_SUITE_BEGIN("python");

TEST_CASE("references are counted") {
  const Ref list = evaluate("[1]");
  {
    const Ref second = list;
    Ref third = Ref::borrow(list.get());
    CHECK(Py_REFCNT(list.get()) == 3);
    const Ref moved = std::move(third);
    CHECK_FALSE(third);
    CHECK(Py_REFCNT(list.get()) == 3);
  }
  CHECK(Py_REFCNT(list.get()) == 1);
  CHECK(raised_by([] { Ref::steal(PyLong_FromString("x", nullptr, 10)); }) ==
        doctest::Contains("ValueError: invalid literal"));
}

TEST_CASE("an error crosses C++ and arrives with its class and text") {
  CHECK(raised_by([] { raise(PyExc_KeyError, "no %s", "op"); }) == "KeyError: 'no op'");
  CHECK(raised_by([] { raise_error("NotSavedError", "input %d", 1); }) == "NotSavedError: input 1");
}

TEST_CASE("no C++ exception passes a slot") {
  struct Case {
    const char* raised;
    void (*body)();
  };
  const Case cases[] = {
      {"MemoryError: ", [] { throw std::bad_alloc(); }},
      {"RuntimeError: it broke", [] { throw std::logic_error("it broke"); }},
      {"RuntimeError: an unknown C++ exception was thrown in mixgrad's core", [] { throw 1; }},
      {"TypeError: it stays", [] { raise(PyExc_TypeError, "it stays"); }},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.raised));
    const int result = guarded(-1, [&] {
      one.body();
      return 0;
    });
    CHECK(result == -1);
    CHECK(raised_by([] { throw PythonError(); }) == one.raised);
  }
  CHECK(guarded(-1, [] { return 7; }) == 7);
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
