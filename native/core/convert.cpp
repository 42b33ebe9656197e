// SPDX-License-Identifier: Apache-2.0
#include "convert.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "array.h"
#include "kernels.h"

namespace mixgrad::core {

namespace {

constexpr int kNumpyHalf = NPY_HALF;

void release_object(void* object) noexcept { Py_DECREF(static_cast<PyObject*>(object)); }

/// Whether the elements fill one block of memory without gaps (in any order of axes).
bool dense(PyArrayObject* array) noexcept { return PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array); }

ValueRef borrow(PyArrayObject* array, Dtype dtype) {
  Py_INCREF(array);
  Buffer* buffer;
  try {
    buffer =
        Buffer::borrow(PyArray_BYTES(array), static_cast<std::size_t>(PyArray_NBYTES(array)), array, release_object);
  } catch (...) {
    Py_DECREF(array);
    throw;
  }
  const auto ndim = static_cast<std::size_t>(PyArray_NDIM(array));
  std::int64_t shape[kMaxDims], strides[kMaxDims];
  for (std::size_t i = 0; i < ndim; ++i) {
    shape[i] = PyArray_DIM(array, static_cast<int>(i));
    strides[i] = PyArray_STRIDE(array, static_cast<int>(i));
  }
  return make_over(buffer, PyArray_BYTES(array), dtype, {shape, ndim}, {strides, ndim});
}

ValueRef from_ndarray(PyArrayObject* array) {
  Dtype dtype = dtype_of(PyArray_DESCR(array));
  Ref converted;
  if (dtype == Dtype::other) {
    if (PyArray_TYPE(array) != kNumpyHalf)
      raise_error(
          "UnsupportedError",
          "an array of dtype %S met an Array: mixgrad differentiates float32, float64, complex64 and complex128, and "
          "takes booleans, integers and float16 as constants beside them. Convert it first, for instance with "
          ".astype(np.float64)",
          reinterpret_cast<PyObject*>(PyArray_DESCR(array)));
    // float16 has no loops of its own here; float32 holds each of its values.
    converted = Ref::steal(PyArray_CastToType(array, PyArray_DescrFromType(NPY_FLOAT), 0));
    dtype = Dtype::float32;
  } else if (!PyArray_ISBEHAVED_RO(array)) {
    converted = Ref::steal(PyArray_CastToType(array, PyArray_DescrFromType(PyArray_TYPE(array)), 0));
  } else if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array))) {
    converted = Ref::steal(PyArray_View(array, nullptr, &PyArray_Type));
  }
  if (converted) array = reinterpret_cast<PyArrayObject*>(converted.get());
  // A few bytes are cheaper to copy than to share: the tape could keep only a copy of them anyway.
  constexpr npy_intp kSmall = 512;
  if (PyArray_IS_C_CONTIGUOUS(array) && PyArray_NBYTES(array) <= kSmall) {
    const int ndim = PyArray_NDIM(array);
    std::int64_t shape[kMaxDims];
    for (int i = 0; i < ndim; ++i) shape[i] = PyArray_DIM(array, i);
    ValueRef copy = make_value(dtype, {shape, static_cast<std::size_t>(ndim)});
    std::memcpy(copy->data, PyArray_DATA(array), static_cast<std::size_t>(PyArray_NBYTES(array)));
    return copy;
  }
  return borrow(array, dtype);
}

}  // namespace

bool holds_array(PyObject* object, int depth) noexcept {
  if (is_array(object)) return true;
  if (depth > 4 || !(PyTuple_CheckExact(object) || PyList_CheckExact(object))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
    if (holds_array(PySequence_Fast_GET_ITEM(object, i), depth + 1)) return true;
  return false;
}

Dtype dtype_of(PyArray_Descr* descr) noexcept {
  const int type = descr->type_num;
  if ((type >= NPY_BOOL && type <= NPY_DOUBLE) || type == NPY_CFLOAT || type == NPY_CDOUBLE)
    return static_cast<Dtype>(type);
  return Dtype::other;
}

Dtype promote(Dtype a, Dtype b) noexcept {
  if (a == b) return a;
  if (a == Dtype::other || b == Dtype::other) return Dtype::other;
  const Ref left = Ref::steal_or_null(reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(a))));
  const Ref right = Ref::steal_or_null(reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(b))));
  const Ref both = Ref::steal_or_null(reinterpret_cast<PyObject*>(PyArray_PromoteTypes(
      reinterpret_cast<PyArray_Descr*>(left.get()), reinterpret_cast<PyArray_Descr*>(right.get()))));
  if (!both) {
    PyErr_Clear();
    return Dtype::other;
  }
  return dtype_of(reinterpret_cast<PyArray_Descr*>(both.get()));
}

