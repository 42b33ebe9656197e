// SPDX-License-Identifier: Apache-2.0
//
// mixgrad.Op: an op as a Python callable. It binds arguments, and lets the dispatcher run it.
#pragma once

#include "dispatch.h"

namespace mixgrad::core {

void init_op(PyObject* module);
/// The Python face of a registered op; new reference.
Ref make_op_object(Op& op);
bool is_op(PyObject* object) noexcept;
Op& op_of(PyObject* object);

}  // namespace mixgrad::core
