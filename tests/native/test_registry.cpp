// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"
#include "support.h"

namespace mixgrad::tests {
namespace {

mixgrad_status nothing(mixgrad_call*) { return MIXGRAD_OK; }

/// Links the nodes in their order.
const mixgrad_registration* linked(std::vector<mixgrad_registration>& nodes) {
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) nodes[i].next = &nodes[i + 1];
  return nodes.data();
}

std::vector<std::string> names(const Registry& registry) {
  std::vector<std::string> all;
  for (const Op* op : registry.ops()) all.push_back(op->name);
  return all;
}

const Implementation& native_gradient(const Op& op) { return op.of(What::gradient, Language::native); }

TEST_SUITE_BEGIN("registry");

TEST_CASE("an op is found by its name and aliases") {
  Registry registry;
  const Op& op = registry.add(blank_op("scale", {"x"}, {"mul2", "double"}), false);
  CHECK(registry.find("scale") == &op);
  CHECK(registry.find("double") == &op);
  CHECK(&registry.get("mul2") == &op);
  CHECK(registry.find("scales") == nullptr);
  CHECK(names(registry) == std::vector<std::string>{"scale"});
}

TEST_CASE("an unknown name is answered with near ones") {
  Registry registry;
  for (const char* name : {"logaddexp", "log", "log10", "sum"}) registry.add(blank_op(name), false);
  CHECK(registry.near_names("log1") == std::vector<std::string>{"log", "log10"});
  CHECK(registry.near_names("addexp") == std::vector<std::string>{"logaddexp"});
  CHECK(registry.near_names("conv2d").empty());
  CHECK(raised_by([&] { registry.get("smu"); }) ==
        doctest::Contains("UnknownOpError: no op named 'smu' is registered"));
  CHECK(raised_by([&] { registry.get("log1"); }) == doctest::Contains("near names: 'log', 'log10'"));
}

TEST_CASE("at most five near names, nearest first") {
  Registry registry;
  for (const char* name : {"abcdef1", "abcdef22", "abcdef2", "abcdef3", "abcdef4", "abcdef"})
    registry.add(blank_op(name), false);
  CHECK(registry.near_names("abcdef") ==
        std::vector<std::string>{"abcdef", "abcdef1", "abcdef2", "abcdef3", "abcdef4"});
}

TEST_CASE("a name that is taken is refused, and the registry is as it was") {
  Registry registry;
  const Op& op = registry.add(blank_op("scale", {"x"}, {"double"}), false);
  const std::uint64_t version = registry.version();
  struct Case {
    const char *name, *alias;
    bool replace;
    const char* raised;
  };
  const Case cases[] = {
      {"scale", "other", false, "the name 'scale' belongs to op 'scale'"},
      {"double", "other", false, "the name 'double' belongs to op 'scale'"},
      {"third", "scale", false, "the name 'scale' belongs to op 'scale'"},
      {"third", "double", true, "the name 'double' belongs to op 'scale'"},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.name));
    const auto text = raised_by([&] { registry.add(blank_op(one.name, {"x"}, {one.alias}), one.replace); });
    CHECK(text == doctest::Contains("DuplicateRegistrationError"));
    CHECK(text == doctest::Contains(one.raised));
    CHECK(registry.find("double") == &op);
    CHECK(registry.find("other") == nullptr);
    CHECK(registry.find("third") == nullptr);
  }
  CHECK(names(registry) == std::vector<std::string>{"scale"});
  CHECK(registry.version() == version);
}

TEST_CASE("an op can be replaced; entries may still point at the old one") {
  Registry registry;
  Op& old = registry.add(blank_op("scale", {"x"}, {"double"}), false);
  give_python_gradient(old, "lambda op, g: g");
  Op& op = registry.add(blank_op("scale", {"x"}, {"twice"}), true);
  CHECK(&op != &old);
  CHECK(registry.find("scale") == &op);
  CHECK(registry.find("double") == nullptr);
  CHECK(registry.find("twice") == &op);
  CHECK(names(registry) == std::vector<std::string>{"scale"});
  CHECK_FALSE(old.registered);
  CHECK_FALSE(old.of(What::gradient, Language::python).present);
}

TEST_CASE("an op that is removed lets go of users' functions") {
  Registry registry;
  Op& op = registry.add(blank_op("scale"), false);
  const Ref function = evaluate("lambda op, g: g");
  give_python_gradient(op, function);
  CHECK(Py_REFCNT(function.get()) == 2);
  registry.remove(op);
  CHECK(Py_REFCNT(function.get()) == 1);
  CHECK(registry.ops().empty());
}

TEST_CASE("the version rises with every change") {
  Registry registry;
  std::vector<std::uint64_t> versions{registry.version()};
  std::vector gradient{native("scale", nothing)};
  Op& op = registry.add(blank_op("scale"), false);
  versions.push_back(registry.version());
  registry.add_native(linked(gradient), "probe");
  versions.push_back(registry.version());
  registry.remove(op);
  versions.push_back(registry.version());
  for (std::size_t i = 1; i < versions.size(); ++i) CHECK(versions[i] > versions[i - 1]);
}

