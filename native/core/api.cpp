// SPDX-License-Identifier: Apache-2.0
#include "api.h"

#include <cstring>
#include <string>

#include "array.h"
#include "convert.h"
#include "dispatch.h"
#include "entry.h"

namespace mixgrad::core {

namespace {

// A mixgrad_array is a Value; each handle is one use of it.
Value* value_of_handle(const mixgrad_array* handle) noexcept {
  return const_cast<Value*>(reinterpret_cast<const Value*>(handle));
}
mixgrad_array* handle_of(ValueRef value) noexcept { return reinterpret_cast<mixgrad_array*>(value.release()); }

mixgrad_op* handle_of(Op& op) noexcept { return reinterpret_cast<mixgrad_op*>(&op); }
Op& op_of_handle(mixgrad_op* handle) noexcept { return *reinterpret_cast<Op*>(handle); }

template <class Body>
mixgrad_status status(Body&& body) noexcept {
  return guarded<mixgrad_status>(MIXGRAD_ERROR, [&]() -> mixgrad_status {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return MIXGRAD_OK;
    } else {
      return body();
    }
  });
}

template <class Body>
mixgrad_array* array(Body&& body) noexcept {
  return guarded<mixgrad_array*>(nullptr, [&] { return handle_of(body()); });
}

Dtype to_dtype(std::int32_t dtype) {
  if (dtype >= 0 && dtype <= 15 && item_size(static_cast<Dtype>(dtype)) != 0 && dtype != 13)
    return static_cast<Dtype>(dtype);
  raise(PyExc_ValueError, "a native implementation asked for an array of the unknown dtype %d",
        static_cast<int>(dtype));
}

void fill_view(const Value& value, bool data, mixgrad_view* out) noexcept {
  out->data = data ? value.data : nullptr;
  out->dtype = static_cast<std::int32_t>(value.dtype);
  out->ndim = value.ndim;
  out->size = value.size;
  out->shape = value.shape;
  out->strides = value.strides;
  out->contiguous = value.contiguous;
}

void array_retain(mixgrad_array* handle) { value_of_handle(handle)->use(); }
void array_release(mixgrad_array* handle) { value_of_handle(handle)->unuse(); }
void array_view(const mixgrad_array* handle, mixgrad_view* out) { fill_view(*value_of_handle(handle), true, out); }

mixgrad_array* array_new(std::int32_t dtype, std::int32_t ndim, const std::int64_t* shape) {
  return array([&] {
    if (ndim < 0 || ndim > kMaxDims)
      raise(PyExc_ValueError, "an array has 0 to %d axes, not %d", kMaxDims, static_cast<int>(ndim));
    for (std::int32_t i = 0; i < ndim; ++i)
      if (shape[i] < 0)
        raise(PyExc_ValueError, "axis %d of a new array has the negative length %lld", static_cast<int>(i),
              static_cast<long long>(shape[i]));
    return make_value(to_dtype(dtype), {shape, static_cast<std::size_t>(ndim)});
  });
}

mixgrad_array* array_scalar(std::int32_t dtype, double real, double imaginary) {
  return array([&] { return make_scalar(to_dtype(dtype), real, imaginary); });
}

mixgrad_array* array_number(double real, double imaginary, std::int32_t complex_number) {
  return array([&] { return make_number(real, imaginary, complex_number != 0); });
}

mixgrad_array* array_strided(const mixgrad_array* base, std::int32_t ndim, const std::int64_t* shape,
                             const std::int64_t* strides, std::int64_t offset) {
  return array([&] {
    if (ndim < 0 || ndim > kMaxDims)
      raise(PyExc_ValueError, "an array has 0 to %d axes, not %d", kMaxDims, static_cast<int>(ndim));
    const auto n = static_cast<std::size_t>(ndim);
    return make_view(*value_of_handle(base), {shape, n}, {strides, n}, offset);
  });
}

mixgrad_array* array_contiguous(const mixgrad_array* handle, std::int32_t dtype) {
  return array([&] {
    ValueRef value = cast(ValueRef::borrow(value_of_handle(handle)), to_dtype(dtype));
    return value->contiguous ? value : copy_of(*value);
  });
}

PyObject* attribute_object(const Call& call, const char* name) noexcept {
  const std::size_t index = call.op->attribute_index(name);
  if (index == call.op->attribute_names.size()) return nullptr;
  PyObject* attributes = call.attributes ? call.attributes : call.op->defaults.get();
  return attributes ? PyTuple_GET_ITEM(attributes, static_cast<Py_ssize_t>(index)) : nullptr;
}

/// The basic index `key` of `base` as a view: integers, slices, None, Ellipsis. False for any other index.
bool basic_index(const Value& base, PyObject* key, ValueRef& out) {
  PyObject* single[] = {key};
  PyObject* const* items = single;
  Py_ssize_t n = 1;
  if (PyTuple_CheckExact(key)) {
    n = PyTuple_GET_SIZE(key);
    items = reinterpret_cast<PyTupleObject*>(key)->ob_item;
  }
  int used = 0;
  bool ellipsis = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = items[i];
    if (item == Py_Ellipsis) {
      if (ellipsis) return false;
      ellipsis = true;
    } else if (item == Py_None) {
      continue;
    } else if (PySlice_Check(item) || (PyLong_Check(item) && !PyBool_Check(item)) || PyArray_IsScalar(item, Integer)) {
      ++used;
    } else {
      return false;
    }
  }
  // NumPy's own call raises the error for too many indices.
  if (used > base.ndim) return false;
  std::int64_t shape[kMaxDims], strides[kMaxDims];
  std::int64_t offset = 0;
  int axis = 0;
  std::size_t ndim = 0;
  const auto keep_axis = [&](int from) {
    shape[ndim] = base.shape[from];
    strides[ndim++] = base.strides[from];
  };
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = items[i];
    if (ndim + static_cast<std::size_t>(base.ndim - axis) >= kMaxDims) return false;
    if (item == Py_Ellipsis) {
      for (int skip = base.ndim - used; skip > 0; --skip) keep_axis(axis++);
    } else if (item == Py_None) {
      shape[ndim] = 1;
      strides[ndim++] = 0;
    } else if (PySlice_Check(item)) {
      Py_ssize_t start, stop, step;
      if (PySlice_Unpack(item, &start, &stop, &step) < 0) throw PythonError();
      const Py_ssize_t length = PySlice_AdjustIndices(static_cast<Py_ssize_t>(base.shape[axis]), &start, &stop, step);
      shape[ndim] = length;
      strides[ndim++] = base.strides[axis] * step;
      if (length > 0) offset += base.strides[axis] * start;
      ++axis;
    } else {
      Py_ssize_t index = PyNumber_AsSsize_t(item, PyExc_IndexError);
      if (index == -1 && PyErr_Occurred()) throw PythonError();
      const auto length = static_cast<Py_ssize_t>(base.shape[axis]);
      if (index < 0) index += length;
      if (index < 0 || index >= length) return false;
      offset += base.strides[axis++] * index;
    }
  }
  while (axis < base.ndim) keep_axis(axis++);
  out = make_view(base, {shape, ndim}, {strides, ndim}, offset);
  return true;
}

