// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <unordered_map>

#include "convert.h"
#include "entry.h"

namespace mixgrad::core {

namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

bool same_shape(const Value& a, const Value& b) noexcept { return a.same_shape(b); }

/// The axes of `from` to sum over so that it fits `to`'s shape; false when it does not broadcast from it.
bool axes_to_sum(const Value& from, const Value& to, std::uint64_t& axes) noexcept {
  if (from.ndim < to.ndim) return false;
  const int offset = from.ndim - to.ndim;
  axes = (std::uint64_t{1} << offset) - 1;
  for (int i = 0; i < to.ndim; ++i) {
    if (to.shape[i] == from.shape[offset + i]) continue;
    if (to.shape[i] != 1) return false;
    axes |= std::uint64_t{1} << (offset + i);
  }
  return true;
}

/// Runs one of the engine's own ops, so that it is recorded.
ValueRef run_recorded(const char* name, std::span<ValueRef> inputs, PyObject* attributes) {
  const Op& op = Registry::instance().get(name);
  Results results;
  run(op, inputs, attributes, results);
  return std::move(results.values[0]);
}

/// The op's attributes with some set by name.
Ref attributes_of(const char* op_name, std::initializer_list<std::pair<const char*, PyObject*>> given) {
  const Op& op = Registry::instance().get(op_name);
  const auto n = static_cast<Py_ssize_t>(op.attribute_names.size());
  Ref tuple = Ref::steal(PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* value = nullptr;
    for (const auto& [name, object] : given)
      if (op.attribute_names[static_cast<std::size_t>(i)] == name) value = object;
    for (const Parameter& parameter : op.parameters)
      if (!value && !parameter.is_input && parameter.index == static_cast<std::size_t>(i))
        value = parameter.default_value.get();
    PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(value ? value : Py_None));
  }
  return tuple;
}

Ref shape_tuple(const Value& like) {
  Ref tuple = Ref::steal(PyTuple_New(like.ndim));
  for (int i = 0; i < like.ndim; ++i) PyTuple_SET_ITEM(tuple.get(), i, PyLong_FromLongLong(like.shape[i]));
  return tuple;
}

ValueRef sum_to(const ValueRef& from, const Value& to, std::uint64_t axes, bool recorded) {
  if (recorded) {
    ValueRef value = from;
    if (axes != 0) {
      Ref tuple = Ref::steal(PyTuple_New(0));
      std::vector<long> list;
      for (int i = 0; i < from->ndim; ++i)
        if (axes >> i & 1) list.push_back(i);
      tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(list.size())));
      for (std::size_t i = 0; i < list.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), PyLong_FromLong(list[i]));
      const Ref attributes = attributes_of("sum", {{"axis", tuple.get()}});
      ValueRef inputs[] = {value};
      value = run_recorded("sum", inputs, attributes.get());
    }
    if (value->same_shape(to)) return value;
    const Ref shape = shape_tuple(to);
    const Ref attributes = attributes_of("reshape", {{"shape", shape.get()}});
    ValueRef inputs[] = {value};
    return run_recorded("reshape", inputs, attributes.get());
  }
  std::int64_t kept[kMaxDims];
  std::size_t n = 0;
  for (int i = 0; i < from->ndim; ++i)
    if (!(axes >> i & 1)) kept[n++] = from->shape[i];
  ValueRef reduced = make_value(from->dtype, {kept, n});
  int flags = 0;
  if (axes == 0)
    kernels::copy(from->view(), reduced->view());
  else
    kernels::reduce(kernels::Reduction::add, from->view(), axes, reduced->view(), false, flags);
  kernels::clear_floating_point_flags();
  if (reduced->same_shape(to)) return reduced;
  // Axes of length one come back: the same memory under the input's shape.
  std::int64_t strides[kMaxDims];
  std::int64_t stride = static_cast<std::int64_t>(item_size(reduced->dtype));
  for (int i = to.ndim; i-- > 0;) {
    strides[i] = stride;
    stride *= to.shape[i];
  }
  return make_view(*reduced, to.shape_span(), {strides, to.ndim}, 0);
}

