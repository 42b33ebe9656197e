// SPDX-License-Identifier: Apache-2.0
#include "array.h"

#include <structmember.h>

#include "convert.h"
#include "dispatch.h"

namespace mixgrad::core {

PyTypeObject* array_type = nullptr;
thread_local int recorded_gradient_depth = 0;

namespace {

PyObject* protocol_ufunc = nullptr;
PyObject* protocol_function = nullptr;

ArrayObject* object_of(PyObject* self) noexcept { return reinterpret_cast<ArrayObject*>(self); }

// --- operators: each slot runs the op of its name -------------------------------------------------------------------

/// The op of an operator, looked up again only after a registration.
struct OperatorOp {
  const char* name;
  const Op* op = nullptr;
  std::uint64_t version = 0;

  const Op& get() {
    Registry& registry = Registry::instance();
    if (!op || version != registry.version()) [[unlikely]] {
      op = &registry.get(name);
      version = registry.version();
    }
    return *op;
  }
};

OperatorOp op_add{"add"}, op_subtract{"subtract"}, op_multiply{"multiply"}, op_divide{"divide"}, op_power{"power"},
    op_square{"square"}, op_sqrt{"sqrt"}, op_reciprocal{"reciprocal"}, op_remainder{"remainder"},
    op_floor_divide{"floor_divide"}, op_matmul{"matmul"}, op_negative{"negative"}, op_positive{"positive"},
    op_absolute{"absolute"}, op_getitem{"getitem"}, op_transpose{"transpose"}, op_copy{"copy"};
OperatorOp op_compare[] = {{"less"}, {"less_equal"}, {"equal"}, {"not_equal"}, {"greater"}, {"greater_equal"}};

PyObject* run_op(const Op& op, std::span<ValueRef> inputs, PyObject* attributes = nullptr) {
  return run_to_python(op, inputs, attributes ? attributes : op.defaults.get()).release();
}

PyObject* unary(OperatorOp& op, PyObject* self) noexcept {
  return guarded<PyObject*>(nullptr, [&] {
    ValueRef inputs[] = {value_of(self)};
    return run_op(op.get(), inputs);
  });
}

/// As an ndarray takes it: lists too.
ValueRef operand(PyObject* object) {
  if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return to_value(object, "an operand");
  return to_value_or_null(object);
}

PyObject* binary(OperatorOp& op, PyObject* left, PyObject* right) noexcept {
  return guarded<PyObject*>(nullptr, [&] {
    ValueRef inputs[] = {operand(left), operand(right)};
    if (!inputs[0] || !inputs[1]) return Py_NewRef(Py_NotImplemented);
    return run_op(op.get(), inputs);
  });
}

template <OperatorOp& op>
PyObject* unary_slot(PyObject* self) {
  return unary(op, self);
}
template <OperatorOp& op>
PyObject* binary_slot(PyObject* left, PyObject* right) {
  return binary(op, left, right);
}

// `**` is not np.power: ndarray.__pow__ squares, takes roots and inverts for these exponents, to other last bits.
OperatorOp* special_power(PyObject* exponent) noexcept {
  double number;
  if (PyFloat_CheckExact(exponent)) {
    number = PyFloat_AS_DOUBLE(exponent);
  } else if (PyLong_CheckExact(exponent)) {
    number = PyLong_AsDouble(exponent);
    if (number == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      return nullptr;
    }
  } else {
    return nullptr;
  }
  if (number == 2.0) return &op_square;
  if (number == 1.0) return &op_positive;
  if (number == -1.0) return &op_reciprocal;
  if (number == 0.5) return &op_sqrt;
  return nullptr;
}

PyObject* power_slot(PyObject* base, PyObject* exponent, PyObject* modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  if (is_array(base))
    if (OperatorOp* special = special_power(exponent)) return unary(*special, base);
  return binary(op_power, base, exponent);
}

PyObject* compare_slot(PyObject* left, PyObject* right, int which) { return binary(op_compare[which], left, right); }

// --- as a number ----------------------------------------------------------------------------------------------------

/// Plain numbers lose the gradient: refused inside a gradient that is being recorded.
void check_conversion(PyObject* self, const char* how) {
  if (recorded_gradient_depth == 0 || Tape::current().live(*array_value(self)) == 0) return;
  raise_error(
      "ConversionError",
      "%s of an Array inside a gradient that is itself being differentiated: the higher-order derivative would be lost "
      "without a sign. Use mixgrad.numpy functions and operators in the gradient, or register it with "
      "differentiable=False",
      how);
}

PyObject* as_number(PyObject* self, const char* how, PyObject* (*convert)(PyObject*)) noexcept {
  return guarded<PyObject*>(nullptr, [&] {
    check_conversion(self, how);
    const Ref plain = to_plain(value_of(self));
    return convert(plain.get());
  });
}

PyObject* float_slot(PyObject* self) { return as_number(self, "float()", PyNumber_Float); }
PyObject* int_slot(PyObject* self) { return as_number(self, "int()", PyNumber_Long); }
PyObject* complex_method(PyObject* self, PyObject*) {
  return as_number(self, "complex()", [](PyObject* plain) {
    return PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyComplex_Type), plain);
  });
}