mixgrad_status array_index(const mixgrad_array* base, mixgrad_call* call, const char* name, mixgrad_array** out) {
  return status([&] {
    PyObject* key = attribute_object(*call, name);
    ValueRef view;
    if (!key || !basic_index(*value_of_handle(base), key, view)) return MIXGRAD_DECLINED;
    *out = handle_of(std::move(view));
    return MIXGRAD_OK;
  });
}

std::int32_t array_is_recorded(const mixgrad_array* handle) {
  const Tape& tape = Tape::current();
  const Value& value = *value_of_handle(handle);
  return tape.live(value) != 0 || (tape.any_greedy() && tape.greedy(value) != 0);
}

mixgrad_op* op_find(const char* name) {
  return guarded<mixgrad_op*>(nullptr, [&] { return handle_of(Registry::instance().get(name)); });
}

Ref attribute_to_python(const mixgrad_attribute& attribute) {
  switch (attribute.kind) {
    case MIXGRAD_ATTRIBUTE_NONE:
      return Ref::borrow(Py_None);
    case MIXGRAD_ATTRIBUTE_BOOL:
      return Ref::borrow(attribute.integer ? Py_True : Py_False);
    case MIXGRAD_ATTRIBUTE_INT:
      return Ref::steal(PyLong_FromLongLong(attribute.integer));
    case MIXGRAD_ATTRIBUTE_FLOAT:
      return Ref::steal(PyFloat_FromDouble(attribute.real));
    case MIXGRAD_ATTRIBUTE_STRING:
      return Ref::steal(PyUnicode_FromString(attribute.string));
    case MIXGRAD_ATTRIBUTE_INTS: {
      Ref tuple = Ref::steal(PyTuple_New(attribute.count));
      for (std::int32_t i = 0; i < attribute.count; ++i)
        PyTuple_SET_ITEM(tuple.get(), i, Ref::steal(PyLong_FromLongLong(attribute.integers[i])).release());
      return tuple;
    }
    case MIXGRAD_ATTRIBUTE_ARRAY:
      return to_ndarray(ValueRef::borrow(value_of_handle(attribute.array)));
    case MIXGRAD_ATTRIBUTE_OF_CALL: {
      const auto& call = *reinterpret_cast<const Call*>(attribute.array);
      const char* name = attribute.string ? attribute.string : attribute.name;
      PyObject* object = attribute_object(call, name);
      if (!object) raise(PyExc_TypeError, "op '%s' has no attribute '%s' to hand on", call.op->name.c_str(), name);
      return Ref::borrow(object);
    }
    default:
      raise(PyExc_ValueError, "attribute '%s' has the unknown kind %d", attribute.name,
            static_cast<int>(attribute.kind));
  }
}

