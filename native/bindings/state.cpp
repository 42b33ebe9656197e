// SPDX-License-Identifier: Apache-2.0
//
// Values, counters and switches.
#include "casters.h"
#include "core/buffer.h"
#include "core/kernels.h"
#include "core/observe.h"
#include "core/tape.h"

namespace mixgrad::bindings {

namespace {

py::object value(const ArrayArgument& array) {
  return translated([&] { return object(core::to_ndarray(array.value)); });
}

py::object constant(const py::object& source) {
  return translated([&] {
    core::ValueRef value = core::to_value(source.ptr(), "a constant");
    if (!core::is_differentiable(value->dtype))
      core::raise_error("UnsupportedError", "an Array holds float32, float64, complex64 or complex128, not %s",
                        core::dtype_name(value->dtype));
    value = value->buffer->foreign() ? core::copy_of(*value) : core::make_alias(*value);
    return py::reinterpret_steal<py::object>(core::make_array(std::move(value)));
  });
}

bool is_recorded(const py::object& source) {
  return core::is_array(source.ptr()) && core::Tape::current().live(*core::array_value(source.ptr())) != 0;
}

bool same(const ArrayArgument& a, const ArrayArgument& b) { return a.value.get() == b.value.get(); }

py::dict counters() {
  py::dict all;
  all["buffers"] = core::counters.buffers;
  all["buffer_bytes"] = core::counters.buffer_bytes;
  all["values"] = core::counters.values;
  all["arrays"] = core::counters.arrays;
  all["entries"] = core::counters.entries;
  all["windows"] = core::counters.windows;
  return all;
}

constexpr std::pair<const char*, core::MutationCheck> kChecks[] = {
    {"off", core::MutationCheck::off}, {"sampled", core::MutationCheck::sampled}, {"full", core::MutationCheck::full}};

void set_mutation_check(const std::string& mode) {
  for (const auto& [name, check] : kChecks)
    if (mode == name) {
      core::mutation_check = check;
      return;
    }
  throw py::value_error("mutation check is 'off', 'sampled' or 'full', not '" + mode + "'");
}

std::string get_mutation_check() {
  for (const auto& [name, check] : kChecks)
    if (core::mutation_check == check) return name;
  return "off";
}

std::uint8_t to_looking(const std::string& what) {
  if (what == "profile") return core::observe::kProfile;
  if (what == "buffers") return core::observe::kBuffers;
  throw py::value_error("what looks on is 'profile' or 'buffers', not '" + what + "'");
}

/// Tuples (op, what, implementation, where, start, duration, own, bytes, thread), and how many were lost.
py::tuple take_events() {
  py::list all;
  for (const auto& event : core::observe::take_events()) {
    const core::Ref code = core::Ref::steal_or_null(event.where.code);
    all.append(py::make_tuple(event.op->name, core::to_string(event.what), core::observe::to_string(event.by),
                              object(core::location_tuple(event.where)), event.start, event.duration, event.own,
                              event.bytes, event.thread));
  }
  return py::make_tuple(std::move(all), core::observe::take_lost());
}

/// Tuples (op or "", what, implementation, where, bytes, op whose gradient keeps it or "", its implementation).
py::list live_buffers() {
  py::list all;
  for (const auto& live : core::observe::live_buffers())
    all.append(py::make_tuple(
        live.op ? live.op->name : "", live.op ? core::to_string(live.what) : "",
        live.op ? core::observe::to_string(live.by) : "", object(core::location_tuple({live.code, live.offset})),
        live.bytes, live.kept_by ? live.kept_by->name : "", live.kept_by ? core::observe::to_string(live.keeper) : ""));
  return all;
}

}  // namespace

void bind_state(py::module_& module) {
  module.def("set_package_folder", &core::Location::set_package_folder, py::arg("folder"));
  module.def("value", &value, py::arg("array"), "The value as a read-only ndarray.");
  module.def("constant", &constant, py::arg("source"), "An Array of the same value that is on no tape.");
  module.def("is_recorded", &is_recorded, py::arg("source"), "Whether an op on it would be recorded.");
  module.def("same", &same, py::arg("a"), py::arg("b"), "Whether two Arrays are one value.");
  module.def("counters", &counters, "Live buffers, values, arrays, entries and windows.");
  module.def("set_mutation_check", &set_mutation_check, py::arg("mode"));
  module.def("get_mutation_check", &get_mutation_check);
  module.def("start_looking", [](const std::string& what) { core::observe::start(to_looking(what)); }, py::arg("what"));
  module.def("stop_looking", [](const std::string& what) { core::observe::stop(to_looking(what)); }, py::arg("what"));
  module.def("take_events", &take_events, "What ran while the profile looked on.");
  module.def("live_buffers", &live_buffers, "The buffers that live, while they are being accounted for.");
  module.def("thread_count", &core::kernels::thread_count);
  module.def("set_thread_count", &core::kernels::set_thread_count, py::arg("n"));
  module.def(
      "install",
      [](const py::object& array_ufunc, const py::object& array_function, const py::dict& methods) {
        translated(
            [&] { core::install_array_methods(py::make_tuple(array_ufunc, array_function).ptr(), methods.ptr()); });
      },
      py::arg("array_ufunc"), py::arg("array_function"), py::arg("methods"),
      "Installs NumPy's protocols and further methods of Array.");
}

}  // namespace mixgrad::bindings