int bool_slot(PyObject* self) {
  return guarded(-1, [&] { return PyObject_IsTrue(to_plain(value_of(self)).get()); });
}

// --- indexing -------------------------------------------------------------------------------------------------------

PyObject* subscript_slot(PyObject* self, PyObject* index) {
  return guarded<PyObject*>(nullptr, [&] {
    const Op& op = op_getitem.get();
    if (is_array(index))
      raise(PyExc_IndexError,
            "an Array cannot be an index: it holds floats. Index with integers, slices, booleans or integer "
            "arrays");
    const Ref attributes = Ref::steal(PyTuple_Pack(1, index));
    ValueRef inputs[] = {value_of(self)};
    return run_op(op, inputs, attributes.get());
  });
}

int assign_slot(PyObject*, PyObject*, PyObject*) {
  return guarded(-1, []() -> int {
    raise_error(
        "UnsupportedError",
        "an Array cannot be changed in place: what was recorded would no longer be true. Make a new one, for instance with "
        "mixgrad.numpy.where(mask, new, x), or concatenate its parts");
  });
}

Py_ssize_t length_slot(PyObject* self) {
  const Value& value = *array_value(self);
  if (value.ndim == 0) {
    PyErr_SetString(PyExc_TypeError, "len() of an Array with no dimensions");
    return -1;
  }
  return static_cast<Py_ssize_t>(value.shape[0]);
}

PyObject* item_slot(PyObject* self, Py_ssize_t index) {
  const Value& value = *array_value(self);
  if (value.ndim == 0 || index >= value.shape[0]) {
    PyErr_SetString(PyExc_IndexError, "Array index out of range");
    return nullptr;
  }
  PyObject* key = PyLong_FromSsize_t(index);
  if (!key) return nullptr;
  PyObject* item = subscript_slot(self, key);
  Py_DECREF(key);
  return item;
}

PyObject* iter_slot(PyObject* self) {
  if (array_value(self)->ndim == 0) {
    PyErr_SetString(PyExc_TypeError, "iteration over an Array with no dimensions");
    return nullptr;
  }
  return PySeqIter_New(self);
}

// --- what it is -----------------------------------------------------------------------------------------------------

PyObject* get_shape(PyObject* self, void*) {
  const Value& value = *array_value(self);
  PyObject* shape = PyTuple_New(value.ndim);
  for (int i = 0; shape && i < value.ndim; ++i) PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(value.shape[i]));
  return shape;
}
PyObject* get_dtype(PyObject* self, void*) {
  return reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(array_value(self)->dtype)));
}
PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromLong(array_value(self)->ndim); }
PyObject* get_size(PyObject* self, void*) { return PyLong_FromLongLong(array_value(self)->size); }
PyObject* get_itemsize(PyObject* self, void*) { return PyLong_FromSize_t(item_size(array_value(self)->dtype)); }
PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromSize_t(array_value(self)->bytes()); }
PyObject* get_transpose(PyObject* self, void*) { return unary(op_transpose, self); }

PyObject* array_method(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"dtype", "copy", nullptr};
  PyObject *dtype = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", const_cast<char**>(names), &dtype, &copy))
    return nullptr;
  return guarded<PyObject*>(nullptr, [&] {
    check_conversion(self, "np.asarray()");
    const Ref view = to_ndarray(value_of(self));
    if (dtype != Py_None) {
      const Ref astype = Ref::steal(PyObject_GetAttrString(view.get(), "astype"));
      const Ref kwargs_ = Ref::steal(Py_BuildValue("{s:O}", "copy", copy == Py_True ? Py_True : Py_False));
      const Ref arguments = Ref::steal(PyTuple_Pack(1, dtype));
      return PyObject_Call(astype.get(), arguments.get(), kwargs_.get());
    }
    if (copy == Py_True) return PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(view.get()), NPY_KEEPORDER);
    return Py_NewRef(view.get());
  });
}

