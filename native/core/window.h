// SPDX-License-Identifier: Apache-2.0
//
// A window on the tape, as a Python object that the garbage collector sees: what mixgrad.Tape and the transforms hold.
#pragma once

#include "python.h"

namespace mixgrad::core {

void init_window(PyObject* module);

}  // namespace mixgrad::core