ValueRef cast_to(const ValueRef& value, Dtype dtype, bool recorded) {
  if (value->dtype == dtype) return value;
  if (!recorded) return cast(value, dtype);
  const Ref descr = Ref::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(static_cast<int>(dtype))));
  ValueRef inputs[] = {value};
  if (is_complex(value->dtype) && !is_complex(dtype)) {
    inputs[0] = run_recorded("real", inputs, nullptr);
    if (inputs[0]->dtype == dtype) return inputs[0];
  }
  const Ref attributes = attributes_of("astype", {{"dtype", descr.get()}});
  return run_recorded("astype", inputs, attributes.get());
}

bool is_ours(const Value& value) noexcept {
  return value.uses == 1 && value.references == 1 && value.buffer->references == 1 && !value.buffer->foreign() &&
         value.contiguous && value.bytes() == value.buffer->bytes;
}

void add_to(ValueRef& slot, ValueRef value, Tape& tape) {
  if (!slot) {
    slot = std::move(value);
    return;
  }
  if (tape.recording() != 0 && (tape.live(*slot) | tape.live(*value)) != 0) {
    ValueRef inputs[] = {std::move(slot), std::move(value)};
    slot = run_recorded("add", inputs, nullptr);
    return;
  }
  if (!is_ours(*slot)) {
    if (is_ours(*value))
      std::swap(slot, value);
    else
      slot = copy_of(*slot);
  }
  kernels::accumulate(value->view(), slot->view());
}

/// Adds "while computing the gradient of ..." to the exception in flight, whose type and frames stay.
void annotate(const Call& call, const std::string& origin) noexcept {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback && error) PyException_SetTraceback(error, traceback);
  try {
    std::string text = "while computing the gradient of op '" + call.op->name + "' (" + origin + ")";
    if (call.entry && call.entry->location.code) {
      auto* code = reinterpret_cast<PyCodeObject*>(call.entry->location.code);
      const char* file = PyUnicode_AsUTF8(code->co_filename);
      const int line = PyCode_Addr2Line(code, call.entry->location.offset);
      text += ", recorded at " + std::string(file ? file : "?") + ":" + std::to_string(line);
    }
    Ref notes = Ref::steal_or_null(PyObject_GetAttrString(error, "__notes__"));
    if (!notes) {
      PyErr_Clear();
      notes = Ref::steal(PyList_New(0));
      PyObject_SetAttrString(error, "__notes__", notes.get());
    }
    const Ref note = Ref::steal(PyUnicode_FromString(text.c_str()));
    if (PyList_Check(notes.get())) PyList_Append(notes.get(), note.get());
  } catch (...) {
  }
  PyErr_Clear();
  PyErr_Restore(type, error, traceback);
}

[[noreturn]] void refuse_mutated(const Call& call, const char* what) {
  raise_error(
      "MutatedInputError",
      "%s of op '%s' was changed in place between recording and gradient: the gradient would be wrong. Take the gradient "
      "before you change the array, or record a copy (x.copy()). mixgrad.debug.check_mutation(\"off\") turns this check "
      "off",
      what, call.op->name.c_str());
}

void check_unchanged(const Call& call, std::uint32_t pass) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    if (call.is_saved(i) && call.inputs[i]->buffer && !call.inputs[i]->buffer->unchanged(pass)) {
      const std::string what = "input " + std::to_string(i);
      refuse_mutated(call, what.c_str());
    }
  if (!(call.saved & kSavedOutput)) return;
  for (const Value* output : call.outputs)
    if (output->buffer && !output->buffer->unchanged(pass)) refuse_mutated(call, "the output");
}

std::uint32_t next_pass() noexcept {
  static std::uint32_t pass = 0;
  return ++pass;
}

}  // namespace

ValueRef fit_upstream(ValueRef g, const Value& target, Tape& tape) {
  const bool recorded = tape.recording() != 0 && tape.live(*g) != 0;
  if (!g->same_shape(target)) {
    if (recorded) {
      const Ref shape = shape_tuple(target);
      const Ref attributes = attributes_of("broadcast_to", {{"shape", shape.get()}});
      ValueRef inputs[] = {g};
      g = run_recorded("broadcast_to", inputs, attributes.get());
    } else {
      static constexpr std::int64_t no_strides[kMaxDims] = {};
      g = make_view(*g, target.shape_span(), {no_strides, target.ndim}, 0);
    }
  }
  return cast_to(g, target.dtype, recorded);
}