PyObject* item_method(PyObject* self, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    check_conversion(self, "item()");
    const Ref view = to_ndarray(value_of(self));
    const Ref item = Ref::steal(PyObject_GetAttrString(view.get(), "item"));
    return PyObject_Call(item.get(), args, nullptr);
  });
}

PyObject* tolist_method(PyObject* self, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    check_conversion(self, "tolist()");
    const Ref view = to_ndarray(value_of(self));
    return PyObject_CallMethod(view.get(), "tolist", nullptr);
  });
}

PyObject* copy_method(PyObject* self, PyObject*) { return unary(op_copy, self); }

PyObject* reduce_method(PyObject* self, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    if (Tape::current().live(*array_value(self)) != 0)
      raise_error(
          "UnsupportedError",
          "an Array that is being recorded cannot be pickled: its place on the tape would be lost. Pickle its value, "
          "np.asarray(array)");
    const Ref module = Ref::steal(PyImport_ImportModule("mixgrad._core"));
    const Ref constant = Ref::steal(PyObject_GetAttrString(module.get(), "constant"));
    const Ref plain =
        Ref::steal(PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(to_ndarray(value_of(self)).get()), NPY_CORDER));
    return Py_BuildValue("(O(O))", constant.get(), plain.get());
  });
}

PyObject* format_method(PyObject* self, PyObject* spec) {
  return guarded<PyObject*>(nullptr, [&] {
    if (PyUnicode_GetLength(spec) == 0) return PyObject_Str(self);
    return PyObject_Format(to_plain(value_of(self)).get(), spec);
  });
}

PyObject* repr_slot(PyObject* self) {
  return guarded<PyObject*>(nullptr, [&] {
    const ValueRef value = value_of(self);
    const Ref numpy = Ref::steal(PyImport_ImportModule("numpy"));
    const Ref text =
        Ref::steal(PyObject_CallMethod(numpy.get(), "array2string", "Os", to_ndarray(value).get(), nullptr));
    const bool recorded = Tape::current().live(*value) != 0;
    return PyUnicode_FromFormat("Array(%U, dtype=%s%s)", text.get(), dtype_name(value->dtype),
                                recorded ? ", recorded" : "");
  });
}

PyObject* str_slot(PyObject* self) {
  return guarded<PyObject*>(nullptr, [&] { return PyObject_Str(to_plain(value_of(self)).get()); });
}

Py_hash_t hash_slot(PyObject* self) { return static_cast<Py_hash_t>(reinterpret_cast<std::uintptr_t>(self) >> 4); }

// --- NumPy's protocols: forwarded to the callables that the package installs -----------------------------------------

