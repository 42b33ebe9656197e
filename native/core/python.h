// SPDX-License-Identifier: Apache-2.0
//
// Python and NumPy as the core sees them: the one place that includes their headers, and owning references.
#pragma once

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL mixgrad_ARRAY_API
#define PY_UFUNC_UNIQUE_SYMBOL mixgrad_UFUNC_API
#ifndef MIXGRAD_IMPORT_NUMPY
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include <exception>
#include <utility>

namespace mixgrad::core {

/// Thrown when a Python exception is set: it crosses C++ as this and leaves at the next C slot unchanged.
struct PythonError : std::exception {
  const char* what() const noexcept override { return "a Python exception is set"; }
};

/// An owned reference to a Python object.
class Ref {
 public:
  Ref() noexcept = default;
  Ref(const Ref& other) noexcept : object_(Py_XNewRef(other.object_)) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  /// Takes over a new reference; throws when it is null.
  static Ref steal(PyObject* object) {
    if (!object) throw PythonError();
    return steal_or_null(object);
  }
  static Ref steal_or_null(PyObject* object) noexcept {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  static Ref borrow(PyObject* object) noexcept { return steal_or_null(Py_XNewRef(object)); }

  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// Releases the GIL for its lifetime: only around loops over raw memory.
class ReleasedGil {
 public:
  ReleasedGil() noexcept : thread_(PyEval_SaveThread()) {}
  ~ReleasedGil() { PyEval_RestoreThread(thread_); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* thread_;
};

/// Sets a Python exception of a built-in type and throws.
[[noreturn]] void raise(PyObject* type, const char* format, ...);
/// Sets an exception of a class of mixgrad.errors, found by name, and throws.
[[noreturn]] void raise_error(const char* class_name, const char* format, ...);
/// Turns the C++ exception in flight into a Python one. For the boundary of a C slot.
void set_python_error() noexcept;

/// Runs `body` at the boundary of a C slot: no C++ exception passes, `failure` is returned with a Python exception set.
template <class Result, class Body>
Result guarded(Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    set_python_error();
    return failure;
  }
}

}  // namespace mixgrad::core
