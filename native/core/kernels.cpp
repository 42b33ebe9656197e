// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "iteration.h"

namespace mixgrad::core::kernels {

// --- floating-point flags -------------------------------------------------------------------------------------------

namespace {
constexpr int kFlags = FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID;
}  // namespace

#if defined(__SSE2__)
// MXCSR has the bits of <cfenv>; reading it takes a tenth of what fetestexcept and feclearexcept do.
int floating_point_flags() noexcept { return static_cast<int>(_mm_getcsr()) & kFlags; }
void clear_floating_point_flags() noexcept {
  const unsigned status = _mm_getcsr();
  if (status & static_cast<unsigned>(kFlags)) _mm_setcsr(status & ~static_cast<unsigned>(kFlags));
}
#else
int floating_point_flags() noexcept { return std::fetestexcept(kFlags); }
void clear_floating_point_flags() noexcept { std::feclearexcept(kFlags); }
#endif

void report_floating_point(const char* name, int flags) {
  int numpy_flags = 0;
  if (flags & FE_DIVBYZERO) numpy_flags |= NPY_FPE_DIVIDEBYZERO;
  if (flags & FE_OVERFLOW) numpy_flags |= NPY_FPE_OVERFLOW;
  if (flags & FE_UNDERFLOW) numpy_flags |= NPY_FPE_UNDERFLOW;
  if (flags & FE_INVALID) numpy_flags |= NPY_FPE_INVALID;
  clear_floating_point_flags();
  if (numpy_flags && PyUFunc_GiveFloatingpointErrors(name, numpy_flags) < 0) throw PythonError();
}

// --- NumPy's loops --------------------------------------------------------------------------------------------------

namespace {

constexpr Dtype kDtypes[4] = {Dtype::float32, Dtype::float64, Dtype::complex64, Dtype::complex128};

/// The loop of a ufunc for these type numbers; empty when there is none.
Loop find_loop(const PyUFuncObject& ufunc, std::span<const int> inputs) {
  for (int t = 0; t < ufunc.ntypes; ++t) {
    const char* types = ufunc.types + t * (ufunc.nin + ufunc.nout);
    bool found = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) found = found && types[i] == inputs[i];
    if (!found || !ufunc.functions[t]) continue;
    Loop loop;
    loop.function = reinterpret_cast<mixgrad_loop>(ufunc.functions[t]);
    loop.data = ufunc.data ? const_cast<void*>(static_cast<const void*>(ufunc.data[t])) : nullptr;
    const Ref descr = Ref::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(types[ufunc.nin])));
    const int output = reinterpret_cast<PyArray_Descr*>(descr.get())->type_num;
    loop.output = output <= static_cast<int>(Dtype::complex128) && output != NPY_LONGDOUBLE ? static_cast<Dtype>(output)
                                                                                            : Dtype::other;
    return loop.output == Dtype::other ? Loop{} : loop;
  }
  return {};
}

PyUFuncObject& numpy_ufunc(const char* name, Ref& keep) {
  const Ref numpy = Ref::steal(PyImport_ImportModule("numpy"));
  keep = Ref::steal(PyObject_GetAttrString(numpy.get(), name));
  return *reinterpret_cast<PyUFuncObject*>(keep.get());
}

Ref new_array(Dtype dtype, npy_intp n) { return Ref::steal(PyArray_SimpleNew(1, &n, static_cast<int>(dtype))); }

}  // namespace

Ufunc::Ufunc(PyObject* object) {
  const auto& ufunc = *reinterpret_cast<PyUFuncObject*>(object);
  ufunc_ = object;
  name_ = ufunc.name;
  if (ufunc.core_enabled || ufunc.nout != 1 || ufunc.nin > 3) {
    n_inputs_ = 0;
    return;
  }
  n_inputs_ = ufunc.nin;
  for (int d = 0; d < 4; ++d) {
    int types[3];
    for (int i = 0; i < ufunc.nin; ++i) types[i] = static_cast<int>(kDtypes[d]);
    loops_[d] = find_loop(ufunc, {types, static_cast<std::size_t>(ufunc.nin)});
  }
}

