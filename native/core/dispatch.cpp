// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "array.h"
#include "convert.h"
#include "entry.h"

namespace mixgrad::core {

bool tell_fallbacks = false;

namespace overrides {

std::int64_t active = 0;
PyObject* variable = nullptr;

namespace {
enum Field { previous, op, language, function, differentiable, when, origin, watcher };

PyObject* field(PyObject* record, Field which) noexcept { return PyTuple_GET_ITEM(record, which); }

bool concerns(PyObject* record, const Op& wanted) noexcept {
  return field(record, Field::op) == Py_None || field(record, Field::op) == wanted.object;
}

bool contains(PyObject* list, PyObject* wanted) noexcept {
  for (PyObject* record = list; record && record != Py_None; record = field(record, Field::previous))
    if (record == wanted) return true;
  return false;
}

/// The innermost record of the list that concerns the op and has the field; null when none.
PyObject* find(PyObject* list, const Op& wanted, Field which) noexcept {
  for (PyObject* record = list; record && record != Py_None; record = field(record, Field::previous))
    if (field(record, which) != Py_None && concerns(record, wanted)) return record;
  return nullptr;
}

/// The records with a function that concern a call, in their order: those in force now, those in force when the op was
/// recorded, and the op's own.
template <class Visit>
void for_each_function(const Call& call, PyObject* now, PyObject* then, Visit&& visit) {
  bool waiting = call.below != nullptr;
  PyObject* const lists[] = {now, then, call.op->standing.get()};
  for (std::size_t i = 0; i < std::size(lists); ++i) {
    for (PyObject* record = find(lists[i], *call.op, Field::function); record;
         record = find(field(record, Field::previous), *call.op, Field::function)) {
      // What is in force now and was then comes once.
      if (i == 1 && contains(now, record)) break;
      if (waiting)
        waiting = record != call.below;
      else if (!visit(record))
        return;
    }
  }
}
}  // namespace

PyObject* current(Ref& keep) {
  if (active == 0) return nullptr;
  PyObject* list = nullptr;
  if (PyContextVar_Get(variable, nullptr, &list) < 0) throw PythonError();
  keep = Ref::steal_or_null(list);
  return list == Py_None ? nullptr : list;
}

}  // namespace overrides

namespace {

using overrides::Field;

// --- the condition of an implementation -----------------------------------------------------------------------------

Ref describe_value(const Value& value) {
  const Ref shape = Ref::steal(PyTuple_New(value.ndim));
  for (int i = 0; i < value.ndim; ++i) PyTuple_SET_ITEM(shape.get(), i, PyLong_FromLongLong(value.shape[i]));
  const Ref dtype = Ref::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(value.dtype))));
  return Ref::steal(Py_BuildValue("(OOO)", shape.get(), dtype.get(), value.contiguous ? Py_True : Py_False));
}

template <class Values>
Ref describe_values(const Values& values) {
  const Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(std::size(values))));
  Py_ssize_t i = 0;
  for (const auto& value : values) PyTuple_SET_ITEM(tuple.get(), i++, describe_value(*value).release());
  return tuple;
}

/// Whether the condition holds: it sees metadata only.
bool holds(PyObject* when, const Call& call) {
  if (!when || when == Py_None) return true;
  const Ref module = Ref::steal(PyImport_ImportModule("mixgrad.registry"));
  const Ref make = Ref::steal(PyObject_GetAttrString(module.get(), "Metadata"));
  const Ref attributes = attributes_dict(*call.op, call.attributes);
  const Ref inputs = describe_values(call.inputs), outputs = describe_values(call.outputs);
  const Ref upstream = describe_values(call.upstream);
  const Ref metadata = Ref::steal(PyObject_CallFunction(make.get(), "sOOOO", call.op->name.c_str(), inputs.get(),
                                                        outputs.get(), upstream.get(), attributes.get()));
  const Ref answer = Ref::steal(PyObject_CallOneArg(when, metadata.get()));
  const int truth = PyObject_IsTrue(answer.get());
  if (truth < 0) throw PythonError();
  return truth == 1;
}

// --- choosing -------------------------------------------------------------------------------------------------------

/// Whether an unconditional native gradient takes this call: what `refusal` finds nothing against, without making text.
bool plainly_takes(const Implementation& implementation, const Call& call) noexcept {
  if (!implementation.present || implementation.when || (call.recorded && !implementation.differentiable)) return false;
  const mixgrad_registration* native = implementation.native;
  if (!native) return false;
  if (native->kind != MIXGRAD_KIND_ELEMENTWISE) return true;
  const Dtype dtype = call.outputs[0]->dtype;
  if (!is_real(dtype)) return false;
  const int index = dtype_index(dtype);
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (is_complex(call.inputs[i]->dtype)) return false;
    if (call.needs_gradient(i) && !native->trivial[i] && !native->loops[i][index]) return false;
  }
  return true;
}

/// Why a candidate does not run for this call; empty when it may. `declined` is counted by the caller.
std::string refusal(const Implementation& implementation, const Call& call) {
  if (!implementation.present) return "not registered";
  if (call.recorded && !implementation.differentiable)
    return "first order only, and this backward pass is itself being recorded";
  if (!holds(implementation.when.get(), call)) return "its condition (when=) does not hold";
  const mixgrad_registration* native = implementation.native;
  if (native && native->kind == MIXGRAD_KIND_ELEMENTWISE && !call.outputs.empty()) {
    const Dtype dtype = call.outputs[0]->dtype;
    if (!is_differentiable(dtype)) return "it has no loop for this dtype";
    for (const Value* input : call.inputs)
      if (is_complex(input->dtype) && !is_complex(dtype))
        return "it has no loop for a complex input with a real output";
    if (is_complex(dtype) && (native->flags & MIXGRAD_FLAG_REAL_ONLY)) return "it takes real dtypes only";
    for (int i = 0; i < native->n_inputs; ++i)
      if (call.needs_gradient(static_cast<std::size_t>(i)) && !native->trivial[i] &&
          !native->loops[i][dtype_index(dtype)])
        return "it has no loop for this dtype";
  }
  if (const PythonGradient* python = implementation.gradient.get(); python && !python->whole) {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.needs_gradient(i) && python->argument(i).state == ArgumentGradient::State::missing)
        return "it has no gradient for input " + std::to_string(i);
    }
  }
  return {};
}

