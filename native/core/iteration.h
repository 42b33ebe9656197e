// SPDX-License-Identifier: Apache-2.0
//
// Walking several strided operands of one shape: axes of length one dropped, the rest in the order of the result's
// memory, neighbours joined where every operand allows it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "value.h"

namespace mixgrad::core::kernels {

template <int Operands>
struct Iteration {
  int ndim = 0;
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims][Operands];

  std::int64_t outer_size() const noexcept {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < ndim; ++i) n *= shape[i];
    return n;
  }
  std::int64_t size() const noexcept { return ndim ? outer_size() * shape[ndim - 1] : 1; }

  void add_axis(std::int64_t length) noexcept { shape[ndim++] = length; }

  /// Sorts the axes so that operand `by` walks its memory forwards, largest stride first.
  void sort(int by) noexcept {
    for (int i = 1; i < ndim; ++i)
      for (int j = i; j > 0 && std::llabs(strides[j - 1][by]) < std::llabs(strides[j][by]); --j) swap_axes(j - 1, j);
  }

  void coalesce() noexcept {
    int kept = 0;
    for (int i = 1; i < ndim; ++i) {
      bool joins = true;
      for (int k = 0; k < Operands; ++k) joins = joins && strides[kept][k] == strides[i][k] * shape[i];
      if (joins) {
        shape[kept] *= shape[i];
        for (int k = 0; k < Operands; ++k) strides[kept][k] = strides[i][k];
      } else {
        ++kept;
        shape[kept] = shape[i];
        for (int k = 0; k < Operands; ++k) strides[kept][k] = strides[i][k];
      }
    }
    if (ndim) ndim = kept + 1;
  }

  void swap_axes(int a, int b) noexcept {
    std::swap(shape[a], shape[b]);
    for (int k = 0; k < Operands; ++k) std::swap(strides[a][k], strides[b][k]);
  }

  /// Calls inner(pointers, n, strides) for outer positions [begin, end).
  template <class Inner>
  void run(char* const* start, std::int64_t begin, std::int64_t end, Inner&& inner) const {
    char* pointers[Operands];
    std::int64_t index[kMaxDims] = {};
    for (int k = 0; k < Operands; ++k) pointers[k] = start[k];
    std::int64_t rest = begin;
    for (int i = ndim - 2; i >= 0; --i) {
      index[i] = rest % shape[i];
      rest /= shape[i];
      for (int k = 0; k < Operands; ++k) pointers[k] += index[i] * strides[i][k];
    }
    const std::int64_t none[Operands] = {};
    const std::int64_t n = ndim ? shape[ndim - 1] : 1;
    const std::int64_t* inner_strides = ndim ? strides[ndim - 1] : none;
    for (std::int64_t at = begin; at < end; ++at) {
      inner(pointers, n, inner_strides);
      for (int i = ndim - 2; i >= 0; --i) {
        ++index[i];
        for (int k = 0; k < Operands; ++k) pointers[k] += strides[i][k];
        if (index[i] < shape[i]) break;
        for (int k = 0; k < Operands; ++k) pointers[k] -= shape[i] * strides[i][k];
        index[i] = 0;
      }
    }
  }
};

/// The stride of `view` along axis `axis` of a shape with `ndim` axes that it broadcasts to.
inline std::int64_t broadcast_stride(const View& view, int axis, int ndim) noexcept {
  const int own = axis - (ndim - view.ndim);
  return own < 0 || view.shape[own] == 1 ? 0 : view.strides[own];
}

}  // namespace mixgrad::core::kernels