void Ufunc::check(int index) const {
  checked_[index] = true;
  Loop& loop = loops_[index];
  if (!loop) return;
  constexpr npy_intp n = 5;
  const Dtype dtype = kDtypes[index];
  const Ref numpy = Ref::steal(PyImport_ImportModule("numpy"));
  const Ref errstate = Ref::steal(PyObject_GetAttrString(numpy.get(), "errstate"));
  const Ref none = Ref::steal(PyTuple_New(0));
  const Ref ignore = Ref::steal(Py_BuildValue("{s:s}", "all", "ignore"));
  const Ref scope = Ref::steal(PyObject_Call(errstate.get(), none.get(), ignore.get()));
  Ref::steal(PyObject_CallMethod(scope.get(), "__enter__", nullptr));
  const Ref arguments = Ref::steal(PyTuple_New(n_inputs_));
  char* pointers[4];
  const auto item = static_cast<std::int64_t>(item_size(dtype));
  std::int64_t strides[4] = {item, item, item, static_cast<std::int64_t>(item_size(loop.output))};
  for (int i = 0; i < n_inputs_; ++i) {
    Ref array = new_array(dtype, n);
    auto* data = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(array.get()));
    const bool single = dtype == Dtype::float32 || dtype == Dtype::complex64;
    const std::size_t parts = static_cast<std::size_t>(n) * (is_complex(dtype) ? 2 : 1);
    for (std::size_t k = 0; k < parts; ++k) {
      const double number = 0.3 + 0.11 * static_cast<double>(k) + 0.07 * i;
      const auto narrow = static_cast<float>(number);
      if (single)
        std::memcpy(data + k * sizeof(float), &narrow, sizeof narrow);
      else
        std::memcpy(data + k * sizeof(double), &number, sizeof number);
    }
    pointers[i] = data;
    PyTuple_SET_ITEM(arguments.get(), i, array.release());
  }
  const Ref expected = Ref::steal_or_null(PyObject_Call(ufunc_, arguments.get(), nullptr));
  if (!expected) PyErr_Clear();
  const Ref result = new_array(loop.output, n);
  auto* mine = reinterpret_cast<PyArrayObject*>(result.get());
  pointers[n_inputs_] = PyArray_BYTES(mine);
  strides[n_inputs_] = static_cast<std::int64_t>(item_size(loop.output));
  const std::int64_t count = n;
  loop.function(pointers, &count, strides, loop.data);
  clear_floating_point_flags();
  const auto* theirs = reinterpret_cast<PyArrayObject*>(expected.get());
  const bool same = expected && PyArray_Check(expected.get()) && PyArray_TYPE(theirs) == PyArray_TYPE(mine) &&
                    std::memcmp(PyArray_BYTES(mine), PyArray_DATA(const_cast<PyArrayObject*>(theirs)),
                                static_cast<std::size_t>(PyArray_NBYTES(mine))) == 0;
  if (!same) loop = {};
  Ref::steal(PyObject_CallMethod(scope.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
}

// --- element-wise ---------------------------------------------------------------------------------------------------

namespace {

constexpr int kMostOperands = MIXGRAD_MAX_ELEMENTWISE_INPUTS + 3;
constexpr std::int64_t kReleaseGil = 1 << 15;
constexpr std::int64_t kThreads = 1 << 17;

struct Job {
  const Loop* loop;
  const Iteration<kMostOperands>* iteration;
  char* const* start;
  std::atomic<int>* flags;

  static void run(std::int64_t begin, std::int64_t end, void* data) {
    const Job& job = *static_cast<const Job*>(data);
    const Iteration<kMostOperands>& it = *job.iteration;
    clear_floating_point_flags();
    if (it.ndim <= 1) {
      char* pointers[kMostOperands];
      for (int k = 0; k < kMostOperands; ++k) pointers[k] = job.start[k] + begin * it.strides[0][k];
      const std::int64_t n = end - begin;
      job.loop->function(pointers, &n, it.strides[0], job.loop->data);
    } else {
      it.run(job.start, begin, end, [&](char** pointers, std::int64_t n, const std::int64_t* strides) {
        // A loop may move the pointers it is given.
        char* own[kMostOperands];
        std::memcpy(own, pointers, sizeof own);
        job.loop->function(own, &n, strides, job.loop->data);
      });
    }
    job.flags->fetch_or(floating_point_flags(), std::memory_order_relaxed);
  }
};

}  // namespace

namespace {

/// One call of the loop, for a result of at most one axis.
void run_one_axis(const Loop& loop, std::span<const View> inputs, const View& out, std::int64_t n) noexcept {
  const std::size_t n_inputs = inputs.size();
  char* pointers[kMostOperands];
  std::int64_t strides[kMostOperands];
  for (std::size_t i = 0; i < n_inputs; ++i) {
    pointers[i] = inputs[i].data;
    // The strides that NumPy itself would give: a loop may take another path, to another last bit, for others.
    if (inputs[i].ndim == 0)
      strides[i] = out.ndim == 0 ? static_cast<std::int64_t>(item_size(inputs[i].dtype)) : 0;
    else
      strides[i] = inputs[i].shape[0] == n ? inputs[i].strides[0] : 0;
  }
  pointers[n_inputs] = out.data;
  strides[n_inputs] = out.ndim ? out.strides[0] : static_cast<std::int64_t>(item_size(out.dtype));
  loop.function(pointers, &n, strides, loop.data);
}

/// Flags are set after a loop that did not begin by clearing them: whether it raised them shows when it runs again.
[[gnu::noinline]] int run_again(const Loop& loop, std::span<const View> inputs, const View& out,
                                std::int64_t n) noexcept {
  int flags = floating_point_flags();
  clear_floating_point_flags();
  for (const View& input : inputs)
    if (input.data == out.data) return flags;
  run_one_axis(loop, inputs, out, n);
  flags = floating_point_flags();
  if (flags) clear_floating_point_flags();
  return flags;
}

int run_many_axes(const Loop& loop, std::span<const View> inputs, const View& out) noexcept;

}  // namespace

int elementwise(const Loop& loop, std::span<const View> inputs, const View& out) noexcept {
  if (out.ndim <= 1) [[likely]] {
    const std::int64_t n = out.ndim ? out.shape[0] : 1;
    if (n == 0) return 0;
    if (n < kReleaseGil) [[likely]] {
      run_one_axis(loop, inputs, out, n);
      return floating_point_flags() ? run_again(loop, inputs, out, n) : 0;
    }
  }
  return run_many_axes(loop, inputs, out);
}

namespace {

int run_many_axes(const Loop& loop, std::span<const View> inputs, const View& out) noexcept {
  const std::size_t n_inputs = inputs.size();
  Iteration<kMostOperands> it;
  const int last = static_cast<int>(n_inputs);
  for (int axis = 0; axis < out.ndim; ++axis) {
    if (out.shape[axis] == 0) return 0;
    if (out.shape[axis] == 1) continue;
    it.add_axis(out.shape[axis]);
    std::int64_t* strides = it.strides[it.ndim - 1];
    for (std::size_t i = 0; i < n_inputs; ++i) strides[i] = broadcast_stride(inputs[i], axis, out.ndim);
    strides[last] = out.strides[axis];
    for (int k = last + 1; k < kMostOperands; ++k) strides[k] = 0;
  }
  if (it.ndim == 0) {
    it.add_axis(1);
    for (int k = 0; k < kMostOperands; ++k) it.strides[0][k] = static_cast<std::int64_t>(item_size(out.dtype));
  }
  it.sort(last);
  it.coalesce();
  char* start[kMostOperands] = {};
  for (std::size_t i = 0; i < n_inputs; ++i) start[i] = inputs[i].data;
  start[last] = out.data;
  std::atomic<int> flags{0};
  Job job{&loop, &it, start, &flags};
  const std::int64_t inner = it.shape[it.ndim - 1];
  const std::int64_t total = it.size();
  const std::int64_t units = it.ndim == 1 ? inner : it.outer_size();
  if (total < kReleaseGil) {
    Job::run(0, units, &job);
  } else if (total < kThreads) {
    const ReleasedGil released;
    Job::run(0, units, &job);
  } else {
    // In units of the split axis: pieces of kThreads / 2 elements and more.
    parallel_for(units, it.ndim == 1 ? kThreads / 2 : std::max<std::int64_t>(1, kThreads / 2 / inner), &Job::run, &job);
  }
  clear_floating_point_flags();
  return flags.load(std::memory_order_relaxed);
}

}  // namespace

// --- reductions -----------------------------------------------------------------------------------------------------

namespace {

constexpr int kReductions = 4;
constexpr const char* kReductionNames[kReductions] = {"add", "multiply", "maximum", "minimum"};

struct NumpyLoops {
  Loop reductions[kReductions][4];
  Loop matmul[4];
  bool negative_zero = false;  ///< the sum of nothing is -0.0
  bool whole_sums = false;     ///< NumPy 2.3 and newer sum contiguous memory in one call, not in blocks
};
NumpyLoops numpy;

bool sums_to_negative_zero(PyUFuncObject& add) {
  const Ref array = new_array(Dtype::float64, 1);
  const double minus_zero = -0.0;
  std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.get())), &minus_zero, sizeof minus_zero);
  const Ref sum = Ref::steal(PyObject_CallMethod(reinterpret_cast<PyObject*>(&add), "reduce", "O", array.get()));
  return std::signbit(PyFloat_AsDouble(sum.get()));
}

