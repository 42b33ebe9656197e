// SPDX-License-Identifier: Apache-2.0
//
// Loops over raw memory: NumPy's own inner loops called straight on buffers, and the few that NumPy has none for. The
// only layer that knows how numbers are computed; it knows neither values, tape nor registry.
#pragma once

#include <cstdint>
#include <span>

#include "mixgrad/api.h"
#include "python.h"
#include "value.h"

namespace mixgrad::core::kernels {

/// One inner loop of a ufunc, or of ours (same signature).
struct Loop {
  mixgrad_loop function = nullptr;
  void* data = nullptr;
  Dtype output = Dtype::other;
  explicit operator bool() const noexcept { return function != nullptr; }
};

/// The loops of a NumPy ufunc whose inputs all have one differentiable dtype, found by type tuple (never by index). A
/// loop that is missing, or that fails the self-check against NumPy's own call at its first use, is empty: the caller
/// calls NumPy.
class Ufunc {
 public:
  Ufunc() = default;
  explicit Ufunc(PyObject* ufunc);
  int n_inputs() const noexcept { return n_inputs_; }
  const char* name() const noexcept { return name_; }
  const Loop& loop(Dtype inputs) const {
    const int index = dtype_index(inputs);
    if (!checked_[index]) [[unlikely]]
      check(index);
    return loops_[index];
  }
  explicit operator bool() const noexcept { return n_inputs_ != 0; }

 private:
  /// Compares the loop with NumPy's own call on a few numbers, the first time it is asked for.
  void check(int index) const;

  PyObject* ufunc_ = nullptr;  ///< kept alive by the op
  int n_inputs_ = 0;
  const char* name_ = "";
  mutable Loop loops_[4];
  mutable bool checked_[4] = {};
};

/// Floating-point status flags (FE_DIVBYZERO and kin), read from MXCSR directly; `clear` only when some are set.
int floating_point_flags() noexcept;
void clear_floating_point_flags() noexcept;
/// Reports flags as NumPy's own calls do, by np.errstate. Throws PythonError when that raises.
void report_floating_point(const char* name, int flags);

/// out = loop(inputs...), with broadcasting of the inputs to out's shape: coalesces axes, releases the GIL and uses
/// several threads above a size threshold. Every input has the dtype that the loop wants; out does not overlap an input
/// unless identically. Returns the floating-point flags that were raised.
int elementwise(const Loop& loop, std::span<const View> inputs, const View& out) noexcept;

/// Matrix product of (..., n, k) and (..., k, m), batch axes broadcast, into the contiguous `out`: BLAS through
/// np.matmul's inner loop, operands that BLAS cannot take packed first, an inner dimension of 1 as a multiplication.
/// All of one dtype. 1-d operands are the caller's to expand. Returns flags; throws std::bad_alloc.
int matmul(const View& a, const View& b, const View& out);

enum class Reduction { add, multiply, maximum, minimum };
/// Reduces the axes whose bit is set into the contiguous `out` (reduced axes left out). `exact`: refuse (return false)
/// where the order of the operations could differ from NumPy's own, so that a forward is bit-equal. Empty reductions of
/// maximum and minimum are refused. Flags raised are added to `flags`.
bool reduce(Reduction, const View& x, std::uint64_t axes, const View& out, bool exact, int& flags);

/// Copies with casting (complex to real takes the real part) and broadcasting of `from` to `to`'s shape.
void copy(const View& from, const View& to) noexcept;
/// to += from, same dtype, with broadcasting.
void accumulate(const View& from, const View& to) noexcept;
void fill_zero(const View& to) noexcept;

/// Runs body(begin, end, data) over [0, n), on several threads and without the GIL when n > grain.
void parallel_for(std::int64_t n, std::int64_t grain, void (*body)(std::int64_t, std::int64_t, void*), void* data);
int thread_count() noexcept;
void set_thread_count(int n) noexcept;

/// Looks up what the kernels need of NumPy. Called once at import. Throws PythonError.
void initialise();

}  // namespace mixgrad::core::kernels