void note(std::vector<Candidate>* why, std::string_view language, std::string_view origin, std::string_view verdict,
          bool chosen = false) {
  if (why) why->push_back({std::string(language), std::string(origin), std::string(verdict), chosen});
}

/// The preferred language by the lists in force, then by the environment; -1 for none.
int preference(const Op& op, PyObject* now, PyObject* then, PyObject* standing, std::string* source) {
  for (PyObject* list : {now, then, standing}) {
    if (PyObject* record = overrides::find(list, op, Field::language)) {
      if (source) {
        const char* text = PyUnicode_AsUTF8(overrides::field(record, Field::origin));
        *source = std::string(list == standing ? "its promotion state, set at " : "prefer at ") + (text ? text : "?");
      }
      return static_cast<int>(PyLong_AsLong(overrides::field(record, Field::language)));
    }
  }
  if (op.preferred >= 0 && source) *source = "MIXGRAD_PREFER";
  return op.preferred;
}

/// Says once per op that its native gradient declined.
void tell_fallback(const Op& op, const Implementation& native, const std::string& reason) {
  if (op.told_fallback) return;
  op.told_fallback = true;
  const Ref module = Ref::steal(PyImport_ImportModule("mixgrad.errors"));
  const Ref category = Ref::steal(PyObject_GetAttrString(module.get(), "FallbackWarning"));
  if (PyErr_WarnFormat(category.get(), 1, "the native gradient of op '%s' (%s) declined, and the Python one runs: %s",
                       op.name.c_str(), native.origin.c_str(), reason.c_str()) < 0)
    throw PythonError();
}

[[noreturn]] void no_gradient(const Call& call) {
  const Op& op = *call.op;
  std::string reasons;
  bool first_order = false, present = false;
  for (const Implementation& implementation : op.gradients) {
    if (!implementation.present) continue;
    present = true;
    first_order = first_order || (call.recorded && !implementation.differentiable);
    reasons += std::string(reasons.empty() ? "" : "; ") + to_string(implementation.language) + " (" +
               implementation.origin + "): " + refusal(implementation, call);
  }
  if (first_order)
    raise_error(
        "NotDifferentiableError",
        "the gradient of op '%s' is needed in a backward pass that is itself recorded (a higher-order derivative), but "
        "no differentiable gradient of it is registered: %s. Register one written with mixgrad.numpy functions, or "
        "take first-order derivatives only",
        op.name.c_str(), reasons.c_str());
  std::string near;
  for (const auto& name : Registry::instance().near_names(op.name))
    if (name != op.name) near += (near.empty() ? " Near names: '" : ", '") + name + "'";
  if (!near.empty()) near += ".";
  raise_error(
      "MissingGradientError",
      "the gradient of op '%s' is needed, but %s%s. Register one in Python with @mixgrad.register_gradient(\"%s\"), or "
      "in C++ with MIXGRAD_REGISTER_GRADIENT(%s).%s",
      op.name.c_str(),
      !op.registered ? "the op has been unregistered"
      : present      ? "none that is registered takes this call: "
                     : "none is registered",
      reasons.c_str(), op.name.c_str(), op.name.c_str(), near.c_str());
}

}  // namespace

Choice choose_gradient(Call& call, std::vector<Candidate>* why) {
  const Op& op = *call.op;
  PyObject* then = call.entry ? call.entry->overrides : nullptr;
  int preferred = op.preferred;
  Choice choice;
  if (overrides::active == 0 && !then && preferred < 0 && !op.standing && !why) [[likely]] {
    const Implementation& native = op.of(What::gradient, Language::native);
    if (plainly_takes(native, call)) {
      choice.implementation = &native;
      return choice;
    }
  }
  std::string source = preferred >= 0 ? "MIXGRAD_PREFER" : "";
  if (overrides::active != 0 || then || op.standing) [[unlikely]] {
    Ref in_force;
    PyObject* now = overrides::current(in_force);
    bool taken = false;
    overrides::for_each_function(call, now, then, [&](PyObject* record) {
      const char* origin = PyUnicode_AsUTF8(overrides::field(record, Field::origin));
      const bool first_order = call.recorded && overrides::field(record, Field::differentiable) != Py_True;
      std::string verdict;
      if (first_order)
        verdict = "first order only, and this backward pass is itself being recorded";
      else if (!holds(overrides::field(record, Field::when), call))
        verdict = "its condition (when=) does not hold";
      if (verdict.empty() && !taken) {
        note(why, "override", origin ? origin : "?", "the innermost override in force", true);
        choice.override_record = record;
        // What it runs may change the op's standing record.
        choice.keep = Ref::borrow(record);
        taken = true;
        return why != nullptr;
      }
      if (!why && first_order)
        raise_error(
            "NotDifferentiableError",
            "the gradient of op '%s' is overridden at %s by one that is first order only, but this backward pass is "
            "itself recorded (a higher-order derivative). Override it with a gradient written with mixgrad.numpy "
            "functions, or leave the override before taking higher-order derivatives",
            op.name.c_str(), origin ? origin : "?");
      note(why, "override", origin ? origin : "?", verdict.empty() ? "an inner override comes first" : verdict.c_str());
      return true;
    });
    if (taken && !why) return choice;
    if (taken) {
      for (const Implementation& implementation : op.gradients)
        if (implementation.present)
          note(why, to_string(implementation.language), implementation.origin, "an override is in force");
      return choice;
    }
    preferred = preference(op, now, then, op.standing.get(), &source);
  }
  const Language order[2] = {preferred == static_cast<int>(Language::python) ? Language::python : Language::native,
                             preferred == static_cast<int>(Language::python) ? Language::native : Language::python};
  for (const Language language : order) {
    const Implementation& implementation = op.of(What::gradient, language);
    if (!implementation.present) {
      note(why, to_string(language), "", "not registered");
      if (preferred == static_cast<int>(language) && !why) ++implementation.declined;
      continue;
    }
    const std::string reason = refusal(implementation, call);
    if (!reason.empty()) {
      if (!why) {
        ++implementation.declined;
        if (tell_fallbacks && language == Language::native) tell_fallback(op, implementation, reason);
      }
      if (why) note(why, to_string(language), implementation.origin, "declined: " + reason);
      continue;
    }
    if (choice.implementation) {
      note(why, to_string(language), implementation.origin, "not needed: the one above runs");
      continue;
    }
    if (why)
      note(why, to_string(language), implementation.origin,
           preferred == static_cast<int>(language) ? "preferred by " + source : "the first that takes this call", true);
    choice.implementation = &implementation;
    if (!why) return choice;
  }
  if (!choice.implementation && !why) no_gradient(call);
  return choice;
}

