// SPDX-License-Identifier: Apache-2.0
#include "op.h"

#include <structmember.h>

#include <cstring>

#include "array.h"
#include "convert.h"

namespace mixgrad::core {

namespace {

struct OpObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  Op* op;
  PyObject* dict;
};

PyTypeObject* op_type = nullptr;

OpObject* object_of(PyObject* self) noexcept { return reinterpret_cast<OpObject*>(self); }

/// The arguments of one call in the op's order. Objects are borrowed from the caller, or kept here.
struct Bound {
  Few<PyObject*> inputs;
  Ref attributes;
  Ref sequence;
};

[[noreturn]] void refuse_keyword(const Op& op, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) throw PythonError();
  if (std::strcmp(text, "out") == 0)
    raise_error("UnsupportedError",
                "%s: out= cannot be used with an Array, which is never changed in place; use the result instead",
                op.name.c_str());
  if (std::strcmp(text, "where") == 0)
    raise_error("UnsupportedError",
                "%s: where= of a ufunc leaves elements undefined and cannot be used with an Array; use "
                "mixgrad.numpy.where(condition, %s(...), other)",
                op.name.c_str(), op.name.c_str());
  if (std::strcmp(text, "dtype") == 0 || std::strcmp(text, "casting") == 0 || std::strcmp(text, "order") == 0 ||
      std::strcmp(text, "subok") == 0 || std::strcmp(text, "signature") == 0)
    raise_error("UnsupportedError", "%s: %s= cannot be used with an Array; convert the inputs first, with .astype(...)",
                op.name.c_str(), text);
  raise(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", op.name.c_str(), name);
}

void add_input(Bound& bound, const Op& op, std::size_t index, PyObject* object) {
  if (!op.variadic) {
    bound.inputs[index] = object;
    return;
  }
  // Kept: the sequence may be a generator, or changed by another thread.
  bound.sequence = is_array(object) ? Ref::steal(PySequence_List(object))
                                    : Ref::steal(PySequence_Fast(object, "a sequence of arrays is needed"));
  const auto n = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(bound.sequence.get()));
  bound.inputs.resize(n);
  for (std::size_t i = 0; i < n; ++i)
    bound.inputs[i] = PySequence_Fast_GET_ITEM(bound.sequence.get(), static_cast<Py_ssize_t>(i));
}

void bind(const Op& op, PyObject* const* args, std::size_t n_args, PyObject* kwnames, Bound& bound) {
  const std::size_t n_inputs = op.input_names.size();
  if (!op.variadic) bound.inputs.resize(n_inputs);
  if (!kwnames && n_args == n_inputs && op.defaults && !op.variadic && op.parameters.size() >= n_inputs) {
    bool plain = true;
    for (std::size_t i = 0; i < n_inputs; ++i) plain = plain && op.parameters[i].is_input;
    if (plain) {
      for (std::size_t i = 0; i < n_inputs; ++i) bound.inputs[i] = args[i];
      bound.attributes = op.defaults;
      return;
    }
  }
  const std::size_t n_parameters = op.parameters.size();
  Few<PyObject*, 12> given(n_parameters);
  for (std::size_t i = 0; i < n_parameters; ++i) given[i] = nullptr;
  std::size_t positional = 0;
  while (positional < n_parameters && !op.parameters[positional].keyword_only) ++positional;
  if (n_args > positional)
    raise(PyExc_TypeError, "%s() takes at most %zu positional arguments, %zu were given", op.name.c_str(), positional,
          n_args);
  for (std::size_t i = 0; i < n_args; ++i) given[i] = args[i];
  const Py_ssize_t n_keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < n_keywords; ++k) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, k);
    std::size_t at = 0;
    while (at < n_parameters && op.parameters[at].name.get() != name &&
           PyUnicode_Compare(op.parameters[at].name.get(), name) != 0)
      ++at;
    if (at == n_parameters) refuse_keyword(op, name);
    if (given[at]) raise(PyExc_TypeError, "%s() got multiple values for argument '%U'", op.name.c_str(), name);
    given[at] = args[n_args + static_cast<std::size_t>(k)];
  }
  Ref attributes;
  if (!op.attribute_names.empty())
    attributes = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(op.attribute_names.size())));
  for (std::size_t i = 0; i < n_parameters; ++i) {
    const Parameter& parameter = op.parameters[i];
    PyObject* value = given[i] ? given[i] : parameter.default_value.get();
    if (!value) raise(PyExc_TypeError, "%s() missing required argument '%U'", op.name.c_str(), parameter.name.get());
    if (parameter.is_input) {
      add_input(bound, op, parameter.index, value);
      continue;
    }
    if (holds_array(value))
      raise_error(
          "UnsupportedError",
          "argument '%U' of op '%s' is an Array, but the op is not differentiated with respect to it; pass plain values "
          "(np.asarray(array)) to say that it is a constant",
          parameter.name.get(), op.name.c_str());
    PyTuple_SET_ITEM(attributes.get(), static_cast<Py_ssize_t>(parameter.index), Py_NewRef(value));
  }
  bound.attributes = std::move(attributes);
}

bool any_array(PyObject* const* args, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    if (holds_array(args[i])) return true;
  return false;
}

