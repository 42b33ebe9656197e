// SPDX-License-Identifier: Apache-2.0
//
// mixgrad.Array: the CPython type of a value that is being differentiated.
#pragma once

#include "python.h"
#include "value.h"

namespace mixgrad::core {

struct ArrayObject {
  PyObject_HEAD Value* value;
  PyObject* weak_references;
};

extern PyTypeObject* array_type;

inline bool is_array(PyObject* object) noexcept { return Py_IS_TYPE(object, array_type); }
inline Value* array_value(PyObject* array) noexcept { return reinterpret_cast<ArrayObject*>(array)->value; }
inline ValueRef value_of(PyObject* array) noexcept { return ValueRef::borrow(array_value(array)); }
/// A new Array; throws.
PyObject* make_array(ValueRef value);

/// Makes the type and adds it to the module.
void init_array(PyObject* module);
/// Installs the callables that protocol methods forward to, and further methods. Called once, by the Python package.
void install_array_methods(PyObject* protocol, PyObject* methods);

/// While a recorded gradient written in Python runs: turning an Array into plain numbers there would lose the gradient.
extern thread_local int recorded_gradient_depth;

}  // namespace mixgrad::core