template <class T>
void fill(const View& out, T value) noexcept {
  const std::int64_t n = out.size();
  auto* data = reinterpret_cast<T*>(out.data);
  for (std::int64_t i = 0; i < n; ++i) data[i] = value;
}

void fill_identity(const View& out, double real) noexcept {
  switch (out.dtype) {
    case Dtype::float32:
      return fill(out, static_cast<float>(real));
    case Dtype::float64:
      return fill(out, real);
    case Dtype::complex64:
      return fill(out,
                  std::pair<float, float>(static_cast<float>(real), real == 1.0 ? 0.0f : static_cast<float>(real)));
    default:
      return fill(out, std::pair<double, double>(real, real == 1.0 ? 0.0 : real));
  }
}

}  // namespace

bool reduce(Reduction which, const View& x, std::uint64_t axes, const View& out, bool exact, int& flags) {
  if (!is_differentiable(x.dtype) || x.dtype != out.dtype) return false;
  const Loop& loop = numpy.reductions[static_cast<int>(which)][dtype_index(x.dtype)];
  if (!loop) return false;
  if (exact && !x.contiguous()) return false;
  const bool selects = which == Reduction::maximum || which == Reduction::minimum;
  Iteration<2> it;  // x, out
  std::int64_t stride = static_cast<std::int64_t>(item_size(out.dtype));
  std::int64_t out_strides[kMaxDims];
  for (int i = x.ndim; i-- > 0;) {
    const bool reduced = (axes >> i & 1) != 0;
    out_strides[i] = reduced ? 0 : stride;
    if (!reduced) stride *= x.shape[i];
  }
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 0 && selects) return false;
    if (x.shape[i] == 1) continue;
    it.add_axis(x.shape[i]);
    it.strides[it.ndim - 1][0] = x.strides[i];
    it.strides[it.ndim - 1][1] = out_strides[i];
  }
  if (which == Reduction::add)
    fill_identity(out, numpy.negative_zero ? -0.0 : 0.0);
  else if (which == Reduction::multiply)
    fill_identity(out, 1.0);
  if (x.size() == 0) return true;
  if (selects) {
    // The first element of each; that it is met again changes nothing.
    std::int64_t shape[kMaxDims], strides[kMaxDims];
    int n = 0;
    for (int i = 0; i < x.ndim; ++i)
      if (!(axes >> i & 1)) {
        shape[n] = x.shape[i];
        strides[n++] = x.strides[i];
      }
    copy({x.data, x.dtype, n, shape, strides}, out);
  }
  if (it.ndim == 0) {
    it.add_axis(1);
    it.strides[0][0] = it.strides[0][1] = 0;
  }
  if (!exact) it.sort(0);
  it.coalesce();
  const std::int64_t inner = it.shape[it.ndim - 1];
  if (exact && !numpy.whole_sums && it.strides[it.ndim - 1][1] == 0 && inner > 8192) return false;
  clear_floating_point_flags();
  const auto body = [&] {
    char* start[2] = {x.data, out.data};
    it.run(start, 0, it.outer_size(), [&](char** pointers, std::int64_t n, const std::int64_t* strides) {
      char* arguments[3] = {pointers[1], pointers[0], pointers[1]};
      const std::int64_t steps[3] = {strides[1], strides[0], strides[1]};
      loop.function(arguments, &n, steps, loop.data);
    });
  };
  if (it.size() < kReleaseGil) {
    body();
  } else {
    const ReleasedGil released;
    body();
  }
  flags |= floating_point_flags();
  clear_floating_point_flags();
  return true;
}

