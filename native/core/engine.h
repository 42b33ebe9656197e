// SPDX-License-Identifier: Apache-2.0
//
// The engine: walks the tape backwards and does for every gradient what is tedious. It knows the contract of a
// gradient, and no op but the few that it records itself in higher-order passes (add, sum, reshape, broadcast_to,
// astype, real).
#pragma once

#include <span>

#include "dispatch.h"

namespace mixgrad::core {

/// What a backward pass is asked for.
struct Backward {
  Tape& tape;
  int bit;  ///< of the window
  Position start, end;
  bool greedy;  ///< sources may lie before the window
  bool keep;    ///< persistent: entries keep what they saved
  std::span<const ValueRef> targets;
  std::span<const ValueRef> upstream;
  std::span<const ValueRef> sources;
};

/// The gradients of the sources (null: not connected); `recorded` tells whether the pass was, by another window.
std::vector<ValueRef> run_backward(const Backward& request, bool& recorded);

/// g of a target: of its shape and dtype.
ValueRef fit_upstream(ValueRef g, const Value& target, Tape& tape);
/// Gives g the output's shape and dtype when it is a number or broadcasts; throws when it does not fit.
void prepare_upstream(Call& call);
/// Checks what a gradient returned against the contract, sums broadcast axes and casts to the inputs' dtypes.
void finish_results(Call& call, const Choice& choice);

}  // namespace mixgrad::core