// --- forwards -------------------------------------------------------------------------------------------------------

namespace {

/// A ufunc's operands: the dtype of its loop by NumPy's promotion (NEP 50); `other` when there is none.
Dtype common_dtype(std::span<const ValueRef> inputs) noexcept {
  Dtype dtype = Dtype::other;
  bool weak_complex = false, any = false;
  for (const ValueRef& input : inputs) {
    if (input->weak) {
      weak_complex = weak_complex || is_complex(input->dtype);
      continue;
    }
    if (!any) {
      dtype = input->dtype;
      any = true;
    } else if (dtype != input->dtype) {
      dtype = promote(dtype, input->dtype);
    }
  }
  if (!any) return weak_complex ? Dtype::complex128 : Dtype::float64;
  if (weak_complex) {
    if (dtype == Dtype::float32) return Dtype::complex64;
    if (dtype == Dtype::float64) return Dtype::complex128;
  }
  return dtype;
}

/// The dtype that a Python number is saved in.
ValueRef give_dtype(const Value& number, Dtype dtype) {
  double parts[2] = {0.0, 0.0};
  std::memcpy(parts, number.data, item_size(number.dtype));
  return make_scalar(dtype, parts[0], parts[1]);
}

/// Broadcasts the shapes; false when they do not fit.
bool broadcast_shapes(std::span<const ValueRef> inputs, std::int64_t* shape, int& ndim) noexcept {
  ndim = 0;
  for (const ValueRef& input : inputs) ndim = std::max<int>(ndim, input->ndim);
  for (int i = 0; i < ndim; ++i) shape[i] = 1;
  for (const ValueRef& input : inputs) {
    const int offset = ndim - input->ndim;
    for (int i = 0; i < input->ndim; ++i) {
      const std::int64_t n = input->shape[i];
      std::int64_t& have = shape[offset + i];
      if (n == have || n == 1) continue;
      if (have != 1) return false;
      have = n;
    }
  }
  return true;
}

}  // namespace

void refuse_other_thread(const std::string& op) {
  raise_error(
      "OtherThreadError",
      "op '%s' was given an Array that another thread's tape recorded. A tape belongs to the thread that made it: pass "
      "plain arrays between threads (np.asarray(array)), and watch them in the thread that differentiates",
      op.c_str());
}

namespace {

/// Attributes as the tape keeps them: arrays and lists in them are copied, since their owner may change them.
Ref frozen(PyObject* attribute) {
  if (PyArray_Check(attribute))
    return Ref::steal(PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(attribute), NPY_KEEPORDER));
  const bool list = PyList_CheckExact(attribute);
  if (!list && !PyTuple_CheckExact(attribute)) return Ref::borrow(attribute);
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(attribute);
  bool changeable = list;
  for (Py_ssize_t i = 0; i < n && !changeable; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(attribute, i);
    changeable = PyArray_Check(item) || PyList_CheckExact(item) || PyTuple_CheckExact(item);
  }
  if (!changeable) return Ref::borrow(attribute);
  Ref copy = Ref::steal(list ? PyList_New(n) : PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = frozen(PySequence_Fast_GET_ITEM(attribute, i)).release();
    if (list)
      PyList_SET_ITEM(copy.get(), i, item);
    else
      PyTuple_SET_ITEM(copy.get(), i, item);
  }
  return copy;
}

