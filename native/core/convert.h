// SPDX-License-Identifier: Apache-2.0
//
// Between Python objects and values.
#pragma once

#include "python.h"
#include "value.h"

namespace mixgrad::core {

/// An operand: Array, number, NumPy scalar, ndarray; null (no exception) for an object that is none of these.
ValueRef to_value_or_null(PyObject* object);
/// As above, sequences too; throws TypeError that names `what` for anything else.
ValueRef to_value(PyObject* object, const char* what);
/// From what a Python implementation returned: null when it is not an array of a dtype that values have. A result that
/// somebody else could still write into is copied when small.
ValueRef result_to_value(PyObject* object);

/// A view as ndarray whose base keeps the memory alive.
Ref to_ndarray(const ValueRef& value, bool writeable = false);
/// Whether the object is an Array, or a (nested) list or tuple that holds one.
bool holds_array(PyObject* object, int depth = 0) noexcept;

/// What users get: an ndarray, or a NumPy scalar for no dimensions.
Ref to_plain(const ValueRef& value);
/// The value as an ndarray or NumPy scalar that is writable and shares memory with nothing.
Ref to_fresh(ValueRef value);

/// Same data in a new contiguous buffer.
ValueRef copy_of(const Value& value);
/// Same data in a new buffer whose axes lie (and run) as the original's do, so that NumPy sums it in the same order.
ValueRef copy_in_order(const Value& value);
/// Cast to `dtype` (complex to real: the real part); the same value when it has it.
ValueRef cast(const ValueRef& value, Dtype dtype);
/// The form in which an entry keeps a value: foreign memory that is small or not dense is copied.
ValueRef saved_form(const ValueRef& value);

Dtype dtype_of(PyArray_Descr* descr) noexcept;
/// NumPy's promotion of two dtypes of operands that are not Python numbers; `other` when it is none of ours.
Dtype promote(Dtype a, Dtype b) noexcept;

}  // namespace mixgrad::core
