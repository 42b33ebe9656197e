// SPDX-License-Identifier: Apache-2.0
//
// The C table that native implementations use (include/mixgrad/api.h), filled by the core.
#pragma once

#include "mixgrad/api.h"

namespace mixgrad::core {

const mixgrad_api* api_table() noexcept;

}  // namespace mixgrad::core
