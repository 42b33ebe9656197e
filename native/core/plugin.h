// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins: shared libraries that bring native implementations, reached through the C interface only.
#pragma once

#include <string>

namespace mixgrad::core {

/// Loads the library and registers what it brings, under the name of `module` in messages; loading it again does
/// nothing unless `replace`. Throws PluginError (an ImportError) when it is no plug-in or was built for another
/// interface.
void load_plugin(const std::string& path, const std::string& module, bool replace);

}  // namespace mixgrad::core