// --- matrix products ------------------------------------------------------------------------------------------------

namespace {

/// The last two axes of an operand.
struct Matrix {
  char* data;
  std::int64_t rows, columns, row_stride, column_stride;
};

/// BLAS takes a matrix whose one axis is dense and whose other steps over at least that many elements.
bool blas_takes(std::int64_t outer_stride, std::int64_t inner_stride, std::int64_t inner, std::int64_t item) noexcept {
  return inner_stride == item && outer_stride % item == 0 && outer_stride / item >= std::max<std::int64_t>(inner, 1);
}

/// Gives axes of length one strides that BLAS takes.
void normalise(Matrix& m, std::int64_t item) noexcept {
  if (m.rows == 1 && m.columns == 1) {
    m.column_stride = item;
    m.row_stride = item;
  } else if (m.rows == 1) {
    if (m.column_stride == item) m.row_stride = item * m.columns;
  } else if (m.columns == 1) {
    if (m.row_stride == item) m.column_stride = item * m.rows;
  }
}

bool blas_takes(const Matrix& m, std::int64_t item) noexcept {
  return blas_takes(m.row_stride, m.column_stride, m.columns, item) ||
         blas_takes(m.column_stride, m.row_stride, m.rows, item);
}

template <class T>
void outer_product(const Matrix& a, const Matrix& b, char* out) noexcept {
  auto* result = reinterpret_cast<T*>(out);
  const std::int64_t m = a.rows, p = b.columns;
  const bool dense = b.column_stride == static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < m; ++i, result += p) {
    const T left = *reinterpret_cast<const T*>(a.data + i * a.row_stride);
    if (dense) {
      const T* right = reinterpret_cast<const T*>(b.data);
      for (std::int64_t j = 0; j < p; ++j) result[j] = left * right[j];
    } else {
      for (std::int64_t j = 0; j < p; ++j) result[j] = left * *reinterpret_cast<const T*>(b.data + j * b.column_stride);
    }
  }
}