/// Puts the op on the tape when an input depends on a window that is recording.
void record(const Op& op, std::span<ValueRef> inputs, PyObject* attributes, std::span<ValueRef> outputs) {
  Tape& tape = Tape::current();
  Mask windows = 0;
  std::uint32_t saved = 0;
  const bool greedy = tape.any_greedy();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& input = *inputs[i];
    if (input.windows == 0) continue;
    if (input.tape != tape.id()) [[unlikely]] {
      if (tape.recorded_elsewhere(input)) refuse_other_thread(op.name);
      continue;
    }
    Mask live = tape.live(input);
    if (greedy) [[unlikely]]
      live |= tape.greedy(input);
    if (live == 0) continue;
    windows |= live;
    saved |= op.reads_of(i);
  }
  if (windows == 0) return;
  saved |= op.whole_reads;
  if (overrides::find(op.standing.get(), op, Field::function)) [[unlikely]]
    saved = kSavedAll;
  Ref in_force;
  if (overrides::active != 0) [[unlikely]] {
    PyObject* list = overrides::current(in_force);
    // An override may read anything, so everything is kept for it.
    if (overrides::find(list, op, Field::function)) saved = kSavedAll;
    if (!list) in_force = Ref();
  }
  for (ValueRef& output : outputs)
    // A forward may give back an input, or an array that somebody else holds: the entry's output is a value of its own.
    if (output->uses != 1 || output->references != 1 || output->position >= 0 || output->weak)
      output = make_alias(*output);
  Few<Value*> kept(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (saved & saved_bit(i)) {
      if (inputs[i]->weak)
        inputs[i] = give_dtype(*inputs[i], outputs[0]->dtype);
      else if (inputs[i]->buffer->exposed()) [[unlikely]]
        inputs[i] = saved_form(inputs[i]);
    }
    kept[i] = inputs[i].get();
  }
  Ref kept_attributes;
  if (attributes && attributes != op.defaults.get()) kept_attributes = frozen(attributes);
  const Position position = tape.next();
  Entry& entry =
      tape.push(windows, static_cast<std::uint32_t>(outputs.size()), static_cast<std::uint32_t>(inputs.size()));
  fill(entry, &op, {kept.data(), kept.size()}, saved);
  if (kept_attributes || in_force) tape.give_objects(position, kept_attributes.release(), in_force.release());
  entry.location = Location::here();
  entry.nanoseconds = observe::last_forward();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Value* output = outputs[i].get();
    output->windows = windows;
    output->position = position + static_cast<Position>(i);
    output->tape = tape.id();
    Entry& holder = i == 0 ? entry : *tape.at(output->position);
    holder.output = output;
    if (saved & kSavedOutput) {
      output->use();
      // A Python forward may have kept what it returned.
      if (output->buffer->exposed()) output->buffer->watch();
      holder.saved |= kSavedOutput;
    } else {
      output->retain();
    }
  }
}

bool python_first(const Op& op) {
  if (overrides::active == 0) [[likely]]
    return op.preferred == static_cast<int>(Language::python);
  Ref keep;
  return preference(op, overrides::current(keep), nullptr, nullptr, nullptr) == static_cast<int>(Language::python);
}

/// What an op of our own language makes of weak inputs: a native forward other than a ufunc's sees plain dtypes.
void settle_weak(std::span<ValueRef> inputs) {
  bool any = false;
  for (const ValueRef& input : inputs) any = any || input->weak;
  if (!any) return;
  // A condition (where's) takes no part in the promotion.
  Few<ValueRef> numeric(inputs.size());
  std::size_t n = 0;
  for (const ValueRef& input : inputs)
    if (input->weak || input->dtype != Dtype::boolean) numeric[n++] = input;
  const Dtype dtype = common_dtype({numeric.data(), n});
  for (ValueRef& input : inputs)
    if (input->weak) input = give_dtype(*input, is_differentiable(dtype) ? dtype : input->dtype);
}

bool run_native(const Op& op, std::span<ValueRef> inputs, PyObject* attributes, Results& results) {
  const Implementation& native = op.of(What::forward, Language::native);
  if (!native.native) {
    ValueRef value = run_elementwise(op, inputs);
    if (!value) return false;
    results.values.resize(1);
    results.values[0] = std::move(value);
    return true;
  }
  // A copy: where the native forward declines, Python's still sees plain numbers.
  Few<ValueRef> settled(inputs.size());
  Few<Value*> values(inputs.size());
  std::copy(inputs.begin(), inputs.end(), settled.begin());
  settle_weak({settled.data(), settled.size()});
  for (std::size_t i = 0; i < inputs.size(); ++i) values[i] = settled[i].get();
  std::vector<ValueRef> made(1);
  Call call;
  call.op = &op;
  call.inputs = {values.data(), values.size()};
  call.attributes = attributes;
  if (op.multiple) made.resize(1024);
  call.results = made;
  // What a forward calls is not recorded: the op itself is.
  const PausedTape paused(Tape::current());
  const mixgrad_status status = native.native->function(&call);
  if (status == MIXGRAD_ERROR) throw PythonError();
  if (status == MIXGRAD_DECLINED) {
    ++native.declined;
    return false;
  }
  std::size_t n = 0;
  while (n < made.size() && made[n]) ++n;
  if (n == 0) raise(PyExc_RuntimeError, "the native forward of op '%s' returned nothing", op.name.c_str());
  results.values.resize(n);
  for (std::size_t i = 0; i < n; ++i) results.values[i] = std::move(made[i]);
  ++native.calls;
  return true;
}

Ref weak_to_python(const Value& number) {
  double parts[2] = {0.0, 0.0};
  std::memcpy(parts, number.data, item_size(number.dtype));
  if (is_complex(number.dtype)) return Ref::steal(PyComplex_FromDoubles(parts[0], parts[1]));
  return Ref::steal(PyFloat_FromDouble(parts[0]));
}

void add_python_result(const Op& op, PyObject* item, Results& results, std::size_t index) {
  ValueRef value = result_to_value(item);
  if (is_array(item) && Tape::current().live(*value) != 0)
    raise_error(
        "UnsupportedError",
        "the Python forward of op '%s' returned an Array that is being recorded; a forward is given plain ndarrays and "
        "returns one. An Array from outside reaches it as an input only",
        op.name.c_str());
  if (!value) {
    if (results.multiple)
      raise(PyExc_TypeError, "output %zu of op '%s' is a %.200s; an op with several outputs returns arrays", index,
            op.name.c_str(), Py_TYPE(item)->tp_name);
    results.plain = Ref::borrow(item);
    return;
  }
  results.values[index] = std::move(value);
}

