// SPDX-License-Identifier: Apache-2.0
//
// What an author of gradients in C++ includes: header-only, C++20, no Python.
#ifndef MIXGRAD_MIXGRAD_HPP
#define MIXGRAD_MIXGRAD_HPP

#include "mixgrad/array.hpp"
#include "mixgrad/call.hpp"
#include "mixgrad/elementwise.hpp"
#include "mixgrad/kernel.hpp"
#include "mixgrad/plugin.hpp"
#include "mixgrad/scalar.hpp"

#endif  // MIXGRAD_MIXGRAD_HPP