mixgrad_status op_call(mixgrad_op* handle, std::int32_t n_inputs, mixgrad_array* const* inputs,
                       std::int32_t n_attributes, const mixgrad_attribute* attributes, std::int32_t n_outputs,
                       mixgrad_array** outputs) {
  return status([&] {
    const Op* found = &op_of_handle(handle);
    // The caller may hold the handle for ever: an op that was replaced since is looked up again.
    if (!found->registered) found = &Registry::instance().get(found->name);
    const Op& op = *found;
    const auto n = static_cast<std::size_t>(n_inputs);
    if (!op.variadic && n != op.input_names.size())
      raise(PyExc_TypeError, "op '%s' has %zu inputs; a native implementation gave %zu", op.name.c_str(),
            op.input_names.size(), n);
    Few<ValueRef> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (!inputs[i])
        raise(PyExc_ValueError, "input %zu of op '%s' is an empty Array in a native implementation", i,
              op.name.c_str());
      values[i] = ValueRef::borrow(value_of_handle(inputs[i]));
    }
    Ref tuple = op.defaults;
    if (n_attributes > 0 || (!tuple && !op.attribute_names.empty())) {
      tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(op.attribute_names.size())));
      for (const Parameter& parameter : op.parameters) {
        if (parameter.is_input) continue;
        Ref value = parameter.default_value;
        for (std::int32_t i = 0; i < n_attributes; ++i)
          if (op.attribute_names[parameter.index] == attributes[i].name) value = attribute_to_python(attributes[i]);
        if (!value)
          raise(PyExc_TypeError, "%s() missing required argument '%U' in a native implementation", op.name.c_str(),
                parameter.name.get());
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(parameter.index), value.release());
      }
    }
    Results results;
    run(op, {values.data(), n}, tuple.get(), results);
    if (results.plain) {
      results.values.resize(1);
      results.values[0] = to_value(results.plain.get(), "the result of an op");
    }
    const std::size_t count = results.values.size();
    if (count > static_cast<std::size_t>(n_outputs))
      raise(PyExc_ValueError, "op '%s' gave %zu results; a native implementation takes %d", op.name.c_str(), count,
            static_cast<int>(n_outputs));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n_outputs); ++i)
      outputs[i] = i < count ? handle_of(std::move(results.values[i])) : nullptr;
  });
}

