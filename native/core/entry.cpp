// SPDX-License-Identifier: Apache-2.0
#include "entry.h"

#include <structmember.h>

#include <optional>

#include "array.h"
#include "convert.h"
#include "engine.h"

namespace mixgrad::core {

namespace {

struct EntryObject {
  PyObject_HEAD Call* call;
};

PyTypeObject* entry_type = nullptr;
PyTypeObject* not_saved_type = nullptr;

Call& call_of(PyObject* self) {
  Call* call = reinterpret_cast<EntryObject*>(self)->call;
  if (!call)
    raise(PyExc_RuntimeError,
          "this entry was given to a gradient that has returned; read what you need of it while the gradient runs");
  return *call;
}

Ref argument(const Call& call, Value* value) {
  ValueRef ref = ValueRef::borrow(value);
  return call.recorded ? Ref::steal(make_array(std::move(ref))) : to_ndarray(ref);
}

/// The same call again, for another implementation.
Call sibling(const Call& outer) {
  Call call;
  call.op = outer.op;
  call.entry = outer.entry;
  call.inputs = outer.inputs;
  call.saved = outer.saved;
  call.outputs = outer.outputs;
  call.needs = outer.needs;
  call.attributes = outer.attributes;
  call.below = outer.below;
  return call;
}

std::string input_label(const Op& op, std::size_t index) {
  if (!op.variadic && index < op.input_names.size())
    return "input " + std::to_string(index) + " ('" + op.input_names[index] + "')";
  return "input " + std::to_string(index);
}

PyObject* get_inputs(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call.inputs.size())));
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                       (call.is_saved(i) ? argument(call, call.inputs[i]) : not_saved(call, i, false)).release());
    return tuple.release();
  });
}

Ref output(const Call& call, std::size_t index) {
  return (call.saved & kSavedOutput) ? argument(call, call.outputs[index]) : not_saved(call, index, true);
}

PyObject* get_output(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    if (call.op->multiple)
      raise(PyExc_AttributeError, "op '%s' has several outputs; read op.outputs", call.op->name.c_str());
    return output(call, 0).release();
  });
}

PyObject* get_outputs(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call.outputs.size())));
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), output(call, i).release());
    return tuple.release();
  });
}

PyObject* get_attributes(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    return attributes_dict(*call.op, call.attributes).release();
  });
}

PyObject* get_name(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] { return Py_NewRef(call_of(self).op->name_object.get()); });
}

PyObject* needs_gradient(PyObject* self, PyObject* index) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    const Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) throw PythonError();
    if (i < 0 || static_cast<std::size_t>(i) >= call.inputs.size())
      raise(PyExc_IndexError, "op '%s' has %zu inputs; there is no input %zd", call.op->name.c_str(),
            call.inputs.size(), i);
    return PyBool_FromLong(call.needs_gradient(static_cast<std::size_t>(i)));
  });
}