/// A block of memory from the pool.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes), block_(bytes ? pool::allocate(bytes) : nullptr) {}
  ~Scratch() {
    if (block_) pool::release(block_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* data() const noexcept { return static_cast<char*>(block_); }

 private:
  std::size_t bytes_;
  void* block_;
};

void pack(Matrix& m, Dtype dtype, char* into) noexcept {
  const std::int64_t item = static_cast<std::int64_t>(item_size(dtype));
  const std::int64_t shape[2] = {m.rows, m.columns};
  const std::int64_t from[2] = {m.row_stride, m.column_stride}, to[2] = {m.columns * item, item};
  copy({m.data, dtype, 2, shape, from}, {into, dtype, 2, shape, to});
  m.data = into;
  m.row_stride = to[0];
  m.column_stride = to[1];
}

}  // namespace

int matmul(const View& a, const View& b, const View& out) {
  const Dtype dtype = out.dtype;
  const auto item = static_cast<std::int64_t>(item_size(dtype));
  const std::int64_t m = a.shape[a.ndim - 2], k = a.shape[a.ndim - 1], p = b.shape[b.ndim - 1];
  if (out.size() == 0) return 0;
  if (k == 0) {
    fill_zero(out);
    return 0;
  }
  Iteration<3> batch;
  for (int i = 0; i < out.ndim - 2; ++i) {
    if (out.shape[i] == 1) continue;
    batch.add_axis(out.shape[i]);
    batch.strides[batch.ndim - 1][0] = broadcast_stride(a, i, out.ndim);
    batch.strides[batch.ndim - 1][1] = broadcast_stride(b, i, out.ndim);
    batch.strides[batch.ndim - 1][2] = out.strides[i];
  }
  batch.coalesce();
  Matrix left{a.data, m, k, a.strides[a.ndim - 2], a.strides[a.ndim - 1]};
  Matrix right{b.data, k, p, b.strides[b.ndim - 2], b.strides[b.ndim - 1]};
  normalise(left, item);
  normalise(right, item);
  const bool real = !is_complex(dtype);
  const bool outer = k == 1 && real;
  const bool pack_left = !outer && !blas_takes(left, item), pack_right = !outer && !blas_takes(right, item);
  const Scratch left_space(pack_left ? static_cast<std::size_t>(m * k * item) : 0);
  const Scratch right_space(pack_right ? static_cast<std::size_t>(k * p * item) : 0);
  const Loop& loop = numpy.matmul[dtype_index(dtype)];
  const std::int64_t dimensions[4] = {1, m, k, p};
  const auto product = [&](char* const* pointers) {
    Matrix x = left, y = right;
    x.data = pointers[0];
    y.data = pointers[1];
    if (outer) {
      if (dtype == Dtype::float32)
        outer_product<float>(x, y, pointers[2]);
      else
        outer_product<double>(x, y, pointers[2]);
      return;
    }
    if (pack_left) pack(x, dtype, left_space.data());
    if (pack_right) pack(y, dtype, right_space.data());
    char* arguments[3] = {x.data, y.data, pointers[2]};
    const std::int64_t steps[9] = {0,        0,   0, x.row_stride, x.column_stride, y.row_stride, y.column_stride,
                                   p * item, item};
    loop.function(arguments, dimensions, steps, loop.data);
  };
  const auto all = [&] {
    char* start[3] = {a.data, b.data, out.data};
    const std::int64_t n = batch.ndim ? batch.shape[batch.ndim - 1] : 1;
    batch.run(start, 0, batch.outer_size(), [&](char** pointers, std::int64_t, const std::int64_t* strides) {
      char* at[3] = {pointers[0], pointers[1], pointers[2]};
      for (std::int64_t i = 0; i < n; ++i) {
        product(at);
        for (int q = 0; q < 3; ++q) at[q] += strides[q];
      }
    });
  };
  clear_floating_point_flags();
  if (out.size() * k < kReleaseGil) {
    all();
  } else {
    const ReleasedGil released;
    all();
  }
  const int flags = floating_point_flags();
  clear_floating_point_flags();
  return flags;
}

// --- start-up -------------------------------------------------------------------------------------------------------

void initialise() {
  Ref keep;
  for (int d = 0; d < 4; ++d) {
    const int pair[2] = {static_cast<int>(kDtypes[d]), static_cast<int>(kDtypes[d])};
    for (int r = 0; r < kReductions; ++r)
      numpy.reductions[r][d] = find_loop(numpy_ufunc(kReductionNames[r], keep), pair);
    numpy.matmul[d] = find_loop(numpy_ufunc("matmul", keep), pair);
    if (!numpy.matmul[d]) raise(PyExc_ImportError, "this NumPy has no matmul loop that mixgrad can call");
  }
  numpy.negative_zero = sums_to_negative_zero(numpy_ufunc("add", keep));
  const Ref module = Ref::steal(PyImport_ImportModule("numpy"));
  const Ref version = Ref::steal(PyObject_GetAttrString(module.get(), "__version__"));
  int major = 0, minor = 0;
  if (std::sscanf(PyUnicode_AsUTF8(version.get()), "%d.%d", &major, &minor) == 2)
    numpy.whole_sums = major > 2 || (major == 2 && minor >= 3);
}

}  // namespace mixgrad::core::kernels