void run_python(const Op& op, std::span<ValueRef> inputs, PyObject* attributes, Results& results) {
  const Implementation& python = op.of(What::forward, Language::python);
  if (!op.registered)
    raise_error("UnknownOpError", "op '%s' has been unregistered; get the current one from mixgrad.registry",
                op.name.c_str());
  if (!python.present)
    raise_error(
        "MissingGradientError",
        "op '%s' has no forward that takes this call: the native one declined, and none is registered in Python. "
        "Register one with @mixgrad.register_op(\"%s\", replace=True)",
        op.name.c_str(), op.name.c_str());
  const Ref callable = python.forward;
  const std::size_t n_attributes = attributes ? static_cast<std::size_t>(PyTuple_GET_SIZE(attributes)) : 0;
  Few<Ref, 8> keep(inputs.size() + 1);
  Few<PyObject*, 16> arguments(1 + inputs.size() + n_attributes);
  std::size_t n = 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    keep[i] = inputs[i]->weak ? weak_to_python(*inputs[i]) : to_ndarray(inputs[i]);
    if (!op.variadic) arguments[n++] = keep[i].get();
  }
  if (op.variadic) {
    Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(inputs.size())));
    for (std::size_t i = 0; i < inputs.size(); ++i)
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), keep[i].release());
    keep[inputs.size()] = std::move(list);
    arguments[n++] = keep[inputs.size()].get();
  }
  const std::size_t n_positional = n - 1;
  for (std::size_t i = 0; i < n_attributes; ++i)
    arguments[n++] = PyTuple_GET_ITEM(attributes, static_cast<Py_ssize_t>(i));
  const Ref result = Ref::steal(PyObject_Vectorcall(callable.get(), arguments.data() + 1,
                                                    n_positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                    n_attributes ? op.attribute_keywords.get() : nullptr));
  ++python.calls;
  if (op.multiple) {
    if (!PyTuple_Check(result.get()) && !PyList_Check(result.get()))
      raise(PyExc_TypeError,
            "op '%s' has several outputs, but its Python forward returned a %.200s; return a tuple of arrays",
            op.name.c_str(), Py_TYPE(result.get())->tp_name);
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(result.get()));
    results.values.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      add_python_result(op, PySequence_Fast_GET_ITEM(result.get(), static_cast<Py_ssize_t>(i)), results, i);
    return;
  }
  results.values.resize(1);
  add_python_result(op, result.get(), results, 0);
  if (results.plain) results.values.resize(0);
}

}  // namespace

ValueRef run_elementwise(const Op& op, std::span<ValueRef> inputs) {
  const Dtype dtype = common_dtype(inputs);
  if (!is_differentiable(dtype)) return {};
  const kernels::Loop& loop = op.ufunc.loop(dtype);
  if (!loop) {
    ++op.of(What::forward, Language::native).declined;
    return {};
  }
  constexpr std::size_t kMost = 4;
  if (inputs.size() > kMost) return {};
  ValueRef casts[kMost];
  View views[kMost];
  const Value* first = nullptr;
  bool same = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ValueRef& input = inputs[i];
    if (input->weak)
      input = give_dtype(*input, dtype);
    else if (input->dtype != dtype) {
      casts[i] = cast(input, dtype);
    }
    const Value& operand = casts[i] ? *casts[i] : *input;
    views[i] = operand.view();
    if (operand.ndim == 0) continue;
    if (!first)
      first = &operand;
    else
      same = same && first->same_shape(operand);
  }
  ValueRef output;
  if (same) {
    output = make_value(loop.output, first ? first->shape_span() : std::span<const std::int64_t>{});
  } else {
    std::int64_t shape[kMaxDims];
    int ndim;
    // NumPy's own call raises the error for shapes that do not fit.
    if (!broadcast_shapes(inputs, shape, ndim)) return {};
    output = make_value(loop.output, {shape, static_cast<std::size_t>(ndim)});
  }
  const int flags = kernels::elementwise(loop, {views, inputs.size()}, output->view());
  if (flags) [[unlikely]]
    kernels::report_floating_point(op.ufunc.name(), flags);
  ++op.of(What::forward, Language::native).calls;
  return output;
}

namespace {

/// Shows a forward that has run to what watches forwards in this context.
void tell_watchers(const Op& op, std::span<ValueRef> inputs, const Results& results, observe::By by) {
  Ref keep;
  for (PyObject* record = overrides::find(overrides::current(keep), op, Field::watcher); record;
       record = overrides::find(overrides::field(record, Field::previous), op, Field::watcher)) {
    const Ref given = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(inputs.size())));
    for (std::size_t i = 0; i < inputs.size(); ++i)
      PyTuple_SET_ITEM(given.get(), static_cast<Py_ssize_t>(i), to_ndarray(inputs[i]).release());
    const std::size_t n = results.values.size();
    const Ref outputs = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(n)));
    for (std::size_t i = 0; i < n; ++i)
      PyTuple_SET_ITEM(outputs.get(), static_cast<Py_ssize_t>(i), to_ndarray(results.values[i]).release());
    const Location location = Location::here();
    const Ref code = Ref::steal_or_null(location.code);
    const Ref where = location_tuple(location);
    // What a watcher computes is not recorded.
    const PausedTape paused(Tape::current());
    const Ref done = Ref::steal(PyObject_CallFunction(overrides::field(record, Field::watcher), "OsOOO", op.object,
                                                      observe::to_string(by), given.get(), outputs.get(), where.get()));
  }
}

}  // namespace