ValueRef to_value_or_null(PyObject* object) {
  if (is_array(object)) return value_of(object);
  if (PyFloat_CheckExact(object)) return make_number(PyFloat_AS_DOUBLE(object), 0.0, false);
  if (PyLong_CheckExact(object) || PyBool_Check(object)) {
    const double number = PyLong_AsDouble(object);
    if (number == -1.0 && PyErr_Occurred()) throw PythonError();
    return make_number(number, 0.0, false);
  }
  if (PyArray_Check(object)) return from_ndarray(reinterpret_cast<PyArrayObject*>(object));
  if (PyArray_IsScalar(object, Generic)) {
    const Ref array = Ref::steal(PyArray_FromScalar(object, nullptr));
    return from_ndarray(reinterpret_cast<PyArrayObject*>(array.get()));
  }
  if (PyFloat_Check(object)) return make_number(PyFloat_AS_DOUBLE(object), 0.0, false);
  if (PyLong_Check(object)) {
    const double number = PyLong_AsDouble(object);
    if (number == -1.0 && PyErr_Occurred()) throw PythonError();
    return make_number(number, 0.0, false);
  }
  if (PyComplex_Check(object)) {
    const Py_complex number = PyComplex_AsCComplex(object);
    return make_number(number.real, number.imag, true);
  }
  return {};
}

ValueRef to_value(PyObject* object, const char* what) {
  if (ValueRef value = to_value_or_null(object)) return value;
  if (PyList_Check(object) || PyTuple_Check(object)) {
    if (holds_array(object))
      raise_error("UnsupportedError",
                  "%s is a list that holds an Array; join them first with mixgrad.numpy.stack or mixgrad.numpy.array",
                  what);
    const Ref array = Ref::steal(PyArray_FROM_O(object));
    return from_ndarray(reinterpret_cast<PyArrayObject*>(array.get()));
  }
  if (object != Py_None && PyObject_HasAttrString(object, "__array__")) {
    const Ref array = Ref::steal(PyArray_FROM_O(object));
    return from_ndarray(reinterpret_cast<PyArrayObject*>(array.get()));
  }
  raise(PyExc_TypeError, "%s is a %.200s; an array or a number is needed", what, Py_TYPE(object)->tp_name);
}

ValueRef result_to_value(PyObject* object) {
  if (is_array(object)) return value_of(object);
  if (PyFloat_CheckExact(object)) return make_scalar(Dtype::float64, PyFloat_AS_DOUBLE(object));
  if (PyComplex_CheckExact(object)) {
    const Py_complex number = PyComplex_AsCComplex(object);
    return make_scalar(Dtype::complex128, number.real, number.imag);
  }
  if (PyArray_IsScalar(object, Generic)) {
    const Ref array = Ref::steal(PyArray_FromScalar(object, nullptr));
    if (dtype_of(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(array.get()))) == Dtype::other) return {};
    return from_ndarray(reinterpret_cast<PyArrayObject*>(array.get()));
  }
  if (!PyArray_Check(object)) return {};
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (dtype_of(PyArray_DESCR(array)) == Dtype::other) return {};
  // Referenced by us alone and owning its data: nobody else can write into it, and it goes on as it is, not copied.
  const bool ours = Py_REFCNT(object) == 1 && PyArray_CheckExact(object) && PyArray_BASE(array) == nullptr &&
                    PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA | NPY_ARRAY_WRITEABLE) && PyArray_ISBEHAVED_RO(array);
  if (ours) {
    ValueRef value = borrow(array, dtype_of(PyArray_DESCR(array)));
    PyArray_CLEARFLAGS(array, NPY_ARRAY_WRITEABLE);
    value->buffer->locked = true;
    return value;
  }
  ValueRef value = from_ndarray(array);
  if (value->buffer->foreign() && value->bytes() <= kCopyLimit) return copy_of(*value);
  return value;
}

namespace {
/// The ndarray that a value was made from, when it is the value's alone and shows it whole; null otherwise.
PyArrayObject* locked_owner(const Value& value) noexcept {
  if (!value.buffer->locked) return nullptr;
  auto* array = static_cast<PyArrayObject*>(value.buffer->owner);
  if (PyArray_BYTES(array) != value.data || PyArray_NDIM(array) != value.ndim ||
      PyArray_TYPE(array) != static_cast<int>(value.dtype))
    return nullptr;
  for (int i = 0; i < value.ndim; ++i)
    if (PyArray_DIM(array, i) != value.shape[i] || PyArray_STRIDE(array, i) != value.strides[i]) return nullptr;
  return array;
}
}  // namespace