TEST_CASE("a native implementation says what it is and where it comes from") {
  Registry registry;
  const Op& op = registry.add(blank_op("scale"), false);
  std::vector both{native("scale", nothing), native("scale", nothing, MIXGRAD_KIND_FORWARD)};
  registry.add_native(linked(both), "probe");
  CHECK(native_gradient(op).present);
  CHECK(native_gradient(op).native == &both[0]);
  CHECK(native_gradient(op).origin == "probe (tests/probe.cpp:7)");
  CHECK(native_gradient(op).differentiable);
  CHECK_FALSE(native_gradient(op).own);
  CHECK(op.of(What::forward, Language::native).native == &both[1]);

  const Op& other = registry.add(blank_op("other"), false);
  std::vector kernel{native("other", nothing, MIXGRAD_KIND_KERNEL_GRADIENT)};
  registry.add_native(linked(kernel), kOwnModule);
  CHECK_FALSE(native_gradient(other).differentiable);
  CHECK(native_gradient(other).own);
}

TEST_CASE("native implementations are registered all or none") {
  Registry registry;
  const Op& first = registry.add(blank_op("first"), false);
  const Op& second = registry.add(blank_op("second", {"x", "y"}), false);
  std::vector there{native("second", nothing)};
  registry.add_native(linked(there), "earlier");
  const std::uint64_t version = registry.version();

  mixgrad_registration too_old = native("first", nothing);
  too_old.struct_size = 8;
  mixgrad_registration one_expression = native("second", nothing, MIXGRAD_KIND_ELEMENTWISE);
  one_expression.n_inputs = 1;
  one_expression.flags = MIXGRAD_FLAG_REPLACE;
  struct Case {
    mixgrad_registration refused;
    const char* raised;
  };
  const Case cases[] = {
      {native("second", nothing),
       "DuplicateRegistrationError: op 'second' has a native gradient already, registered at "
       "earlier (tests/probe.cpp:7)"},
      {native("first", nothing), "DuplicateRegistrationError: op 'first' gets two native gradients"},
      {native("unknown", nothing), "DuplicateRegistrationError: op 'unknown' gets two native gradients"},
      {too_old, "RegistrationError: probe: the native registration of 'first' was built for another version"},
      {one_expression,
       "GradientCountError: probe (tests/probe.cpp:7): element-wise gradient of 'second' gives 1 "
       "expressions, the op has 2 inputs"},
  };
  for (const Case& one : cases) {
    std::vector nodes{native("first", nothing), native("unknown", nothing), one.refused};
    CHECK(raised_by([&] { registry.add_native(linked(nodes), "probe"); }) == doctest::Contains(one.raised));
    CHECK_FALSE(native_gradient(first).present);
    CHECK(native_gradient(second).native == there.data());
    CHECK(registry.waiting().empty());
    CHECK(registry.version() == version);
  }
}

TEST_CASE("a native gradient takes another's place when asked to") {
  Registry registry;
  const Op& op = registry.add(blank_op("scale"), false);
  std::vector first{native("scale", nothing)}, second{native("scale", nothing)}, third{native("scale", nothing)};
  registry.add_native(linked(first), "first");
  second[0].flags = MIXGRAD_FLAG_REPLACE;
  registry.add_native(linked(second), "second");
  CHECK(native_gradient(op).origin == "second (tests/probe.cpp:7)");
  registry.add_native(linked(third), "third", true);
  CHECK(native_gradient(op).origin == "third (tests/probe.cpp:7)");
}

TEST_CASE("native implementations wait for their op") {
  Registry registry;
  std::vector nodes{native("twice", nothing), native("never", nothing)};
  registry.add_native(linked(nodes), "early");
  CHECK(registry.waiting() == std::vector<std::string>{"never", "twice"});
  const Op& op = registry.add(blank_op("scale", {"x"}, {"twice"}), false);
  CHECK(native_gradient(op).origin == "early (tests/probe.cpp:7)");
  CHECK(registry.waiting() == std::vector<std::string>{"never"});
}

TEST_CASE("a list declares new ops, which go again when it is refused") {
  Registry& registry = Registry::instance();
  const std::size_t count = registry.ops().size();
  std::vector nodes{native("probe_new", nullptr, MIXGRAD_KIND_OP), native("probe_new", nothing, MIXGRAD_KIND_FORWARD),
                    native("probe_new", nothing)};
  nodes[0].signature = "x, y, scale=1.0";
  nodes[0].saves = "x";
  registry.add_native(linked(nodes), "probe");
  Op& op = registry.get("probe_new");
  CHECK(op.input_names == std::vector<std::string>{"x", "y"});
  CHECK(op.attribute_names == std::vector<std::string>{"scale"});
  CHECK(op.reads_of(0) == saved_bit(0));
  CHECK(native_gradient(op).present);
  registry.remove(op);

  nodes.push_back(native("exp", nothing));
  CHECK(raised_by([&] { registry.add_native(linked(nodes), "probe"); }) ==
        doctest::Contains("DuplicateRegistrationError: op 'exp' has a native gradient already"));
  CHECK(registry.find("probe_new") == nullptr);
  CHECK(registry.ops().size() == count);
}

TEST_CASE("a gradient of all inputs from outside may read whatever the op's gradients read") {
  const std::unique_ptr<Op> made = blank_op("scale", {"x", "y"});
  made->reads = {saved_bit(1), kSavedOutput};
  made->update_whole_reads();
  CHECK(made->whole_reads == 0);
  CHECK(made->reads_of(0) == saved_bit(1));
  give_python_gradient(*made, "lambda op, g: (g, g)");
  CHECK(made->whole_reads == (saved_bit(1) | kSavedOutput));
}

TEST_CASE("attributes are found by name") {
  const std::unique_ptr<Op> op = blank_op("scale");
  op->attribute_names = {"axis", "keepdims"};
  CHECK(op->attribute_index("keepdims") == 1);
  CHECK(op->attribute_index("dtype") == 2);
}

TEST_SUITE_END();

}  // namespace
}  // namespace mixgrad::tests