void run(const Op& op, std::span<ValueRef> inputs, PyObject* attributes, Results& results) {
  results.multiple = op.multiple;
  observe::By by = observe::By::native;
  {
    observe::Scope scope(op, What::forward);
    const bool native = op.of(What::forward, Language::native).present && !python_first(op);
    if (!native || !run_native(op, inputs, attributes, results)) {
      scope.ran(by = observe::By::python);
      run_python(op, inputs, attributes, results);
    }
    for (const ValueRef& value : results.values) scope.made(value);
  }
  if (overrides::active != 0 && Tape::current().walks == 0) [[unlikely]]
    tell_watchers(op, inputs, results, by);
  if (!op.differentiable || results.values.size() == 0) return;
  bool differentiable = false;
  for (const ValueRef& value : results.values) differentiable = differentiable || is_differentiable(value->dtype);
  if (differentiable) record(op, inputs, attributes, {results.values.data(), results.values.size()});
}

namespace {
/// Whether every forward has to take the way of `run`.
bool observed() noexcept { return observe::looking != 0 || overrides::active != 0; }

Ref result_to_python(const Op& op, ValueRef value) {
  if (!op.differentiable || !is_differentiable(value->dtype)) return to_plain(value);
  return Ref::steal(make_array(std::move(value)));
}
}  // namespace

Ref run_to_python(const Op& op, std::span<ValueRef> inputs, PyObject* attributes) {
  const Implementation& native = op.of(What::forward, Language::native);
  // A ufunc's own loop is what most calls come to: no list of results for those.
  if (native.present && !native.native && !observed() && !python_first(op)) [[likely]] {
    if (ValueRef value = run_elementwise(op, inputs)) [[likely]] {
      if (op.differentiable && is_differentiable(value->dtype)) record(op, inputs, attributes, {&value, 1});
      return result_to_python(op, std::move(value));
    }
  }
  Results results;
  run(op, inputs, attributes, results);
  if (results.plain) return std::move(results.plain);
  if (!results.multiple) return result_to_python(op, std::move(results.values[0]));
  Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(results.values.size())));
  for (std::size_t i = 0; i < results.values.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     result_to_python(op, std::move(results.values[i])).release());
  return tuple;
}

// --- gradients ------------------------------------------------------------------------------------------------------

namespace {

// What a loop reads for an operand that was not saved: a nan, so that reading it shows.
View not_saved_view(Dtype dtype) noexcept {
  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  alignas(16) static const float single[2] = {nan, nan};
  alignas(16) static const double both[2] = {nan, nan};
  const bool narrow = dtype == Dtype::float32 || dtype == Dtype::complex64;
  const void* block = narrow ? static_cast<const void*>(single) : both;
  // Loops only read their inputs.
  return {static_cast<char*>(const_cast<void*>(block)), dtype, 0, nullptr, nullptr};
}

/// Whether g is one number, and that is 1: the gradient of a sum, before anything happened to it.
bool all_ones(const Value& g) noexcept {
  if (g.size == 0) return false;
  for (int i = 0; i < g.ndim; ++i)
    if (g.strides[i] != 0) return false;
  const auto is = [&g]<class T>(T one) { return std::memcmp(g.data, &one, sizeof one) == 0; };
  switch (g.dtype) {
    case Dtype::float32:
      return is(1.0f);
    case Dtype::float64:
      return is(1.0);
    default:
      return false;
  }
}

// Below, the call of a loop costs more than what it does.
constexpr std::int64_t kLargeProduct = 1024;

void run_fused(Call& call, const mixgrad_registration& native) {
  const Value& output = *call.outputs[0];
  const Dtype dtype = output.dtype;
  constexpr std::size_t kMost = MIXGRAD_MAX_ELEMENTWISE_INPUTS;
  ValueRef casts[kMost + 1];
  View operands[kMost + 2];
  const auto n = static_cast<std::size_t>(native.n_inputs);
  const ValueRef g = cast(call.upstream[0], dtype);
  operands[0] = g->view();
  for (std::size_t i = 0; i < n; ++i) {
    if (!call.is_saved(i)) {
      operands[1 + i] = not_saved_view(dtype);
      continue;
    }
    const ValueRef input = ValueRef::borrow(call.inputs[i]);
    casts[i] = cast(input, dtype);
    operands[1 + i] = casts[i]->view();
  }
  operands[1 + n] = (call.saved & kSavedOutput) ? output.view() : not_saved_view(dtype);
  std::size_t last = 0;
  bool g_is_returned = false;
  for (std::size_t i = 0; i < n; ++i) {
    if (!call.needs_gradient(i)) continue;
    last = i;
    g_is_returned = g_is_returned || native.trivial[i] == MIXGRAD_TRIVIAL_UPSTREAM;
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (!call.needs_gradient(i)) continue;
    const int trivial = native.trivial[i];
    if (trivial == MIXGRAD_TRIVIAL_ZERO) continue;
    if (trivial == MIXGRAD_TRIVIAL_UPSTREAM) {
      call.results[i] = g;
      continue;
    }
    if (trivial > MIXGRAD_TRIVIAL_TIMES && all_ones(*g)) {
      const auto k = static_cast<std::size_t>(trivial - MIXGRAD_TRIVIAL_TIMES);
      ValueRef factor;
      if (k <= n)
        factor = casts[k - 1];
      else if (call.saved & kSavedOutput)
        factor = ValueRef::borrow(call.outputs[0]);
      if (factor && factor->dtype == dtype && factor->same_shape(output)) {
        call.results[i] = std::move(factor);
        continue;
      }
    }
    kernels::Loop loop;
    loop.function = native.loops[i][dtype_index(dtype)];
    loop.output = dtype;
    std::span<const View> given{operands, n + 2};
    View factors[2];
    if (trivial > MIXGRAD_TRIVIAL_TIMES && output.size >= kLargeProduct) {
      // NumPy's product uses the widest registers of the machine.
      static const Op& multiply = Registry::instance().get("multiply");
      if (const kernels::Loop& product = multiply.ufunc.loop(dtype)) {
        factors[0] = operands[0];
        factors[1] = operands[trivial - MIXGRAD_TRIVIAL_TIMES];
        loop = product;
        given = factors;
      }
    }
    // The last result may overwrite g: nobody else sees it any more. `g` and the slot are two uses of one value.
    const bool over_g = i == last && !g_is_returned && g.get() == call.upstream[0].get() && g->uses == 2 &&
                        g->references == 1 && g->buffer->references == 1 && !g->buffer->foreign() && g->contiguous &&
                        g->bytes() == g->buffer->bytes && g->same_shape(output);
    ValueRef result = over_g ? make_alias(*g) : make_value(dtype, output.shape_span());
    // Fused gradient loops report no floating-point errors: what was raised is dropped.
    kernels::elementwise(loop, given, result->view());
    call.results[i] = std::move(result);
  }
}

void run_native_gradient(Call& call, const Implementation& implementation, bool& declined) {
  const mixgrad_registration& native = *implementation.native;
  declined = false;
  mixgrad_status status = MIXGRAD_OK;
  if (native.kind == MIXGRAD_KIND_ELEMENTWISE) {
    if (!call.recorded) {
      run_fused(call, native);
      return;
    }
    for (std::size_t i = 0; i < call.inputs.size() && status == MIXGRAD_OK; ++i) {
      if (!call.needs_gradient(i) || native.trivial[i] == MIXGRAD_TRIVIAL_ZERO) continue;
      call.argument = static_cast<int>(i);
      status = native.function(&call);
    }
  } else {
    status = native.function(&call);
  }
  if (status == MIXGRAD_ERROR) throw PythonError();
  declined = status == MIXGRAD_DECLINED;
}

/// An argument of a Python gradient: an Array when the pass is recorded, else a read-only ndarray.
Ref gradient_argument(const Call& call, const ValueRef& value) {
  return call.recorded ? Ref::steal(make_array(value)) : to_ndarray(value);
}

Ref upstream_argument(const Call& call) {
  if (!call.op->multiple) return gradient_argument(call, call.upstream[0]);
  const Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call.upstream.size())));
  for (std::size_t i = 0; i < call.upstream.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), gradient_argument(call, call.upstream[i]).release());
  return tuple;
}