const char* call_name(const mixgrad_call* call) { return call->op->name.c_str(); }
std::int32_t call_n_inputs(const mixgrad_call* call) { return static_cast<std::int32_t>(call->inputs.size()); }
std::int32_t call_n_outputs(const mixgrad_call* call) { return static_cast<std::int32_t>(call->outputs.size()); }
std::int32_t call_argument(const mixgrad_call* call) { return call->argument; }

std::size_t checked(const mixgrad_call& call, std::int32_t index, std::size_t count, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= count)
    raise(PyExc_IndexError, "op '%s' has %zu %ss; a native implementation asked for %s %d", call.op->name.c_str(),
          count, what, what, static_cast<int>(index));
  return static_cast<std::size_t>(index);
}

mixgrad_array* call_input(mixgrad_call* call, std::int32_t index) {
  return array([&] {
    const std::size_t i = checked(*call, index, call->inputs.size(), "input");
    if (!call->is_saved(i)) raise_not_saved(call->op->name, "input " + std::to_string(i));
    return ValueRef::borrow(call->inputs[i]);
  });
}

mixgrad_array* call_output(mixgrad_call* call, std::int32_t index) {
  return array([&] {
    const std::size_t i = checked(*call, index, call->outputs.size(), "output");
    if (!(call->saved & kSavedOutput)) raise_not_saved(call->op->name, "output " + std::to_string(i));
    return ValueRef::borrow(call->outputs[i]);
  });
}

mixgrad_array* call_upstream(mixgrad_call* call, std::int32_t index) {
  return array([&] { return call->upstream[checked(*call, index, call->upstream.size(), "output")]; });
}

mixgrad_status call_input_view(mixgrad_call* call, std::int32_t index, mixgrad_view* out) {
  return status([&] {
    const std::size_t i = checked(*call, index, call->inputs.size(), "input");
    fill_view(*call->inputs[i], call->is_saved(i), out);
  });
}

mixgrad_status call_output_view(mixgrad_call* call, std::int32_t index, mixgrad_view* out) {
  return status([&] {
    const std::size_t i = checked(*call, index, call->outputs.size(), "output");
    fill_view(*call->outputs[i], (call->saved & kSavedOutput) != 0, out);
  });
}

std::int32_t call_needs_gradient(const mixgrad_call* call, std::int32_t index) {
  return index >= 0 && call->needs_gradient(static_cast<std::size_t>(index));
}

std::int32_t call_is_recorded(const mixgrad_call* call) { return call->recorded; }

mixgrad_status call_attribute(mixgrad_call* call, const char* name, mixgrad_attribute* out) {
  return status([&] {
    std::memset(out, 0, sizeof *out);
    out->name = name;
    PyObject* object = attribute_object(*call, name);
    if (!object) {
      out->kind = MIXGRAD_ATTRIBUTE_MISSING;
    } else if (object == Py_None) {
      out->kind = MIXGRAD_ATTRIBUTE_NONE;
    } else if (PyBool_Check(object) || PyArray_IsScalar(object, Bool)) {
      out->kind = MIXGRAD_ATTRIBUTE_BOOL;
      out->integer = PyObject_IsTrue(object);
    } else if (PyLong_Check(object) || PyArray_IsScalar(object, Integer)) {
      out->kind = MIXGRAD_ATTRIBUTE_INT;
      out->integer = PyNumber_AsSsize_t(object, PyExc_OverflowError);
      if (out->integer == -1 && PyErr_Occurred()) throw PythonError();
      out->real = static_cast<double>(out->integer);
    } else if (PyFloat_Check(object)) {
      out->kind = MIXGRAD_ATTRIBUTE_FLOAT;
      out->real = PyFloat_AS_DOUBLE(object);
    } else if (PyUnicode_Check(object)) {
      out->kind = MIXGRAD_ATTRIBUTE_STRING;
      out->string = PyUnicode_AsUTF8(object);
      if (!out->string) throw PythonError();
    } else if (PyArray_Check(object)) {
      ValueRef value = to_value(object, name);
      if (value->dtype <= Dtype::ulonglong && value->dtype != Dtype::boolean) value = cast(value, Dtype::int64);
      out->kind = MIXGRAD_ATTRIBUTE_ARRAY;
      out->array = reinterpret_cast<mixgrad_array*>(value.get());
      call->kept.push_back(std::move(value));
    } else if (PyTuple_Check(object) || PyList_Check(object)) {
      std::vector<std::int64_t> integers;
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
      for (Py_ssize_t i = 0; i < n; ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(object, i);
        if (!PyLong_Check(item) && !PyArray_IsScalar(item, Integer)) {
          out->kind = MIXGRAD_ATTRIBUTE_OTHER;
          return;
        }
        integers.push_back(PyNumber_AsSsize_t(item, PyExc_OverflowError));
        if (integers.back() == -1 && PyErr_Occurred()) throw PythonError();
      }
      out->kind = MIXGRAD_ATTRIBUTE_INTS;
      out->count = static_cast<std::int32_t>(n);
      call->kept_integers.push_back(std::move(integers));
      out->integers = call->kept_integers.back().data();
    } else {
      out->kind = MIXGRAD_ATTRIBUTE_OTHER;
    }
  });
}

