// SPDX-License-Identifier: Apache-2.0
//
// What pybind11 needs to know of the core: how Array and Op pass, and how a pending Python exception does.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/array.h"
#include "core/convert.h"
#include "core/op.h"
#include "core/python.h"

namespace mixgrad::bindings {

namespace py = pybind11;

/// An Array argument.
struct ArrayArgument {
  core::ValueRef value;
};

/// Runs `body`, turning the core's exception into pybind11's.
template <class Body>
auto translated(Body&& body) {
  try {
    return body();
  } catch (const core::PythonError&) {
    throw py::error_already_set();
  }
}

inline py::object object(core::Ref ref) { return py::reinterpret_steal<py::object>(ref.release()); }

void bind_registry(py::module_& module);
void bind_state(py::module_& module);

}  // namespace mixgrad::bindings

namespace pybind11::detail {

template <>
struct type_caster<mixgrad::bindings::ArrayArgument> {
  PYBIND11_TYPE_CASTER(mixgrad::bindings::ArrayArgument, const_name("Array"));
  bool load(handle source, bool) {
    if (!mixgrad::core::is_array(source.ptr())) return false;
    value.value = mixgrad::core::value_of(source.ptr());
    return true;
  }
};

}  // namespace pybind11::detail