PyObject* op_call(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  return guarded<PyObject*>(nullptr, [&] {
    const Op& op = *object_of(self)->op;
    const auto n_args = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
    const std::size_t n_all = n_args + static_cast<std::size_t>(kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    const Implementation& python = op.of(What::forward, Language::python);
    // On plain arrays everything is NumPy.
    if (python.present && !any_array(args, n_all)) {
      const Ref callable = python.forward;
      return PyObject_Vectorcall(callable.get(), args, nargsf, kwnames);
    }
    // One Array and nothing else: most calls of most functions.
    if (!kwnames && n_args == 1 && op.ufunc.n_inputs() == 1 && is_array(args[0])) {
      ValueRef input = value_of(args[0]);
      return run_to_python(op, {&input, 1}, op.defaults.get()).release();
    }
    Bound bound;
    bind(op, args, n_args, kwnames, bound);
    const std::size_t n = bound.inputs.size();
    Few<ValueRef> inputs(n);
    bool arrays = false;
    for (std::size_t i = 0; i < n; ++i) {
      arrays = arrays || is_array(bound.inputs[i]);
      if ((inputs[i] = to_value_or_null(bound.inputs[i]))) continue;
      const std::string what =
          "argument '" + (op.variadic ? std::to_string(i) : op.input_names[i]) + "' of op '" + op.name + "'";
      inputs[i] = to_value(bound.inputs[i], what.c_str());
    }
    if (!arrays && !op.multiple) {
      Results results;
      run(op, {inputs.data(), n}, bound.attributes.get(), results);
      return results.plain ? results.plain.release() : to_fresh(std::move(results.values[0])).release();
    }
    return run_to_python(op, {inputs.data(), n}, bound.attributes.get()).release();
  });
}

PyObject* op_repr(PyObject* self) {
  return PyUnicode_FromFormat("<mixgrad.Op '%s'>", object_of(self)->op->name.c_str());
}

void op_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(object_of(self)->dict);
  type->tp_free(self);
  Py_DECREF(type);
}

int op_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(object_of(self)->dict);
  return 0;
}

int op_clear(PyObject* self) {
  Py_CLEAR(object_of(self)->dict);
  return 0;
}

PyObject* op_reduce(PyObject* self, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Ref module = Ref::steal(PyImport_ImportModule("mixgrad._core"));
    const Ref find = Ref::steal(PyObject_GetAttrString(module.get(), "find_op"));
    return Py_BuildValue("(O(O))", find.get(), object_of(self)->op->name_object.get());
  });
}

PyObject* get_name(PyObject* self, void*) { return Py_NewRef(object_of(self)->op->name_object.get()); }

PyObject* strings(const std::vector<std::string>& list) {
  return guarded<PyObject*>(nullptr, [&] {
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(list.size())));
    for (std::size_t i = 0; i < list.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), PyUnicode_FromString(list[i].c_str()));
    return tuple.release();
  });
}
PyObject* get_aliases(PyObject* self, void*) { return strings(object_of(self)->op->aliases); }
PyObject* get_inputs(PyObject* self, void*) { return strings(object_of(self)->op->input_names); }
PyObject* get_attributes(PyObject* self, void*) { return strings(object_of(self)->op->attribute_names); }
PyObject* get_variadic(PyObject* self, void*) { return PyBool_FromLong(object_of(self)->op->variadic); }
PyObject* get_broadcasts(PyObject* self, void*) { return PyBool_FromLong(object_of(self)->op->broadcasts); }
PyObject* get_multiple(PyObject* self, void*) { return PyBool_FromLong(object_of(self)->op->multiple); }
PyObject* get_differentiable(PyObject* self, void*) { return PyBool_FromLong(object_of(self)->op->differentiable); }

PyGetSetDef getset[] = {
    {"name", get_name, nullptr, "The op's name.", nullptr},
    {"__name__", get_name, nullptr, nullptr, nullptr},
    {"aliases", get_aliases, nullptr, "Other names of the op.", nullptr},
    {"inputs", get_inputs, nullptr, "Names of the array arguments.", nullptr},
    {"attributes", get_attributes, nullptr, "Names of all other arguments.", nullptr},
    {"variadic", get_variadic, nullptr, "Whether the inputs are a sequence of arrays.", nullptr},
    {"broadcasts", get_broadcasts, nullptr, "Whether gradients may have the output's shape.", nullptr},
    {"multiple", get_multiple, nullptr, "Whether the op has several outputs.", nullptr},
    {"differentiable", get_differentiable, nullptr, "Whether the op is recorded at all.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {}};

PyMethodDef methods[] = {{"__reduce__", op_reduce, METH_NOARGS, nullptr}, {}};

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, vectorcall), READONLY, nullptr},
                         {"__dictoffset__", T_PYSSIZET, offsetof(OpObject, dict), READONLY, nullptr},
                         {}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(op_dealloc)},
                       {Py_tp_traverse, reinterpret_cast<void*>(op_traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(op_clear)},
                       {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
                       {Py_tp_getset, getset},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {0, nullptr}};

PyType_Spec spec = {
    "mixgrad.Op", sizeof(OpObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

bool is_op(PyObject* object) noexcept { return Py_IS_TYPE(object, op_type); }

Op& op_of(PyObject* object) {
  if (!is_op(object)) raise(PyExc_TypeError, "an Op is needed, not a %.200s", Py_TYPE(object)->tp_name);
  return *object_of(object)->op;
}

Ref make_op_object(Op& op) {
  Ref object = Ref::steal(op_type->tp_alloc(op_type, 0));
  object_of(object.get())->vectorcall = op_call;
  object_of(object.get())->op = &op;
  return object;
}

void init_op(PyObject* module) {
  const Ref type = Ref::steal(PyType_FromSpec(&spec));
  op_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  if (PyModule_AddObjectRef(module, "Op", type.get()) < 0) throw PythonError();
}

}  // namespace mixgrad::core