/// What op.next(g), op.native(g) and op.python(g) give: one value per input. `recorded=False` computes on plain arrays
/// and records nothing, whatever the backward pass does.
PyObject* call_other(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
                     std::optional<Language> language) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& outer = call_of(self);
    bool recorded = outer.recorded;
    const Py_ssize_t n_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    const bool known = n_keywords == 0 || (n_keywords == 1 && PyUnicode_CompareWithASCIIString(
                                                                  PyTuple_GET_ITEM(keywords, 0), "recorded") == 0);
    if (count != 1 || !known)
      raise(PyExc_TypeError,
            "another gradient of op '%s' is called with g, and recorded=False if it is to record nothing",
            outer.op->name.c_str());
    if (n_keywords == 1) {
      const int truth = PyObject_IsTrue(arguments[1]);
      if (truth < 0) throw PythonError();
      recorded = recorded && truth == 1;
    }
    const std::size_t n_outputs = outer.outputs.size();
    Few<ValueRef> upstream(n_outputs);
    if (outer.op->multiple) {
      const Ref sequence = Ref::steal(PySequence_Fast(arguments[0], "g of an op with several outputs is a tuple"));
      if (static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.get())) != n_outputs)
        raise(PyExc_ValueError, "op '%s' has %zu outputs; g has another length", outer.op->name.c_str(), n_outputs);
      for (std::size_t i = 0; i < n_outputs; ++i)
        upstream[i] = to_value(PySequence_Fast_GET_ITEM(sequence.get(), static_cast<Py_ssize_t>(i)), "g");
    } else {
      upstream[0] = to_value(arguments[0], "g");
    }
    Few<ValueRef> results(outer.inputs.size());
    Call call = sibling(outer);
    call.recorded = recorded;
    call.upstream = {upstream.data(), upstream.size()};
    call.results = {results.data(), results.size()};
    std::optional<PausedTape> paused;
    if (outer.recorded && !recorded) paused.emplace(Tape::current());
    prepare_upstream(call);
    Choice choice;
    if (language) {
      choice.implementation = &call.op->of(What::gradient, *language);
      run_gradient(call, *language);
    } else {
      choice = choose_gradient(call);
      run_gradient(call, choice);
    }
    finish_results(call, choice);
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
    for (std::size_t i = 0; i < results.size(); ++i) {
      Ref item = !results[i] ? Ref::borrow(Py_None) : argument(call, results[i].get());
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), item.release());
    }
    return tuple.release();
  });
}

PyObject* call_next(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call_other(self, arguments, count, keywords, std::nullopt);
}
PyObject* call_native(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call_other(self, arguments, count, keywords, Language::native);
}
PyObject* call_python(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call_other(self, arguments, count, keywords, Language::python);
}

PyObject* get_where(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& call = call_of(self);
    return call.entry ? location_tuple(call.entry->location).release() : Py_NewRef(Py_None);
  });
}

PyObject* get_runs(PyObject* self, void*) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call& outer = call_of(self);
    Call call = sibling(outer);
    call.recorded = outer.recorded;
    call.upstream = outer.upstream;
    return runs(call).release();
  });
}

PyObject* entry_repr(PyObject* self) {
  return guarded<PyObject*>(nullptr, [&] {
    const Call* call = reinterpret_cast<EntryObject*>(self)->call;
    return PyUnicode_FromFormat("<mixgrad.Entry of op '%s'>", call ? call->op->name.c_str() : "(done)");
  });
}

void plain_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyGetSetDef entry_getset[] = {
    {"name", get_name, nullptr, "The op's name.", nullptr},
    {"inputs", get_inputs, nullptr, "The array arguments, flat.", nullptr},
    {"output", get_output, nullptr, "The output.", nullptr},
    {"outputs", get_outputs, nullptr, "The outputs, of an op with several.", nullptr},
    {"attributes", get_attributes, nullptr, "All other arguments by name, defaults filled in.", nullptr},
    {"where", get_where, nullptr, "File and line where the op was called, if known.", nullptr},
    {"runs", get_runs, nullptr, "What `next` would run: its language and its origin.", nullptr},
    {}};

template <class Function>
PyCFunction fastcall(Function* function) noexcept {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef entry_methods[] = {
    {"needs_gradient", needs_gradient, METH_O,
     "needs_gradient($self, index, /)\n--\n\nWhether input `index` needs a gradient."},
    {"next", fastcall(call_next), METH_FASTCALL | METH_KEYWORDS,
     "next($self, g, /, *, recorded=True)\n--\n\nWhat runs without the override that is running: one value per input."},
    {"native", fastcall(call_native), METH_FASTCALL | METH_KEYWORDS,
     "native($self, g, /, *, recorded=True)\n--\n\nWhat the native gradient gives: one value per input."},
    {"python", fastcall(call_python), METH_FASTCALL | METH_KEYWORDS,
     "python($self, g, /, *, recorded=True)\n--\n\nWhat the Python gradient gives: one value per input."},
    {}};

PyType_Slot entry_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(plain_dealloc)},
                             {Py_tp_repr, reinterpret_cast<void*>(entry_repr)},
                             {Py_tp_getset, entry_getset},
                             {Py_tp_methods, entry_methods},
                             {Py_tp_doc, const_cast<char*>("A recorded operation, as its gradient sees it.")},
                             {0, nullptr}};