void prepare_upstream(Call& call) {
  for (std::size_t i = 0; i < call.upstream.size(); ++i) {
    const Value& output = *call.outputs[i];
    const ValueRef& g = call.upstream[i];
    if (!g->same_shape(output) && g->ndim != 0)
      raise_error("GradientShapeError", "g for output %zu of op '%s' has shape %s; the output has shape %s", i,
                  call.op->name.c_str(), shape_text(g->shape_span()).c_str(), shape_text(output.shape_span()).c_str());
    call.upstream[i] = fit_upstream(call.upstream[i], output, Tape::current());
  }
}

void finish_results(Call& call, const Choice& choice) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    ValueRef& result = call.results[i];
    if (!call.needs_gradient(i)) {
      result = {};
      continue;
    }
    if (!result) continue;
    const Value& input = *call.inputs[i];
    if (!is_differentiable(result->dtype))
      raise_error(
          "GradientDtypeError",
          "the gradient of op '%s' (%s) returned dtype %s for input %zu, which has dtype %s; return a float or complex "
          "dtype, or nothing for zero",
          call.op->name.c_str(), describe(choice).c_str(), dtype_name(result->dtype), i, dtype_name(input.dtype));
    result->weak = false;
    if (!same_shape(*result, input)) {
      std::uint64_t axes = 0;
      const bool sums =
          call.op->broadcasts && same_shape(*result, *call.outputs[0]) && axes_to_sum(*result, input, axes);
      if (!sums)
        raise_error("GradientShapeError",
                    "the gradient of op '%s' (%s) returned shape %s for input %zu, which has shape %s%s%s%s",
                    call.op->name.c_str(), describe(choice).c_str(), shape_text(result->shape_span()).c_str(), i,
                    shape_text(input.shape_span()).c_str(),
                    call.op->broadcasts ? "; return the input's shape or the output's, " : "; return the input's shape",
                    call.op->broadcasts ? shape_text(call.outputs[0]->shape_span()).c_str() : "",
                    call.op->broadcasts ? ", which is then summed" : "");
      // Cast first where it narrows (the real part of a complex gradient): half the work.
      if (is_complex(result->dtype) && !is_complex(input.dtype)) result = cast_to(result, input.dtype, call.recorded);
      result = sum_to(result, input, axes, call.recorded);
    }
    result = cast_to(result, input.dtype, call.recorded);
  }
}

namespace {

/// Whether an input may have no gradient from this implementation: it declares zero.
bool declares_zero(const Choice& choice, std::size_t input) noexcept {
  if (!choice.implementation) return false;
  const Implementation& implementation = *choice.implementation;
  if (implementation.native)
    return implementation.native->kind == MIXGRAD_KIND_ELEMENTWISE &&
           implementation.native->trivial[input] == MIXGRAD_TRIVIAL_ZERO;
  const PythonGradient* python = implementation.gradient.get();
  return python && !python->whole && python->argument(input).state == ArgumentGradient::State::zero;
}

bool op_declares_zero(const Op& op, std::size_t input) noexcept {
  for (const Implementation& implementation : op.gradients) {
    if (!implementation.present) continue;
    Choice choice;
    choice.implementation = &implementation;
    if (declares_zero(choice, input)) return true;
  }
  return false;
}

class Walk {
 public:
  explicit Walk(const Backward& request)
      : request_(request), tape_(request.tape), mask_(Mask{1} << request.bit), pass_(next_pass()) {
    ++tape_.walks;
  }
  ~Walk() { --tape_.walks; }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  std::vector<ValueRef> run() {
    bounds();
    std::vector<ValueRef> gradients(request_.sources.size());
    if (low_ <= high_ || !outside_.empty()) {
      slots_.resize(size());
      needed_.assign(size(), 0);
      mark();
      seed();
      for (Position p = high_; p >= low_; --p) visit(p);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Position p = request_.sources[i]->position;
      if (p < request_.start) {
        if (const auto found = outside_.find(p); found != outside_.end()) gradients[i] = found->second;
      } else if (p <= high_) {
        gradients[i] = slots_[index(p)];
      }
    }
    return gradients;
  }

