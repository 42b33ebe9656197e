// SPDX-License-Identifier: Apache-2.0
#include "window.h"

#include <structmember.h>

#include <algorithm>

#include "array.h"
#include "convert.h"
#include "engine.h"
#include "entry.h"

namespace mixgrad::core {

namespace {

enum class State : std::uint8_t { fresh, recording, stopped, closed };

struct WindowObject {
  PyObject_HEAD PyObject* weak_references;
  Tape* tape;
  Position start, end;
  int bit;
  State state;
  bool persistent, greedy, exclusive, used, busy;
  Mask paused;  ///< by an exclusive window, until it stops
};

WindowObject* window_of(PyObject* self) noexcept { return reinterpret_cast<WindowObject*>(self); }

Position end_of(const WindowObject& window) noexcept {
  return window.state == State::recording ? window.tape->next() : window.end;
}

void check_thread(const WindowObject& window) {
  if (window.tape && window.tape != &Tape::current())
    raise_error("OtherThreadError",
                "this tape was made in another thread; a tape belongs to its thread. Make a tape in each thread");
}

void start(WindowObject& window) {
  if (window.state != State::fresh)
    raise_error("TapeUsedError", "this tape has been entered before; make a new mixgrad.Tape() for a new recording");
  if (!window.tape) {
    window.tape = &Tape::current();
    window.tape->retain();
  }
  window.bit = window.tape->open_window();
  window.start = window.end = window.tape->next();
  window.state = State::recording;
  if (window.greedy) window.tape->set_greedy(window.bit, true);
  if (window.exclusive) window.paused = window.tape->pause_all_but(window.bit);
}

void stop(WindowObject& window) noexcept {
  if (window.state != State::recording) return;
  window.end = window.tape->next();
  window.tape->close_window(window.bit);
  window.tape->resume_all(std::exchange(window.paused, 0));
  window.state = State::stopped;
}

void drop(WindowObject& window) noexcept {
  if (window.state == State::fresh || window.state == State::closed) return;
  stop(window);
  window.state = State::closed;
  if (window.end > window.start) window.tape->drop(window.bit, window.start, window.end);
}

PyObject* window_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"persistent", "everything", "exclusive", nullptr};
  int persistent = 0, everything = 0, exclusive = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|ppp:Window", const_cast<char**>(names), &persistent, &everything,
                                   &exclusive))
    return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  WindowObject& window = *window_of(self);
  window.bit = -1;
  window.persistent = persistent != 0;
  window.greedy = everything != 0;
  window.exclusive = exclusive != 0;
  ++counters.windows;
  return self;
}

int window_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const WindowObject& window = *window_of(self);
  if (window.state != State::recording && window.state != State::stopped) return 0;
  // An entry that several windows hold is visited by none: it is no garbage while two live, and counts must not be
  // doubled.
  const Mask own = Mask{1} << window.bit;
  return window.tape->for_each_object(window.start, end_of(window), own, visit, arg);
}

int window_clear(PyObject* self) {
  WindowObject& window = *window_of(self);
  if (!window.busy) drop(window);
  return 0;
}

void window_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  if (window_of(self)->weak_references) PyObject_ClearWeakRefs(self);
  drop(*window_of(self));
  if (window_of(self)->tape) window_of(self)->tape->release();
  --counters.windows;
  type->tp_free(self);
  Py_DECREF(type);
}

template <class Body>
PyObject* method(PyObject* self, Body&& body) noexcept {
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    WindowObject& window = *window_of(self);
    check_thread(window);
    return body(window);
  });
}

PyObject* window_start(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    start(window);
    return Py_NewRef(Py_None);
  });
}

PyObject* window_stop(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    stop(window);
    return Py_NewRef(Py_None);
  });
}

PyObject* window_pause(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    if (window.state == State::recording) window.tape->pause(window.bit);
    return Py_NewRef(Py_None);
  });
}

PyObject* window_resume(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    if (window.state == State::recording) window.tape->resume(window.bit);
    return Py_NewRef(Py_None);
  });
}

PyObject* window_close(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    if (window.busy) raise(PyExc_RuntimeError, "a tape cannot be closed by a gradient function that it is running");
    drop(window);
    return Py_NewRef(Py_None);
  });
}