PyType_Spec entry_spec = {"mixgrad._core.Entry", sizeof(EntryObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, entry_slots};

// --- not saved ------------------------------------------------------------------------------------------------------

struct NotSavedObject {
  PyObject_HEAD Value* value;
  const Op* op;
  PyObject* what;
};

NotSavedObject* not_saved_of(PyObject* self) noexcept { return reinterpret_cast<NotSavedObject*>(self); }

void not_saved_dealloc(PyObject* self) {
  auto* object = not_saved_of(self);
  if (object->value) object->value->release();
  Py_XDECREF(object->what);
  plain_dealloc(self);
}

PyObject* refuse(PyObject* self) {
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    const auto* object = not_saved_of(self);
    raise_not_saved(object->op->name, PyUnicode_AsUTF8(object->what));
  });
}

PyObject* refuse_binary(PyObject* left, PyObject* right) {
  return refuse(Py_IS_TYPE(left, not_saved_type) ? left : right);
}
PyObject* refuse_ternary(PyObject* left, PyObject* right, PyObject*) { return refuse_binary(left, right); }
PyObject* refuse_call(PyObject* self, PyObject*, PyObject*) { return refuse(self); }
PyObject* refuse_method(PyObject* self, PyObject* const*, Py_ssize_t, PyObject*) { return refuse(self); }
PyObject* refuse_compare(PyObject* self, PyObject*, int) { return refuse(self); }
Py_ssize_t refuse_length(PyObject* self) {
  refuse(self);
  return -1;
}
int refuse_bool(PyObject* self) {
  refuse(self);
  return -1;
}

PyObject* not_saved_shape(PyObject* self, void*) {
  const Value* value = not_saved_of(self)->value;
  PyObject* shape = PyTuple_New(value->ndim);
  for (int i = 0; shape && i < value->ndim; ++i) PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(value->shape[i]));
  return shape;
}
PyObject* not_saved_dtype(PyObject* self, void*) {
  return reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(not_saved_of(self)->value->dtype)));
}
PyObject* not_saved_ndim(PyObject* self, void*) { return PyLong_FromLong(not_saved_of(self)->value->ndim); }
PyObject* not_saved_size(PyObject* self, void*) { return PyLong_FromLongLong(not_saved_of(self)->value->size); }

PyObject* not_saved_getattro(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return refuse(self);
}

PyGetSetDef not_saved_getset[] = {{"shape", not_saved_shape, nullptr, nullptr, nullptr},
                                  {"dtype", not_saved_dtype, nullptr, nullptr, nullptr},
                                  {"ndim", not_saved_ndim, nullptr, nullptr, nullptr},
                                  {"size", not_saved_size, nullptr, nullptr, nullptr},
                                  {}};

#define MIXGRAD_REFUSING(name) \
  {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(refuse_method)), METH_FASTCALL | METH_KEYWORDS, nullptr}
PyMethodDef not_saved_methods[] = {
    MIXGRAD_REFUSING("__array__"), MIXGRAD_REFUSING("__array_ufunc__"), MIXGRAD_REFUSING("__array_function__"), {}};
#undef MIXGRAD_REFUSING

template <class Function>
PyType_Slot slot(int id, Function* function) {
  return {id, reinterpret_cast<void*>(function)};
}