  bool recorded() const noexcept { return recorded_; }

 private:
  std::size_t size() const noexcept { return low_ <= high_ ? static_cast<std::size_t>(high_ - low_ + 1) : 0; }
  std::size_t index(Position p) const noexcept { return static_cast<std::size_t>(p - low_); }

  Entry* own(Position p) const noexcept {
    Entry* entry = tape_.at(p);
    return entry && (entry->windows & mask_) ? entry : nullptr;
  }

  Position last_output(Position p) const noexcept {
    const Entry* entry = own(p);
    if (!entry) return p;
    const Position first = p - static_cast<Position>(entry->lead);
    const Entry* operation = own(first);
    return operation ? first + static_cast<Position>(operation->n_outputs) - 1 : p;
  }

  void bounds() {
    low_ = request_.end;
    high_ = -1;
    for (const ValueRef& source : request_.sources) {
      if (source->position < request_.start) {
        outside_[source->position] = {};
        low_ = request_.start;
      } else {
        low_ = std::min(low_, source->position);
      }
    }
    for (const ValueRef& target : request_.targets)
      if (target->position >= request_.start && target->position < request_.end)
        // An operation with several outputs is visited as a whole.
        high_ = std::max(high_, last_output(target->position));
  }

  static constexpr std::uint8_t kNeeded = 1, kSource = 2;

  void mark() {
    for (const ValueRef& source : request_.sources)
      if (source->position >= low_ && source->position <= high_) needed_[index(source->position)] = kNeeded | kSource;
    for (Position p = low_; p <= high_; ++p) {
      const Entry* entry = own(p);
      if (!entry) continue;
      std::uint8_t& needed = needed_[index(p)];
      if (entry->lead) {
        if (needed_[index(p - entry->lead)] & kNeeded) needed = static_cast<std::uint8_t>(needed | kNeeded);
        continue;
      }
      if (needed & kNeeded) continue;
      for (std::uint32_t i = 0; i < entry->n_inputs; ++i)
        if (leads_to_source(entry->inputs[i])) {
          needed = static_cast<std::uint8_t>(needed | kNeeded);
          break;
        }
    }
  }

  bool leads_to_source(const Value* value) const noexcept {
    const Position p = value->position;
    if (p < 0 || value->tape != tape_.id()) return false;
    if (p >= low_ && p <= high_) return (needed_[index(p)] & kNeeded) != 0;
    return !outside_.empty() && outside_.contains(p);
  }

  void seed() {
    for (std::size_t i = 0; i < request_.targets.size(); ++i) {
      const Value& target = *request_.targets[i];
      const Position p = target.position;
      if (p < 0 || target.tape != tape_.id()) continue;
      const bool inside = p >= low_ && p <= high_;
      if (inside && !(own(p) && (needed_[index(p)] & kNeeded))) continue;
      if (!inside && !outside_.contains(p)) continue;
      add_to(slot(p), request_.upstream[i], tape_);
    }
  }

  ValueRef& slot(Position p) { return p >= low_ && p <= high_ ? slots_[index(p)] : outside_[p]; }

  void visit(Position p) {
    const std::uint8_t needed = needed_[index(p)];
    if (!(needed & kNeeded)) return;
    Entry* entry = own(p);
    if (!entry || entry->lead) return;
    const std::uint32_t n = entry->n_outputs;
    bool any = false;
    for (std::uint32_t k = 0; k < n; ++k) any = any || slots_[index(p + k)];
    if (!any) return;
    if (!entry->op) {
      for (std::uint32_t i = 0; i < entry->n_inputs; ++i)
        if (leads_to_source(entry->inputs[i])) add_to(slot(entry->inputs[i]->position), slots_[index(p)], tape_);
      if (!(needed & kSource)) slots_[index(p)] = {};
      return;
    }
    take_gradient(p, *entry);
    if (!request_.keep) tape_.forget(request_.bit, p, n);
  }