Ref to_ndarray(const ValueRef& value, bool writeable) {
  if (!writeable)
    if (PyArrayObject* owner = locked_owner(*value)) return Ref::borrow(reinterpret_cast<PyObject*>(owner));
  Ref base = Ref::steal(make_array(value));
  npy_intp shape[kMaxDims], strides[kMaxDims];
  for (int i = 0; i < value->ndim; ++i) {
    shape[i] = value->shape[i];
    strides[i] = value->strides[i];
  }
  PyArray_Descr* descr = PyArray_DescrFromType(static_cast<int>(value->dtype));
  Ref array = Ref::steal(PyArray_NewFromDescr(&PyArray_Type, descr, value->ndim, shape, strides, value->data,
                                              writeable ? NPY_ARRAY_WRITEABLE : 0, nullptr));
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.get()), base.release()) < 0) throw PythonError();
  return array;
}

namespace {
Ref scalar_of(const Value& value) {
  PyArray_Descr* descr = PyArray_DescrFromType(static_cast<int>(value.dtype));
  const Ref holder = Ref::steal(reinterpret_cast<PyObject*>(descr));
  return Ref::steal(PyArray_Scalar(value.data, descr, nullptr));
}
}  // namespace

Ref to_plain(const ValueRef& value) { return value->ndim == 0 ? scalar_of(*value) : to_ndarray(value); }

Ref to_fresh(ValueRef value) {
  if (value->ndim == 0) return scalar_of(*value);
  if (PyArrayObject* owner = locked_owner(*value);
      owner && value->uses == 1 && value->buffer->references == 1 && Py_REFCNT(owner) == 1) {
    PyArray_ENABLEFLAGS(owner, NPY_ARRAY_WRITEABLE);
    return Ref::borrow(reinterpret_cast<PyObject*>(owner));
  }
  const bool alone = value->uses == 1 && value->buffer->references == 1 && !value->buffer->foreign() &&
                     value->contiguous && value->bytes() == value->buffer->bytes;
  if (!alone) value = copy_of(*value);
  return to_ndarray(value, true);
}

ValueRef copy_of(const Value& value) {
  ValueRef copy = make_value(value.dtype, value.shape_span());
  kernels::copy(value.view(), copy->view());
  return copy;
}

ValueRef copy_in_order(const Value& value) {
  if (value.contiguous) return copy_of(value);
  int order[kMaxDims];
  for (int i = 0; i < value.ndim; ++i) order[i] = i;
  std::stable_sort(order, order + value.ndim,
                   [&](int a, int b) { return std::llabs(value.strides[a]) > std::llabs(value.strides[b]); });
  std::int64_t strides[kMaxDims];
  auto stride = static_cast<std::int64_t>(item_size(value.dtype));
  std::int64_t offset = 0;
  for (int i = value.ndim; i-- > 0;) {
    const int axis = order[i];
    const bool backwards = value.strides[axis] < 0 && value.shape[axis] > 0;
    strides[axis] = backwards ? -stride : stride;
    if (backwards) offset += stride * (value.shape[axis] - 1);
    stride *= value.shape[axis];
  }
  Buffer* buffer = Buffer::allocate(value.bytes());
  ValueRef copy = make_over(buffer, buffer->data + offset, value.dtype, value.shape_span(), {strides, value.ndim});
  kernels::copy(value.view(), copy->view());
  return copy;
}

ValueRef cast(const ValueRef& value, Dtype dtype) {
  if (value->dtype == dtype) return value;
  ValueRef result = make_value(dtype, value->shape_span());
  kernels::copy(value->view(), result->view());
  return result;
}

ValueRef saved_form(const ValueRef& value) {
  if (!value->buffer->exposed() || value->position >= 0) return value;
  // The part of a buffer that is not dense would be checked together with memory that is not its own.
  const bool whole = value->bytes() == value->buffer->bytes;
  if (value->buffer->bytes > kCopyLimit && whole) {
    auto* array = static_cast<PyArrayObject*>(value->buffer->owner);
    if (dense(array)) return value;
  }
  return copy_in_order(*value);
}

}  // namespace mixgrad::core