mixgrad_status call_return(mixgrad_call* call, std::int32_t index, mixgrad_array* result) {
  return status([&] {
    if (index < 0 || static_cast<std::size_t>(index) >= call->results.size())
      raise_error(
          "GradientCountError",
          call->entry || !call->outputs.empty()
              ? "the native gradient of op '%s' returned a value number %d, but the op has %zu inputs; return one per input"
              : "the native forward of op '%s' returned an output number %d; it may have %zu",
          call->op->name.c_str(), static_cast<int>(index) + 1, call->results.size());
    call->results[static_cast<std::size_t>(index)] = result ? ValueRef::borrow(value_of_handle(result)) : ValueRef();
  });
}

mixgrad_status kernel_matmul(const mixgrad_array* left, const mixgrad_array* right, mixgrad_array** out) {
  return status([&] {
    const Value &a = *value_of_handle(left), &b = *value_of_handle(right);
    if (a.dtype != b.dtype || !is_differentiable(a.dtype) || a.ndim < 2 || b.ndim < 2) return MIXGRAD_DECLINED;
    if (a.shape[a.ndim - 1] != b.shape[b.ndim - 2]) return MIXGRAD_DECLINED;
    std::int64_t shape[kMaxDims];
    const int ndim = std::max(a.ndim, b.ndim);
    for (int i = 0; i < ndim - 2; ++i) {
      const int ia = i - (ndim - a.ndim), ib = i - (ndim - b.ndim);
      const std::int64_t na = ia >= 0 ? a.shape[ia] : 1, nb = ib >= 0 ? b.shape[ib] : 1;
      if (na != nb && na != 1 && nb != 1) return MIXGRAD_DECLINED;
      shape[i] = na == 1 ? nb : na;
    }
    shape[ndim - 2] = a.shape[a.ndim - 2];
    shape[ndim - 1] = b.shape[b.ndim - 1];
    ValueRef result = make_value(a.dtype, {shape, static_cast<std::size_t>(ndim)});
    const int flags = kernels::matmul(a.view(), b.view(), result->view());
    if (flags) kernels::report_floating_point("matmul", flags);
    *out = handle_of(std::move(result));
    return MIXGRAD_OK;
  });
}

mixgrad_status kernel_reduce(const char* name, const mixgrad_array* handle, std::uint64_t axes, std::int32_t keepdims,
                             mixgrad_array** out) {
  return status([&] {
    static constexpr std::pair<const char*, kernels::Reduction> table[] = {{"add", kernels::Reduction::add},
                                                                           {"multiply", kernels::Reduction::multiply},
                                                                           {"maximum", kernels::Reduction::maximum},
                                                                           {"minimum", kernels::Reduction::minimum}};
    const Value& x = *value_of_handle(handle);
    for (const auto& [known, reduction] : table) {
      if (std::strcmp(known, name) != 0) continue;
      std::int64_t kept[kMaxDims], all[kMaxDims];
      std::size_t n_kept = 0, n_all = 0;
      for (int i = 0; i < x.ndim; ++i) {
        const bool reduced = (axes >> i & 1) != 0;
        if (!reduced) kept[n_kept++] = x.shape[i];
        if (!reduced || keepdims) all[n_all++] = reduced ? 1 : x.shape[i];
      }
      ValueRef result = make_value(x.dtype, {kept, n_kept});
      int flags = 0;
      if (!kernels::reduce(reduction, x.view(), axes, result->view(), true, flags)) return MIXGRAD_DECLINED;
      if (flags) kernels::report_floating_point("reduce", flags);
      if (keepdims) {
        std::int64_t strides[kMaxDims];
        auto stride = static_cast<std::int64_t>(item_size(x.dtype));
        for (std::size_t i = n_all; i-- > 0;) {
          strides[i] = stride;
          stride *= all[i];
        }
        result = make_view(*result, {all, n_all}, {strides, n_all}, 0);
      }
      *out = handle_of(std::move(result));
      return MIXGRAD_OK;
    }
    return MIXGRAD_DECLINED;
  });
}

