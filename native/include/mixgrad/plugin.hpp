// SPDX-License-Identifier: Apache-2.0
//
// What a plug-in exports: defined here once for all of its sources, so that an author writes gradients and nothing
// else.
#ifndef MIXGRAD_PLUGIN_HPP
#define MIXGRAD_PLUGIN_HPP

#include "mixgrad/call.hpp"

// The core has its own door: native ops that are compiled into it are not a plug-in.
#ifndef MIXGRAD_CORE

namespace mixgrad {
inline namespace [[gnu::visibility("hidden")]] v1 {
namespace detail {

inline mixgrad_registration* start(const mixgrad_api* table) {
  set_api(table);
  return registrations();
}

}  // namespace detail
}  // namespace v1
}  // namespace mixgrad

// What is said to the core; tests pretend to be from another time.
#ifndef MIXGRAD_PLUGIN_MINOR
#define MIXGRAD_PLUGIN_MINOR MIXGRAD_ABI_MINOR
#endif
#ifndef MIXGRAD_PLUGIN_MAJOR
#define MIXGRAD_PLUGIN_MAJOR MIXGRAD_ABI_MAJOR
#endif

// Weak: every source of the plug-in brings it (an inline variable would be shared between plug-ins). Used: nothing in
// the plug-in refers to it.
extern "C" {
[[gnu::weak, gnu::used, gnu::visibility("default")]] mixgrad_plugin mixgrad_plugin_entry = {
    sizeof(mixgrad_plugin), MIXGRAD_PLUGIN_MAJOR, MIXGRAD_PLUGIN_MINOR, __VERSION__, &::mixgrad::detail::start};
}

#endif  // MIXGRAD_CORE

#endif  // MIXGRAD_PLUGIN_HPP