PyObject* window_reset(PyObject* self, PyObject*) {
  return method(self, [](WindowObject& window) {
    if (window.busy) raise(PyExc_RuntimeError, "a tape cannot be reset by a gradient function that it is running");
    const bool again = window.state == State::recording;
    drop(window);
    window.state = State::fresh;
    window.used = false;
    if (again) start(window);
    return Py_NewRef(Py_None);
  });
}

ValueRef watched_form(PyObject* source) {
  if (is_array(source)) return make_alias(*array_value(source));
  PyObject* given = source;
  Ref converted;
  if (!PyArray_Check(source) && !PyArray_IsScalar(source, Generic) && !PyFloat_Check(source) &&
      !PyComplex_Check(source)) {
    converted = Ref::steal(PyArray_FROM_O(source));
    given = converted.get();
  }
  PyArray_Descr* descr = nullptr;
  Ref keep;
  if (PyArray_Check(given)) {
    descr = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(given));
  } else if (PyArray_IsScalar(given, Generic)) {
    descr = PyArray_DescrFromScalar(given);
    keep = Ref::steal(reinterpret_cast<PyObject*>(descr));
  }
  if (descr && !is_differentiable(dtype_of(descr)))
    raise_error(
        "UnsupportedError",
        "a source has dtype %S, which is not differentiated: sources are float32, float64, complex64 or complex128. "
        "Convert it first, for instance with .astype(np.float64), or 3.0 for 3",
        reinterpret_cast<PyObject*>(descr));
  ValueRef value = to_value(given, "a source");
  if (value->weak) {
    value = make_alias(*value);
    return value;
  }
  ValueRef form = saved_form(value);
  if (form->buffer->exposed()) form->buffer->watch();
  return form.get() == value.get() ? make_alias(*value) : form;
}

PyObject* window_watch(PyObject* self, PyObject* source) {
  return method(self, [&](WindowObject& window) {
    if (window.state != State::recording)
      raise_error("TapeUsedError",
                  "watch() was called on a tape that is not recording; call it inside `with mixgrad.Tape()`");
    Tape& tape = *window.tape;
    ValueRef value = watched_form(source);
    Mask windows = Mask{1} << window.bit;
    Value* before = nullptr;
    if (is_array(source)) {
      before = array_value(source);
      if (tape.recorded_elsewhere(*before)) refuse_other_thread("watch");
      Mask live = tape.live(*before);
      if (tape.any_greedy()) live |= tape.greedy(*before);
      if (live == 0)
        before = nullptr;
      else
        windows |= live;
    }
    const Position position = tape.next();
    Entry& entry = tape.push(windows, 1, before ? 1 : 0);
    if (before) fill(entry, nullptr, {&before, 1}, 0);
    value->windows = windows;
    value->position = position;
    value->tape = tape.id();
    value->retain();
    entry.output = value.get();
    entry.watcher = static_cast<std::int16_t>(window.bit);
    return make_array(std::move(value));
  });
}

std::vector<ValueRef> arrays_of(PyObject* list, const char* what) {
  const Ref sequence = Ref::steal(PySequence_Fast(list, "a list is needed"));
  std::vector<ValueRef> values;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence.get());
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(sequence.get(), i);
    if (!is_array(item))
      raise_error(
          "NotRecordedError",
          "%s %zd is a %.200s, not an Array of this tape: only what was computed from the result of tape.watch(...) can be "
          "differentiated",
          what, i, Py_TYPE(item)->tp_name);
    values.push_back(value_of(item));
  }
  return values;
}

bool inside(const WindowObject& window, const Value& value) {
  if (value.position < window.start || value.position >= window.end || value.tape != window.tape->id()) return false;
  return (value.windows >> window.bit & 1) != 0;
}

void check_sources(const WindowObject& window, const std::vector<ValueRef>& sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (inside(window, *sources[i])) continue;
    if (window.greedy && sources[i]->position >= 0 && sources[i]->tape == window.tape->id()) continue;
    raise_error("NotRecordedError",
                "source %zu is an Array that this tape has not recorded: differentiate with respect to the Array that "
                "tape.watch(...) returned, or to one computed from it",
                i);
  }
}

void check_targets(const WindowObject& window, const std::vector<ValueRef>& targets) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Value& target = *targets[i];
    if (inside(window, target) || target.position < 0) continue;
    if (target.tape != window.tape->id())
      raise_error("OtherThreadError", "target %zu is an Array of another thread's tape", i);
    if (window.tape->live(target) == 0 && !window.greedy)
      raise_error(
          "NotRecordedError",
          "target %zu is an Array whose own tape is gone: it is a constant now, and its gradient would be zero. Compute it "
          "again inside this tape",
          i);
  }
}