mixgrad_status kernel_copy(const mixgrad_array* from, mixgrad_array* to, std::int32_t accumulate) {
  return status([&] {
    ValueRef source = ValueRef::borrow(value_of_handle(from));
    const Value& target = *value_of_handle(to);
    if (accumulate)
      kernels::accumulate(cast(source, target.dtype)->view(), target.view());
    else
      kernels::copy(source->view(), target.view());
  });
}

mixgrad_status parallel_for(std::int64_t n, std::int64_t grain, void (*body)(std::int64_t, std::int64_t, void*),
                            void* data) {
  return status([&] { kernels::parallel_for(n, grain, body, data); });
}

void error_set(std::int32_t kind, const char* message) {
  // An exception that is set already is the cause; it must not be lost.
  if (PyErr_Occurred()) return;
  switch (kind) {
    case MIXGRAD_ERROR_VALUE:
      PyErr_SetString(PyExc_ValueError, message);
      break;
    case MIXGRAD_ERROR_TYPE:
      PyErr_SetString(PyExc_TypeError, message);
      break;
    case MIXGRAD_ERROR_MEMORY:
      PyErr_SetString(PyExc_MemoryError, message);
      break;
    case MIXGRAD_ERROR_NOT_SAVED:
      guarded(0, [&]() -> int { raise_error("NotSavedError", "%s", message); });
      break;
    case MIXGRAD_ERROR_GRADIENT_COUNT:
      guarded(0, [&]() -> int { raise_error("GradientCountError", "%s", message); });
      break;
    default:
      PyErr_SetString(PyExc_RuntimeError, message);
  }
}

mixgrad_status register_list(mixgrad_registration* first, const char* module) {
  return status([&] { Registry::instance().add_native(first, module); });
}

}  // namespace

const mixgrad_api* api_table() noexcept {
  static const mixgrad_api table = [] {
    mixgrad_api api{};
    api.size = sizeof(mixgrad_api);
    api.major = MIXGRAD_ABI_MAJOR;
    api.minor = MIXGRAD_ABI_MINOR;
    api.array_retain = array_retain;
    api.array_release = array_release;
    api.array_view = array_view;
    api.array_new = array_new;
    api.array_scalar = array_scalar;
    api.array_number = array_number;
    api.array_strided = array_strided;
    api.array_contiguous = array_contiguous;
    api.array_index = array_index;
    api.array_is_recorded = array_is_recorded;
    api.op_find = op_find;
    api.op_call = op_call;
    api.call_name = call_name;
    api.call_n_inputs = call_n_inputs;
    api.call_n_outputs = call_n_outputs;
    api.call_argument = call_argument;
    api.call_input = call_input;
    api.call_output = call_output;
    api.call_upstream = call_upstream;
    api.call_input_view = call_input_view;
    api.call_output_view = call_output_view;
    api.call_needs_gradient = call_needs_gradient;
    api.call_is_recorded = call_is_recorded;
    api.call_attribute = call_attribute;
    api.call_return = call_return;
    api.kernel_matmul = kernel_matmul;
    api.kernel_reduce = kernel_reduce;
    api.kernel_copy = kernel_copy;
    api.parallel_for = parallel_for;
    api.error_set = error_set;
    api.register_list = register_list;
    return api;
  }();
  return &table;
}

}  // namespace mixgrad::core
