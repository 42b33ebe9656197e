// SPDX-License-Identifier: Apache-2.0
//
// How the forwards of this folder walk memory.
#pragma once

#include "mixgrad/mixgrad.hpp"

namespace mixgrad {
namespace {

/// Elements below which a second thread costs more than it brings.
constexpr std::int64_t kGrain = 1 << 16;

/// N operands broadcast to one shape. Axes that can be walked as one are joined, so that an innermost run is long.
template <std::size_t N>
class Runs {
 public:
  Runs(const Shape& shape, const std::array<mixgrad_view, N>& operands) : ndim_(0) {
    for (std::size_t k = 0; k < N; ++k) data_[k] = static_cast<char*>(operands[k].data);
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      std::int64_t strides[N];
      for (std::size_t k = 0; k < N; ++k) {
        const auto ndim = static_cast<std::size_t>(operands[k].ndim);
        const std::size_t missing = shape.size() - ndim;
        const bool moves = axis >= missing && operands[k].shape[axis - missing] != 1;
        strides[k] = moves ? operands[k].strides[axis - missing] : 0;
      }
      add(shape[axis], strides);
    }
    if (ndim_ == 0) {
      const std::int64_t none[N] = {};
      add(1, none);
    }
  }

  /// Calls body(pointers, strides, n) for each run.
  template <class Body>
  void each(Body&& body) const {
    for (std::size_t axis = 0; axis < ndim_; ++axis)
      if (shape_[axis] == 0) return;
    std::array<char*, N> at = data_;
    std::int64_t index[MIXGRAD_MAX_NDIM] = {};
    const std::size_t last = ndim_ - 1;
    for (;;) {
      body(at, strides_[last], shape_[last]);
      std::size_t axis = last;
      for (;;) {
        if (axis == 0) return;
        --axis;
        for (std::size_t k = 0; k < N; ++k) at[k] += strides_[axis][k];
        if (++index[axis] < shape_[axis]) break;
        for (std::size_t k = 0; k < N; ++k) at[k] -= strides_[axis][k] * shape_[axis];
        index[axis] = 0;
      }
    }
  }

 private:
  void add(std::int64_t n, const std::int64_t* strides) {
    bool joins = ndim_ > 0;
    for (std::size_t k = 0; k < N && joins; ++k) joins = strides_[ndim_ - 1][k] == strides[k] * n;
    if (!joins) shape_[ndim_++] = 1;
    shape_[ndim_ - 1] *= n;
    for (std::size_t k = 0; k < N; ++k) strides_[ndim_ - 1][k] = strides[k];
  }

  std::array<char*, N> data_;
  std::size_t ndim_;
  std::int64_t shape_[MIXGRAD_MAX_NDIM];
  std::int64_t strides_[MIXGRAD_MAX_NDIM][N];
};

}  // namespace
}  // namespace mixgrad