std::vector<ValueRef> upstream_of(PyObject* list, const std::vector<ValueRef>& targets) {
  std::vector<ValueRef> upstream;
  const Ref sequence = Ref::steal(PySequence_Fast(list, "the upstream gradients are a list"));
  if (static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.get())) != targets.size())
    raise(PyExc_ValueError, "%zu targets, but %zd upstream gradients; give one per target, or None for ones",
          targets.size(), PySequence_Fast_GET_SIZE(sequence.get()));
  static constexpr std::int64_t no_strides[kMaxDims] = {};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(sequence.get(), static_cast<Py_ssize_t>(i));
    const Value& target = *targets[i];
    if (item == Py_None) {
      if (is_complex(target.dtype))
        raise(
            PyExc_TypeError,
            "target %zu is complex (%s): the gradient of a complex value is not defined by one number. Differentiate its real "
            "or imaginary part, give output_gradients, or declare the function holomorphic where the transform takes "
            "holomorphic=True",
            i, dtype_name(target.dtype));
      const ValueRef one = make_scalar(target.dtype, 1.0);
      upstream.push_back(target.ndim == 0 ? one
                                          : make_view(*one, target.shape_span(),
                                                      {no_strides, static_cast<std::size_t>(target.ndim)}, 0));
      continue;
    }
    ValueRef g = to_value(item, "an upstream gradient");
    if (!is_differentiable(g->dtype)) g = cast(g, target.dtype);
    if (g->weak) {
      g = make_alias(*g);
    }
    if (is_complex(g->dtype) && !is_complex(target.dtype))
      raise_error("GradientDtypeError", "output_gradients[%zu] is complex (%s), but the target is %s; give a real one",
                  i, dtype_name(g->dtype), dtype_name(target.dtype));
    if (!g->same_shape(target) && g->ndim != 0)
      raise_error("GradientShapeError", "output_gradients[%zu] does not have the target's shape", i);
    upstream.push_back(std::move(g));
  }
  return upstream;
}

struct Busy {
  Busy(WindowObject& window, bool stays) : window_(window), stays_(stays) {
    window.busy = true;
    if (window.state == State::recording) {
      was_recording_ = window.tape->recording(window.bit);
      window.tape->pause(window.bit);
    }
  }
  ~Busy() {
    window_.busy = false;
    if (was_recording_ && window_.state == State::recording) window_.tape->resume(window_.bit);
    if (!stays_) drop(window_);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  WindowObject& window_;
  bool stays_;
  bool was_recording_ = false;
};

PyObject* window_gradient(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  return method(self, [&](WindowObject& window) {
    if (n != 3 && n != 4)
      raise(PyExc_TypeError,
            "gradient() takes targets, sources, upstream gradients, and whether to keep what was saved");
    const int keep_saved = n == 4 ? PyObject_IsTrue(args[3]) : 0;
    if (keep_saved < 0) throw PythonError();
    const bool stays = window.persistent || keep_saved != 0;
    if (window.state == State::fresh)
      raise_error("TapeUsedError",
                  "this tape has recorded nothing: enter it first with `with mixgrad.Tape() as tape:`");
    if (window.used && !window.persistent)
      raise_error(
          "TapeUsedError",
          "gradient() was called twice on a tape that is not persistent, and the first call freed what it had saved; make "
          "it with mixgrad.Tape(persistent=True)");
    if (window.busy) raise_error("TapeUsedError", "gradient() was called by a gradient function of the same tape");
    if (window.state == State::recording) window.end = window.tape->next();
    const std::vector<ValueRef> targets = arrays_of(args[0], "target");
    const std::vector<ValueRef> sources = arrays_of(args[1], "source");
    check_sources(window, sources);
    check_targets(window, targets);
    const std::vector<ValueRef> upstream = upstream_of(args[2], targets);
    const Ref keep = Ref::borrow(self);
    std::vector<ValueRef> gradients;
    bool recorded = false;
    {
      window.used = !stays;
      const Busy busy(window, stays);
      // g must have the target's shape and dtype before anything is added to it.
      std::vector<ValueRef> prepared;
      for (std::size_t i = 0; i < targets.size(); ++i)
        prepared.push_back(fit_upstream(upstream[i], *targets[i], *window.tape));
      gradients = run_backward(
          {*window.tape, window.bit, window.start, window.end, window.greedy, stays, targets, prepared, sources},
          recorded);
    }
    Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(gradients.size())));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      ValueRef& gradient = gradients[i];
      Ref item;
      if (!gradient)
        item = Ref::borrow(Py_None);
      else if (recorded)
        item = Ref::steal(make_array(std::move(gradient)));
      else
        item = to_fresh(std::move(gradient));
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item.release());
    }
    return list.release();
  });
}

