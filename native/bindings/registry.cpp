// SPDX-License-Identifier: Apache-2.0
//
// The registry's functions: mixgrad/registry.py makes the API of them.
#include "core/registry.h"

#include "casters.h"
#include "core/dispatch.h"
#include "core/plugin.h"

namespace mixgrad::bindings {

namespace {

using core::Language;
using core::Op;
using core::Ref;
using core::Registry;
using core::What;

struct OpArgument {
  Op* op;
};

}  // namespace

}  // namespace mixgrad::bindings

namespace pybind11::detail {
template <>
struct type_caster<mixgrad::bindings::OpArgument> {
  PYBIND11_TYPE_CASTER(mixgrad::bindings::OpArgument, const_name("Op"));
  bool load(handle source, bool) {
    if (!mixgrad::core::is_op(source.ptr())) return false;
    value.op = &mixgrad::core::op_of(source.ptr());
    return true;
  }
};
}  // namespace pybind11::detail

namespace mixgrad::bindings {

namespace {

Ref ref(const py::handle& object) { return Ref::borrow(object.ptr()); }

Language to_language(const std::string& name) {
  if (name == "native") return Language::native;
  if (name == "python") return Language::python;
  throw py::value_error("a language is 'native' or 'python', not '" + name + "'");
}

What to_what(const std::string& name) {
  if (name == "forward") return What::forward;
  if (name == "gradient") return What::gradient;
  throw py::value_error("an implementation is a 'forward' or a 'gradient', not '" + name + "'");
}

py::object tuple_of(const std::vector<std::string>& names) {
  py::tuple tuple(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    PyObject* text = PyUnicode_InternFromString(names[i].c_str());
    if (!text) throw py::error_already_set();
    tuple[i] = py::reinterpret_steal<py::object>(text);
  }
  return tuple;
}

/// Parameters: (name, is_input, index, keyword_only, has_default, default).
py::object register_op(const std::string& name, const std::vector<std::string>& aliases, const py::list& parameters,
                       const std::vector<std::string>& inputs, const std::vector<std::string>& attributes,
                       bool variadic, bool broadcasts, bool multiple, bool differentiable,
                       const std::vector<std::uint32_t>& reads, const py::object& forward, bool is_ufunc,
                       const std::string& origin, int preferred, bool replace) {
  return translated([&] {
    auto op = std::make_unique<Op>();
    op->name = name;
    op->name_object = ref(py::str(name));
    op->aliases = aliases;
    op->input_names = inputs;
    op->attribute_names = attributes;
    op->attribute_keywords = ref(tuple_of(attributes));
    op->variadic = variadic;
    op->broadcasts = broadcasts;
    op->multiple = multiple;
    op->differentiable = differentiable;
    op->reads = reads;
    op->preferred = preferred;
    bool all_defaults = true;
    py::tuple defaults(attributes.size());
    for (const py::handle item : parameters) {
      const auto fields = item.cast<py::tuple>();
      core::Parameter parameter;
      PyObject* interned = fields[0].ptr();
      Py_INCREF(interned);
      PyUnicode_InternInPlace(&interned);
      parameter.name = Ref::steal(interned);
      parameter.is_input = fields[1].cast<bool>();
      parameter.index = fields[2].cast<std::size_t>();
      parameter.keyword_only = fields[3].cast<bool>();
      const bool has_default = fields[4].cast<bool>();
      if (has_default) parameter.default_value = ref(py::object(fields[5]));
      if (!parameter.is_input) {
        if (has_default)
          defaults[parameter.index] = fields[5];
        else
          all_defaults = false;
      }
      op->parameters.push_back(std::move(parameter));
    }
    if (all_defaults && !attributes.empty()) op->defaults = ref(defaults);
    if (attributes.empty()) op->defaults = ref(py::tuple(0));
    if (!forward.is_none()) {
      core::Implementation& python = op->of(What::forward, Language::python);
      python.language = Language::python;
      python.present = true;
      python.origin = origin;
      python.forward = ref(forward);
    }
    if (is_ufunc) {
      op->ufunc = core::kernels::Ufunc(forward.ptr());
      core::Implementation& native = op->of(What::forward, Language::native);
      native.language = Language::native;
      native.present = static_cast<bool>(op->ufunc);
      native.origin = "numpy." + name + "'s own loops";
    }
    Op& added = Registry::instance().add(std::move(op), replace);
    Ref object_ = core::make_op_object(added);
    // The registry keeps the face alive for as long as the op is registered.
    added.object = Py_NewRef(object_.get());
    return object(std::move(object_));
  });
}

core::PythonFunction python_function(const py::object& callable, const std::vector<std::size_t>& passed, const Op& op) {
  core::PythonFunction function;
  function.callable = ref(callable);
  function.passed = passed;
  if (!passed.empty()) {
    py::tuple keywords(passed.size());
    for (std::size_t i = 0; i < passed.size(); ++i)
      keywords[i] = py::reinterpret_borrow<py::object>(
          PyTuple_GET_ITEM(op.attribute_keywords.get(), static_cast<Py_ssize_t>(passed[i])));
    function.keywords = ref(keywords);
  }
  return function;
}

/// Puts one (index, function or None for zero, attributes passed) into a gradient.
void set_argument(const Op& op, core::PythonGradient& gradient, const py::tuple& fields, const std::string& origin,
                  bool check) {
  const auto index = fields[0].cast<std::size_t>();
  if (index >= gradient.arguments.size())
    core::raise_error("GradientCountError", "op '%s' has %zu inputs; there is no input %zu to give a gradient for (%s)",
                      op.name.c_str(), gradient.arguments.size(), index, origin.c_str());
  core::ArgumentGradient& argument = gradient.arguments[index];
  if (check && argument.state != core::ArgumentGradient::State::missing) {
    core::Implementation present;
    present.present = true;
    present.language = Language::python;
    present.origin = argument.origin;
    core::check_duplicate(op, What::gradient, present, origin, false);
  }
  argument = {};
  argument.origin = origin;
  argument.state = fields[1].is_none() ? core::ArgumentGradient::State::zero : core::ArgumentGradient::State::function;
  if (!fields[1].is_none())
    argument.function = python_function(fields[1], fields[2].cast<std::vector<std::size_t>>(), op);
}

/// whole: a function (op, g), or None; arguments: a list of (index, function or None for zero, attributes passed).
void set_gradient(const OpArgument& argument, const py::object& whole, const py::list& arguments, bool differentiable,
                  const py::object& when, const std::string& origin, bool per_index, bool replace) {
  translated([&] {
    Op& op = *argument.op;
    if (!op.registered)
      core::raise_error("UnknownOpError", "op '%s' has been unregistered; get the current one from mixgrad.registry",
                        op.name.c_str());
    core::Implementation& present = op.of(What::gradient, Language::python);
    core::Implementation made;
    auto gradient = std::make_shared<core::PythonGradient>();
    made.language = Language::python;
    made.present = true;
    made.differentiable = differentiable;
    if (!when.is_none()) made.when = ref(when);
    gradient->per_index = per_index;
    const std::size_t n = per_index ? 1 : op.input_names.size();
    if (!whole.is_none()) {
      core::check_duplicate(op, What::gradient, present, origin, replace);
      gradient->whole = ref(whole);
      const py::object module = py::getattr(whole, "__module__", py::none());
      gradient->own = py::isinstance<py::str>(module) && module.cast<std::string>().starts_with("mixgrad.");
    } else {
      // One input's gradient joins those of the others, unless a whole gradient is there.
      const bool joins = present.gradient && !present.gradient->whole && arguments.size() < n;
      if (!joins) core::check_duplicate(op, What::gradient, present, origin, replace);
      if (joins) {
        *gradient = *present.gradient;
        made.differentiable = present.differentiable && differentiable;
        if (when.is_none()) made.when = present.when;
      }
      gradient->arguments.resize(n);
      for (const py::handle item : arguments)
        set_argument(op, *gradient, item.cast<py::tuple>(), origin, joins && !replace);
    }
    gradient->origin = made.origin = origin;
    made.gradient = std::move(gradient);
    present = std::move(made);
    op.update_whole_reads();
    Registry::instance().changed();
  });
}

bool unregister(const OpArgument& argument, const std::string& what, const std::string& language) {
  return translated([&] {
    Op& op = *argument.op;
    if (what == "op") {
      Registry::instance().remove(op);
      return true;
    }
    core::Implementation& implementation = op.of(to_what(what), to_language(language));
    const bool was = implementation.present;
    const core::Implementation gone = std::exchange(implementation, core::Implementation{});
    implementation.language = gone.language;
    op.update_whole_reads();
    Registry::instance().changed();
    return was;
  });
}

py::dict describe(const core::Implementation& implementation) {
  py::dict row;
  row["origin"] = implementation.origin;
  row["differentiable"] = implementation.differentiable;
  row["conditional"] = static_cast<bool>(implementation.when);
  row["calls"] = implementation.calls;
  row["declined"] = implementation.declined;
  return row;
}

/// {"forward": {"native": {...}, "python": {...}}, "gradient": {...}}; a language that is not there is left out.
py::dict implementations(const OpArgument& argument) {
  py::dict all;
  for (const What what : {What::forward, What::gradient}) {
    py::dict languages;
    for (const Language language : {Language::native, Language::python})
      if (const auto& implementation = argument.op->of(what, language); implementation.present)
        languages[core::to_string(language)] = describe(implementation);
    all[core::to_string(what)] = languages;
  }
  return all;
}

/// The functions of the Python gradient: that of all inputs or None, and per input one, or None for zero. None: there
/// is no Python gradient, or it lacks an input's.
py::object python_gradient(const OpArgument& argument) {
  const auto& gradient = argument.op->of(What::gradient, Language::python).gradient;
  if (!gradient) return py::none();
  const auto callable = [](const Ref& function) { return py::reinterpret_borrow<py::object>(function.get()); };
  if (gradient->whole) return py::make_tuple(callable(gradient->whole), py::list());
  py::list functions;
  for (const core::ArgumentGradient& one : gradient->arguments) {
    if (one.state == core::ArgumentGradient::State::missing) return py::none();
    functions.append(one.state == core::ArgumentGradient::State::zero ? py::object(py::none())
                                                                      : callable(one.function.callable));
  }
  return py::make_tuple(py::none(), functions);
}

/// The candidates for a gradient, in order: (language, origin, verdict, chosen).
py::list explain_gradient(const OpArgument& argument, const py::list& inputs, bool recorded) {
  return translated([&] {
    const Op& op = *argument.op;
    std::vector<core::ValueRef> values;
    for (const py::handle item : inputs) values.push_back(core::to_value(item.ptr(), "an input"));
    core::Dtype dtype = core::Dtype::float64;
    for (const auto& value : values)
      if (core::is_differentiable(value->dtype) && !value->weak) {
        dtype = values[0]->weak ? value->dtype : core::promote(values[0]->dtype, value->dtype);
        break;
      }
    if (!core::is_differentiable(dtype)) dtype = core::Dtype::float64;
    core::ValueRef output =
        core::make_zeros(dtype, values.empty() ? std::span<const std::int64_t>{} : values[0]->shape_span());
    std::vector<core::Value*> pointers;
    for (const auto& value : values) pointers.push_back(value.get());
    core::Value* outputs[] = {output.get()};
    core::ValueRef upstream[] = {output};
    std::vector<std::uint8_t> needs(values.size(), 1);
    core::Call call;
    call.op = &op;
    call.inputs = pointers;
    if (!values.empty()) call.outputs = outputs;
    call.upstream = {upstream, values.empty() ? 0u : 1u};
    call.needs = needs;
    call.attributes = op.defaults.get();
    call.recorded = recorded;
    std::vector<core::Candidate> why;
    core::choose_gradient(call, &why);
    py::list rows;
    for (const auto& candidate : why)
      rows.append(py::make_tuple(candidate.language, candidate.origin, candidate.verdict, candidate.chosen));
    return rows;
  });
}

py::object find_op(const std::string& name) {
  return translated([&] { return py::reinterpret_borrow<py::object>(Registry::instance().get(name).object); });
}

py::list ops() {
  py::list all;
  for (const Op* op : Registry::instance().ops()) all.append(py::handle(op->object));
  return all;
}

void reset_counts() {
  for (const Op* op : Registry::instance().ops())
    for (const auto* table : {op->forwards, op->gradients})
      for (int i = 0; i < 2; ++i) table[i].calls = table[i].declined = 0;
}

}  // namespace

void bind_registry(py::module_& module) {
  module.def("register_op", &register_op);
  module.def("set_gradient", &set_gradient);
  module.def("unregister", &unregister, py::arg("op"), py::arg("what"), py::arg("language"));
  module.def("implementations", &implementations, py::arg("op"));
  module.def("python_gradient", &python_gradient, py::arg("op"));
  module.def("explain_gradient", &explain_gradient, py::arg("op"), py::arg("inputs"), py::arg("recorded"));
  module.def("find_op", &find_op, py::arg("name"), "The op of this name or alias; UnknownOpError otherwise.");
  module.def(
      "has_op", [](const std::string& name) { return Registry::instance().find(name) != nullptr; }, py::arg("name"));
  module.def("ops", &ops, "All ops, in the order of registration.");
  module.def(
      "load_plugin",
      [](const std::string& path, const std::string& name, bool replace) {
        translated([&] { core::load_plugin(path, name, replace); });
      },
      py::arg("path"), py::arg("module"), py::arg("replace"), "Loads a shared library of native implementations.");
  module.def(
      "waiting_native", [] { return Registry::instance().waiting(); },
      "Names of native implementations whose op is not registered.");
  module.def("reset_counts", &reset_counts);
  module.def(
      "set_override_variable", [](const py::object& variable) { core::overrides::variable = variable.inc_ref().ptr(); },
      py::arg("variable"));
  module.def("overrides_changed", [](int by) { core::overrides::active += by; }, py::arg("by"));
  module.def(
      "set_standing",
      [](const OpArgument& argument, const py::object& record) {
        argument.op->standing = record.is_none() ? Ref() : ref(record);
      },
      py::arg("op"), py::arg("record"), "The override record for all calls of the op's gradient; None: none.");
  module.def(
      "tell_fallbacks",
      [](bool on) {
        core::tell_fallbacks = on;
        for (const Op* op : Registry::instance().ops()) op->told_fallback = false;
      },
      py::arg("on"));
  module.def(
      "install_op_methods",
      [](const py::dict& methods) {
        const py::object type = py::module_::import("mixgrad._core").attr("Op");
        for (const auto& [name, function] : methods)
          if (PyObject_SetAttr(type.ptr(), name.ptr(), function.ptr()) < 0) throw py::error_already_set();
      },
      py::arg("methods"));
}

}  // namespace mixgrad::bindings