void make_not_saved_type(PyObject* module) {
  static PyType_Slot slots[] = {slot(Py_tp_dealloc, not_saved_dealloc),
                                slot(Py_tp_getattro, not_saved_getattro),
                                slot(Py_tp_call, refuse_call),
                                slot(Py_tp_iter, refuse),
                                slot(Py_tp_richcompare, refuse_compare),
                                {Py_tp_getset, not_saved_getset},
                                {Py_tp_methods, not_saved_methods},
                                slot(Py_nb_add, refuse_binary),
                                slot(Py_nb_subtract, refuse_binary),
                                slot(Py_nb_multiply, refuse_binary),
                                slot(Py_nb_true_divide, refuse_binary),
                                slot(Py_nb_floor_divide, refuse_binary),
                                slot(Py_nb_remainder, refuse_binary),
                                slot(Py_nb_matrix_multiply, refuse_binary),
                                slot(Py_nb_power, refuse_ternary),
                                slot(Py_nb_negative, refuse),
                                slot(Py_nb_positive, refuse),
                                slot(Py_nb_absolute, refuse),
                                slot(Py_nb_float, refuse),
                                slot(Py_nb_int, refuse),
                                slot(Py_nb_index, refuse),
                                slot(Py_nb_bool, refuse_bool),
                                slot(Py_mp_subscript, refuse_binary),
                                slot(Py_mp_length, refuse_length),
                                {0, nullptr}};
  static PyType_Spec spec = {"mixgrad._core.NotSaved", sizeof(NotSavedObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  const Ref type = Ref::steal(PyType_FromSpec(&spec));
  not_saved_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  if (PyModule_AddObjectRef(module, "NotSaved", type.get()) < 0) throw PythonError();
}

}  // namespace

EntryGuard::EntryGuard(Call& call) {
  object_ = Ref::steal(reinterpret_cast<PyObject*>(PyObject_New(EntryObject, entry_type)));
  reinterpret_cast<EntryObject*>(object_.get())->call = &call;
}

EntryGuard::~EntryGuard() { reinterpret_cast<EntryObject*>(object_.get())->call = nullptr; }

Ref not_saved(const Call& call, std::size_t index, bool output) {
  const Ref what = Ref::steal(
      PyUnicode_FromString((output ? "output " + std::to_string(index) : input_label(*call.op, index)).c_str()));
  Ref object = Ref::steal(reinterpret_cast<PyObject*>(PyObject_New(NotSavedObject, not_saved_type)));
  auto* made = not_saved_of(object.get());
  made->value = output ? call.outputs[index] : call.inputs[index];
  made->value->retain();
  made->op = call.op;
  made->what = Py_NewRef(what.get());
  return object;
}

void raise_not_saved(const std::string& op, const std::string& what) {
  raise_error(
      "NotSavedError",
      "%s of op '%s' was not saved when the op was recorded: the op declares (saves=...) that its gradient does not read "
      "it. Add it to the op's `saves`, or put the override in force around the forward as well, which saves everything. "
      "Its shape, dtype, ndim and size can be read without",
      what.c_str(), op.c_str());
}

Ref runs(Call& call) {
  std::vector<Candidate> why;
  choose_gradient(call, &why);
  for (const Candidate& candidate : why)
    if (candidate.chosen)
      return Ref::steal(Py_BuildValue("(ss)", candidate.language.c_str(), candidate.origin.c_str()));
  return Ref::steal(Py_BuildValue("(ss)", "", ""));
}

Ref attributes_dict(const Op& op, PyObject* attributes) {
  Ref dict = Ref::steal(PyDict_New());
  for (std::size_t i = 0; i < op.attribute_names.size(); ++i) {
    PyObject* value = attributes ? PyTuple_GET_ITEM(attributes, static_cast<Py_ssize_t>(i)) : Py_None;
    if (PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(op.attribute_keywords.get(), static_cast<Py_ssize_t>(i)), value) <
        0)
      throw PythonError();
  }
  return dict;
}

void init_entry(PyObject* module) {
  const Ref type = Ref::steal(PyType_FromSpec(&entry_spec));
  entry_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  if (PyModule_AddObjectRef(module, "Entry", type.get()) < 0) throw PythonError();
  make_not_saved_type(module);
}

}  // namespace mixgrad::core