PyObject* window_depends(PyObject* self, PyObject* object) {
  return method(self, [&](WindowObject& window) {
    if (!is_array(object) || window.state == State::fresh) return PyBool_FromLong(0);
    window.end = end_of(window);
    return PyBool_FromLong(inside(window, *array_value(object)));
  });
}

PyObject* window_external_inputs(PyObject* self, PyObject*) {
  return method(self, [&](WindowObject& window) {
    Ref list = Ref::steal(PyList_New(0));
    if (window.state == State::fresh || window.state == State::closed) return list.release();
    std::vector<const Value*> seen;
    const Mask own = Mask{1} << window.bit;
    for (Position p = window.start; p < end_of(window); ++p) {
      const Entry* entry = window.tape->at(p);
      // A watched source is given by the caller, not found by the function.
      if (!entry || !(entry->windows & own) || entry->watcher == window.bit) continue;
      for (std::uint32_t i = 0; i < entry->n_inputs; ++i) {
        Value* input = entry->inputs[i];
        if (input->position < 0 || input->position >= window.start || input->tape != window.tape->id() ||
            !input->buffer)
          continue;
        if (std::find(seen.begin(), seen.end(), input) != seen.end()) continue;
        seen.push_back(input);
        const Ref array = Ref::steal(make_array(ValueRef::borrow(input)));
        if (PyList_Append(list.get(), array.get()) < 0) throw PythonError();
      }
    }
    return list.release();
  });
}

/// (language, origin) of the gradient that an entry's op would run now.
Ref runs(Entry& entry, Tape& tape, Position position, Mask own, bool recorded) {
  if (!entry.op) return Ref::steal(Py_BuildValue("(ss)", "", ""));
  std::vector<Value*> outputs;
  std::vector<ValueRef> upstream;
  for (std::uint32_t k = 0; k < entry.n_outputs; ++k) {
    outputs.push_back(k == 0 ? entry.output : tape.at(position + k)->output);
    upstream.push_back(make_zeros(outputs[k]->dtype, outputs[k]->shape_span()));
  }
  std::vector<std::uint8_t> needs;
  for (std::uint32_t i = 0; i < entry.n_inputs; ++i)
    needs.push_back((entry.inputs[i]->windows & own) != 0 && entry.inputs[i]->tape == tape.id());
  Call call;
  call.op = entry.op;
  call.entry = &entry;
  call.inputs = {entry.inputs, entry.n_inputs};
  call.outputs = outputs;
  call.upstream = upstream;
  call.needs = needs;
  call.saved = entry.saved;
  call.attributes = entry.attributes ? entry.attributes : entry.op->defaults.get();
  call.recorded = recorded;
  return core::runs(call);
}