/// Who returned a value, for messages.
struct Origin {
  const char* kind;
  const char* place;
  std::string text() const { return std::string(kind) + ", " + place; }
};

ValueRef gradient_result(const Call& call, PyObject* item, std::size_t index, const Origin& origin) {
  if (item == Py_None) return {};
  if (is_array(item)) {
    ValueRef value = value_of(item);
    if (!call.recorded && Tape::current().live(*value) != 0)
      raise_error(
          "UnsupportedError",
          "the gradient of op '%s' (%s) returned an Array that is being recorded, in a backward pass that is not: its "
          "own dependence would be lost. Make that Array an input of the op",
          call.op->name.c_str(), origin.text().c_str());
    return value;
  }
  if (PyArray_Check(item)) {
    // What we handed out ourselves (g, an input) goes on as the value that it shows.
    for (const ValueRef& g : call.upstream)
      if (g->buffer->locked && g->buffer->owner == item) return g;
    for (Value* input : call.inputs)
      if (input->buffer && input->buffer->locked && input->buffer->owner == item) return ValueRef::borrow(input);
    PyObject* base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(item));
    if (base && is_array(base)) {
      Value* value = array_value(base);
      auto* array = reinterpret_cast<PyArrayObject*>(item);
      bool same = value->data == PyArray_BYTES(array) && value->ndim == PyArray_NDIM(array) &&
                  static_cast<int>(value->dtype) == PyArray_TYPE(array);
      for (int i = 0; same && i < value->ndim; ++i)
        same = value->shape[i] == PyArray_DIM(array, i) && value->strides[i] == PyArray_STRIDE(array, i);
      if (same) return ValueRef::borrow(value);
    }
  }
  ValueRef value = result_to_value(item);
  if (!value || !is_differentiable(value->dtype)) {
    PyObject* dtype =
        PyArray_Check(item) || PyArray_CheckScalar(item) ? PyObject_GetAttrString(item, "dtype") : nullptr;
    const Ref keep = Ref::steal_or_null(dtype);
    if (!dtype) PyErr_Clear();
    if (PyLong_CheckExact(item)) return make_scalar(Dtype::float64, PyLong_AsDouble(item));
    raise_error(
        "GradientDtypeError",
        "the gradient of op '%s' (%s) returned %s%S for input %zu, which has dtype %s; return an array of a float or "
        "complex dtype, or None for zero",
        call.op->name.c_str(), origin.text().c_str(), dtype ? "dtype " : "a ",
        dtype ? dtype : reinterpret_cast<PyObject*>(Py_TYPE(item)), index, dtype_name(call.inputs[index]->dtype));
  }
  // What the function may still hold could change before it is used.
  return value->buffer->exposed() ? copy_of(*value) : value;
}

struct RecordedGradient {
  explicit RecordedGradient(bool on) noexcept : on_(on) { recorded_gradient_depth += on_; }
  ~RecordedGradient() { recorded_gradient_depth -= on_; }
  RecordedGradient(const RecordedGradient&) = delete;
  RecordedGradient& operator=(const RecordedGradient&) = delete;
  bool on_;
};

