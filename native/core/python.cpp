// SPDX-License-Identifier: Apache-2.0
#include "python.h"

#include <cstdarg>
#include <new>

namespace mixgrad::core {

void raise(PyObject* type, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type, format, arguments);
  va_end(arguments);
  throw PythonError();
}

void raise_error(const char* class_name, const char* format, ...) {
  const Ref module = Ref::steal(PyImport_ImportModule("mixgrad.errors"));
  const Ref type = Ref::steal(PyObject_GetAttrString(module.get(), class_name));
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type.get(), format, arguments);
  va_end(arguments);
  throw PythonError();
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (const PythonError&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an unknown C++ exception was thrown in mixgrad's core");
  }
}

}  // namespace mixgrad::core