/// `recorded`: what would run in a backward pass that is itself recorded.
PyObject* window_entries(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return method(self, [&](WindowObject& window) {
    const int recorded = count == 1 ? PyObject_IsTrue(arguments[0]) : 0;
    if (recorded < 0) throw PythonError();
    Ref list = Ref::steal(PyList_New(0));
    if (window.state == State::fresh || window.state == State::closed) return list.release();
    const Mask own = Mask{1} << window.bit;
    for (Position p = window.start; p < end_of(window); ++p) {
      Entry* entry = window.tape->at(p);
      if (!entry || !(entry->windows & own) || entry->lead) continue;
      const Ref gradient = runs(*entry, *window.tape, p, own, recorded == 1);
      const Ref inputs = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(entry->n_inputs)));
      std::int64_t saved = 0;
      for (std::uint32_t i = 0; i < entry->n_inputs; ++i) {
        PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(entry->inputs[i]->position));
        if (entry->saved & saved_bit(i)) saved += static_cast<std::int64_t>(entry->inputs[i]->bytes());
      }
      if (entry->saved & kSavedOutput) saved += static_cast<std::int64_t>(entry->output->bytes());
      const Ref where = location_tuple(entry->location);
      const Value& output = *entry->output;
      const Ref shape = Ref::steal(PyTuple_New(output.ndim));
      for (int i = 0; i < output.ndim; ++i) PyTuple_SET_ITEM(shape.get(), i, PyLong_FromLongLong(output.shape[i]));
      const Ref item = Ref::steal(Py_BuildValue(
          "{s:L,s:s,s:O,s:O,s:s,s:I,s:L,s:O,s:O,s:O,s:I}", "position", static_cast<long long>(p), "op",
          entry->op ? entry->op->name.c_str() : "watch", "inputs", inputs.get(), "shape", shape.get(), "dtype",
          dtype_name(output.dtype), "outputs", entry->n_outputs, "saved_bytes", static_cast<long long>(saved), "where",
          where.get(), "runs", PyTuple_GET_ITEM(gradient.get(), 0), "origin", PyTuple_GET_ITEM(gradient.get(), 1), "ns",
          entry->nanoseconds));
      if (PyList_Append(list.get(), item.get()) < 0) throw PythonError();
    }
    return list.release();
  });
}

PyObject* window_n_entries(PyObject* self, void*) {
  const WindowObject& window = *window_of(self);
  if (window.state == State::fresh || window.state == State::closed) return PyLong_FromLong(0);
  return PyLong_FromLongLong(end_of(window) - window.start);
}

PyObject* window_recording(PyObject* self, void*) {
  const WindowObject& window = *window_of(self);
  return PyBool_FromLong(window.state == State::recording && window.tape->recording(window.bit));
}

PyMethodDef window_methods[] = {
    {"start", window_start, METH_NOARGS, "start($self, /)\n--\n\nBegin to record."},
    {"stop", window_stop, METH_NOARGS, "stop($self, /)\n--\n\nEnd recording; entries stay."},
    {"pause", window_pause, METH_NOARGS, "pause($self, /)\n--\n\nRecord nothing until resume()."},
    {"resume", window_resume, METH_NOARGS, "resume($self, /)\n--\n\nRecord again."},
    {"close", window_close, METH_NOARGS, "close($self, /)\n--\n\nFree the entries."},
    {"reset", window_reset, METH_NOARGS, "reset($self, /)\n--\n\nForget what was recorded, and start again."},
    {"watch", window_watch, METH_O, "watch($self, source, /)\n--\n\nA fresh Array for a source."},
    {"gradient", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(window_gradient)), METH_FASTCALL,
     "gradient($self, targets, sources, upstream, keep=False, /)\n--\n\nThe gradients of the sources; None where not connected."},
    {"depends", window_depends, METH_O,
     "depends($self, array, /)\n--\n\nWhether the Array depends on a source of this window."},
    {"external_inputs", window_external_inputs, METH_NOARGS,
     "external_inputs($self, /)\n--\n\nArrays recorded before this window that its entries use."},
    {"entries", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(window_entries)), METH_FASTCALL,
     "entries($self, recorded=False, /)\n--\n\nA description of each entry; recorded: its gradient in a recorded pass."},
    {}};

PyGetSetDef window_getset[] = {{"n_entries", window_n_entries, nullptr, "Positions taken so far.", nullptr},
                               {"recording", window_recording, nullptr, "Whether it records now.", nullptr},
                               {}};

PyMemberDef window_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(WindowObject, weak_references), READONLY, nullptr}, {}};

PyType_Slot window_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(window_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(window_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(window_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(window_clear)},
    {Py_tp_methods, window_methods},
    {Py_tp_getset, window_getset},
    {Py_tp_members, window_members},
    {Py_tp_doc, const_cast<char*>("Window(persistent=False, everything=False, exclusive=False)\n--\n\nA window on this "
                                  "thread's tape.")},
    {0, nullptr}};
PyType_Spec window_spec = {"mixgrad._core.Window", sizeof(WindowObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           window_slots};

}  // namespace

void init_window(PyObject* module) {
  const Ref type = Ref::steal(PyType_FromSpec(&window_spec));
  if (PyModule_AddObjectRef(module, "Window", type.get()) < 0) throw PythonError();
}

}  // namespace mixgrad::core