void run_whole(Call& call, PyObject* function, const Origin& origin) {
  const Ref keep = Ref::borrow(function);
  const EntryGuard entry(call);
  const Ref g = upstream_argument(call);
  PyObject* arguments[3] = {nullptr, entry.get(), g.get()};
  const Ref result =
      Ref::steal(PyObject_Vectorcall(function, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  const std::size_t n = call.inputs.size();
  PyObject* sequence = result.get();
  if (!PyTuple_Check(sequence) && !PyList_Check(sequence)) {
    if (n != 1)
      raise_error(
          "GradientCountError",
          "the gradient of op '%s' (%s) returned a single %.200s, but the op has %zu inputs; return a tuple with one "
          "value per input (None for zero)",
          call.op->name.c_str(), origin.text().c_str(), Py_TYPE(sequence)->tp_name, n);
    call.results[0] = gradient_result(call, sequence, 0, origin);
    return;
  }
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence));
  if (count != n)
    raise_error(
        "GradientCountError",
        "the gradient of op '%s' (%s) returned %zu value%s, but the op has %zu input%s; return one per input (None for "
        "zero)",
        call.op->name.c_str(), origin.text().c_str(), count, count == 1 ? "" : "s", n, n == 1 ? "" : "s");
  for (std::size_t i = 0; i < n; ++i)
    call.results[i] = gradient_result(call, PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i)), i, origin);
}

void run_per_argument(Call& call, const PythonGradient& gradient) {
  const Op& op = *call.op;
  const std::size_t n = call.inputs.size();
  const std::size_t first = gradient.per_index ? 1 : 0;
  Few<Ref, 8> keep(n + 2);
  keep[0] = upstream_argument(call);
  for (std::size_t i = 0; i < n; ++i)
    keep[1 + i] =
        call.is_saved(i) ? gradient_argument(call, ValueRef::borrow(call.inputs[i])) : not_saved(call, i, false);
  if (op.multiple) {
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call.outputs.size())));
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                       ((call.saved & kSavedOutput) ? gradient_argument(call, ValueRef::borrow(call.outputs[i]))
                                                    : not_saved(call, i, true))
                           .release());
    keep[n + 1] = std::move(tuple);
  } else {
    keep[n + 1] = (call.saved & kSavedOutput) ? gradient_argument(call, ValueRef::borrow(call.outputs[0]))
                                              : not_saved(call, 0, true);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (!call.needs_gradient(i)) continue;
    const ArgumentGradient& argument = gradient.argument(i);
    if (argument.state == ArgumentGradient::State::zero) continue;
    const std::size_t n_keywords = argument.function.passed.size();
    Few<PyObject*, 16> arguments(1 + first + n + 2 + n_keywords);
    std::size_t at = 1;
    arguments[at++] = keep[0].get();
    Ref index;
    if (first) {
      index = Ref::steal(PyLong_FromSize_t(i));
      arguments[at++] = index.get();
    }
    for (std::size_t k = 1; k < n + 2; ++k) arguments[at++] = keep[k].get();
    const std::size_t n_positional = at - 1;
    for (const std::size_t place : argument.function.passed)
      arguments[at++] = PyTuple_GET_ITEM(call.attributes, static_cast<Py_ssize_t>(place));
    const Ref result = Ref::steal(PyObject_Vectorcall(argument.function.callable.get(), arguments.data() + 1,
                                                      n_positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                      n_keywords ? argument.function.keywords.get() : nullptr));
    call.results[i] = gradient_result(call, result.get(), i, {"python", argument.origin.c_str()});
  }
}

void run_implementation(Call& call, const Implementation& implementation, bool& declined) {
  declined = false;
  if (implementation.language == Language::native) {
    run_native_gradient(call, implementation, declined);
  } else {
    const RecordedGradient scope(call.recorded);
    const std::shared_ptr<const PythonGradient> gradient = implementation.gradient;
    if (gradient->whole)
      run_whole(call, gradient->whole.get(), {"python", gradient->origin.c_str()});
    else
      run_per_argument(call, *gradient);
  }
  if (!declined) ++implementation.calls;
}

}  // namespace

void run_gradient(Call& call, const Choice& choice) {
  if (choice.override_record) {
    const RecordedGradient scope(call.recorded);
    const char* origin = PyUnicode_AsUTF8(overrides::field(choice.override_record, Field::origin));
    PyObject* const outer = std::exchange(call.below, choice.override_record);
    run_whole(call, overrides::field(choice.override_record, Field::function), {"override", origin ? origin : "?"});
    call.below = outer;
    return;
  }
  bool declined = false;
  run_implementation(call, *choice.implementation, declined);
  if (!declined) return;
  // A native gradient may decline once it has seen the call; Python's is next in order.
  ++choice.implementation->declined;
  if (tell_fallbacks && choice.implementation->language == Language::native)
    tell_fallback(*call.op, *choice.implementation, "it does not take this call");
  const Implementation& other = call.op->of(What::gradient, Language::python);
  if (choice.implementation->language == Language::python || !refusal(other, call).empty()) no_gradient(call);
  for (ValueRef& result : call.results) result = {};
  run_implementation(call, other, declined);
}

void run_gradient(Call& call, Language language) {
  const Implementation& implementation = call.op->of(What::gradient, language);
  const std::string reason = refusal(implementation, call);
  bool declined = !reason.empty();
  if (!declined) run_implementation(call, implementation, declined);
  if (declined)
    raise_error("MissingGradientError", "op.%s was called for op '%s', but its %s gradient cannot run here: %s",
                to_string(language), call.op->name.c_str(), to_string(language),
                reason.empty() ? "it declined this call" : reason.c_str());
}

observe::By by(const Choice& choice) noexcept {
  if (choice.override_record) return observe::By::override_function;
  return choice.implementation && choice.implementation->language == Language::native ? observe::By::native
                                                                                      : observe::By::python;
}

std::string describe(const Choice& choice) {
  if (choice.override_record) {
    const char* origin = PyUnicode_AsUTF8(overrides::field(choice.override_record, Field::origin));
    return std::string("override, ") + (origin ? origin : "?");
  }
  if (!choice.implementation) return "none";
  return std::string(to_string(choice.implementation->language)) + ", " + choice.implementation->origin;
}

}  // namespace mixgrad::core