PyObject* forward_protocol(PyObject* callable, PyObject* self, PyObject* args, PyObject* kwargs) noexcept {
  return guarded<PyObject*>(nullptr, [&] {
    if (!callable) raise(PyExc_RuntimeError, "mixgrad is not fully imported yet");
    const Py_ssize_t n = PyTuple_GET_SIZE(args);
    const Ref all = Ref::steal(PyTuple_New(n + 1));
    PyTuple_SET_ITEM(all.get(), 0, Py_NewRef(self));
    for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SET_ITEM(all.get(), i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
    return PyObject_Call(callable, all.get(), kwargs);
  });
}

PyObject* array_ufunc_method(PyObject* self, PyObject* args, PyObject* kwargs) {
  return forward_protocol(protocol_ufunc, self, args, kwargs);
}
PyObject* array_function_method(PyObject* self, PyObject* args, PyObject* kwargs) {
  return forward_protocol(protocol_function, self, args, kwargs);
}

void dealloc_slot(PyObject* self) {
  ArrayObject* array = object_of(self);
  if (array->weak_references) PyObject_ClearWeakRefs(self);
  PyTypeObject* type = Py_TYPE(self);
  array->value->unuse();
  --counters.arrays;
  pool::release(self, sizeof(ArrayObject));
  Py_DECREF(type);
}

PyCFunction with_keywords(PyObject* (*function)(PyObject*, PyObject*, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyGetSetDef getset[] = {{"shape", get_shape, nullptr, "Lengths of the axes.", nullptr},
                        {"dtype", get_dtype, nullptr, "The NumPy dtype.", nullptr},
                        {"ndim", get_ndim, nullptr, "Number of axes.", nullptr},
                        {"size", get_size, nullptr, "Number of elements.", nullptr},
                        {"itemsize", get_itemsize, nullptr, "Bytes of one element.", nullptr},
                        {"nbytes", get_nbytes, nullptr, "Bytes of all elements.", nullptr},
                        {"T", get_transpose, nullptr, "The transpose.", nullptr},
                        {}};

PyMethodDef methods[] = {
    {"__array__", with_keywords(array_method), METH_VARARGS | METH_KEYWORDS,
     "__array__($self, /, dtype=None, copy=None)\n--\n\nThe value as a read-only ndarray."},
    {"__array_ufunc__", with_keywords(array_ufunc_method), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__array_function__", with_keywords(array_function_method), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__complex__", complex_method, METH_NOARGS, nullptr},
    {"__reduce__", reduce_method, METH_NOARGS, nullptr},
    {"__copy__", copy_method, METH_NOARGS, nullptr},
    {"__deepcopy__", copy_method, METH_O, nullptr},
    {"__format__", format_method, METH_O, nullptr},
    {"copy", copy_method, METH_NOARGS, "copy($self, /)\n--\n\nA copy, recorded as an identity."},
    {"item", item_method, METH_VARARGS, "item($self, /, *index)\n--\n\nOne element as a Python number."},
    {"tolist", tolist_method, METH_NOARGS, "tolist($self, /)\n--\n\nThe elements as nested lists."},
    {}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(ArrayObject, weak_references), READONLY, nullptr},
                         {}};

template <class Function>
PyType_Slot slot(int id, Function* function) {
  return {id, reinterpret_cast<void*>(function)};
}

PyType_Slot slots[] = {
    slot(Py_tp_dealloc, dealloc_slot),
    slot(Py_tp_repr, repr_slot),
    slot(Py_tp_str, str_slot),
    slot(Py_tp_hash, hash_slot),
    slot(Py_tp_iter, iter_slot),
    slot(Py_tp_richcompare, compare_slot),
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, const_cast<char*>("A value that is being differentiated. Made by Tape.watch and by the "
                                  "transforms; use it as you would an ndarray.")},
    slot(Py_nb_add, binary_slot<op_add>),
    slot(Py_nb_subtract, binary_slot<op_subtract>),
    slot(Py_nb_multiply, binary_slot<op_multiply>),
    slot(Py_nb_true_divide, binary_slot<op_divide>),
    slot(Py_nb_floor_divide, binary_slot<op_floor_divide>),
    slot(Py_nb_remainder, binary_slot<op_remainder>),
    slot(Py_nb_matrix_multiply, binary_slot<op_matmul>),
    slot(Py_nb_power, power_slot),
    slot(Py_nb_negative, unary_slot<op_negative>),
    slot(Py_nb_positive, unary_slot<op_positive>),
    slot(Py_nb_absolute, unary_slot<op_absolute>),
    slot(Py_nb_float, float_slot),
    slot(Py_nb_int, int_slot),
    slot(Py_nb_bool, bool_slot),
    slot(Py_mp_subscript, subscript_slot),
    slot(Py_mp_ass_subscript, assign_slot),
    slot(Py_mp_length, length_slot),
    slot(Py_sq_item, item_slot),
    slot(Py_sq_length, length_slot),
    {0, nullptr}};

PyType_Spec spec = {"mixgrad.Array", sizeof(ArrayObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

}  // namespace

PyObject* make_array(ValueRef value) {
  auto* object = static_cast<PyObject*>(pool::allocate(sizeof(ArrayObject)));
  PyObject_Init(object, array_type);
  object_of(object)->value = value.release();
  object_of(object)->weak_references = nullptr;
  ++counters.arrays;
  return object;
}

void init_array(PyObject* module) {
  const Ref type = Ref::steal(PyType_FromSpec(&spec));
  array_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  if (PyModule_AddObjectRef(module, "Array", type.get()) < 0) throw PythonError();
}

void install_array_methods(PyObject* protocol, PyObject* further) {
  Py_XSETREF(protocol_ufunc, Py_NewRef(PyTuple_GetItem(protocol, 0)));
  Py_XSETREF(protocol_function, Py_NewRef(PyTuple_GetItem(protocol, 1)));
  PyObject *name, *function;
  Py_ssize_t at = 0;
  while (PyDict_Next(further, &at, &name, &function))
    if (PyObject_SetAttr(reinterpret_cast<PyObject*>(array_type), name, function) < 0) throw PythonError();
#if PY_VERSION_HEX >= 0x030a0000
  array_type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
#endif
  PyType_Modified(array_type);
}

}  // namespace mixgrad::core