  void take_gradient(Position p, Entry& entry) {
    const std::uint32_t n_outputs = entry.n_outputs, n_inputs = entry.n_inputs;
    Few<Value*, 2> outputs(n_outputs);
    Few<ValueRef, 2> upstream(n_outputs);
    Few<ValueRef, 4> results(n_inputs);
    Few<std::uint8_t, 8> needs(n_inputs);
    bool any = false;
    for (std::uint32_t i = 0; i < n_inputs; ++i) {
      needs[i] = leads_to_source(entry.inputs[i]) ? 1 : 0;
      any = any || needs[i] != 0;
    }
    // A further output can be a source on its own: the operation then has nothing to pass on.
    if (!any) return;
    Call call;
    call.op = entry.op;
    call.entry = &entry;
    call.inputs = {entry.inputs, n_inputs};
    call.saved = entry.saved;
    call.attributes = entry.attributes ? entry.attributes : entry.op->defaults.get();
    call.needs = {needs.data(), n_inputs};
    for (std::uint32_t k = 0; k < n_outputs; ++k) {
      outputs[k] = k == 0 ? entry.output : tape_.at(p + k)->output;
      ValueRef& from = slots_[index(p + k)];
      const bool source = (needed_[index(p + k)] & kSource) != 0;
      if (!from)
        upstream[k] = make_zeros(outputs[k]->dtype, outputs[k]->shape_span());
      else
        upstream[k] = source ? from : std::move(from);
    }
    call.outputs = {outputs.data(), n_outputs};
    call.upstream = {upstream.data(), n_outputs};
    call.results = {results.data(), n_inputs};
    if (tape_.recording() != 0) {
      call.recorded = tape_.live(*outputs[0]) != 0;
      for (const ValueRef& g : call.upstream) call.recorded = call.recorded || tape_.live(*g) != 0;
      recorded_ = recorded_ || call.recorded;
    }
    std::string origin;
    try {
      check_unchanged(call, pass_);
      const Choice choice = choose_gradient(call);
      observe::Scope scope(*call.op, What::gradient, &entry.location);
      observe::Keeps keeps(call);
      scope.ran(by(choice));
      try {
        run_gradient(call, choice);
        check_none(call, choice);
        finish_results(call, choice);
        keeps.check(call, by(choice));
        for (const ValueRef& result : call.results) scope.made(result);
      } catch (...) {
        origin = describe(choice);
        throw;
      }
    } catch (...) {
      set_python_error();
      annotate(call, origin.empty() ? "not chosen yet" : origin);
      throw PythonError();
    }
    for (std::uint32_t i = 0; i < n_inputs; ++i)
      if (needs[i] && results[i]) add_to(slot(call.inputs[i]->position), std::move(results[i]), tape_);
  }

  static void check_none(const Call& call, const Choice& choice) {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (!call.needs_gradient(i) || call.results[i] || op_declares_zero(*call.op, i)) continue;
      raise_error(
          "GradientCountError",
          "the gradient of op '%s' (%s) returned nothing (None) for input %zu, which needs a gradient. Return its "
          "gradient, or declare that it is zero: registry[\"%s\"].gradient(None, argument=%zu)",
          call.op->name.c_str(), describe(choice).c_str(), i, call.op->name.c_str(), i);
    }
  }

  const Backward& request_;
  Tape& tape_;
  Mask mask_;
  std::uint32_t pass_;
  Position low_ = 0, high_ = -1;
  bool recorded_ = false;
  std::vector<ValueRef> slots_;
  std::vector<std::uint8_t> needed_;
  std::unordered_map<Position, ValueRef> outside_;
};

}  // namespace

std::vector<ValueRef> run_backward(const Backward& request, bool& recorded) {
  Walk walk(request);
  std::vector<ValueRef> gradients = walk.run();
  recorded = walk.recorded();
  for (const ValueRef& gradient : gradients)
    if (gradient && request.tape.recording() != 0 && request.tape.live(*gradient) != 0) recorded = true;
  return gradients;
}

}  // namespace mixgrad::core
