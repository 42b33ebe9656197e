// SPDX-License-Identifier: Apache-2.0
#include "plugin.h"

#include <dlfcn.h>

#include <set>

#include "api.h"
#include "registry.h"

namespace mixgrad::core {

void load_plugin(const std::string& path, const std::string& module, bool replace) {
  // Never closed: the registry points into it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) raise_error("PluginError", "plug-in '%s' cannot be loaded: %s", module.c_str(), dlerror());
  static auto* loaded = new std::set<void*>;
  const auto* plugin = static_cast<const mixgrad_plugin*>(dlsym(library, MIXGRAD_PLUGIN_SYMBOL));
  if (!plugin)
    raise_error("PluginError",
                "'%s' is no mixgrad plug-in: it exports no %s. A source of it must include <mixgrad/mixgrad.hpp>",
                path.c_str(), MIXGRAD_PLUGIN_SYMBOL);
  if (plugin->major != MIXGRAD_ABI_MAJOR || plugin->minor > MIXGRAD_ABI_MINOR)
    raise_error(
        "PluginError",
        "plug-in '%s' was built for version %u.%u of mixgrad's native interface (with %s); this mixgrad %s has %d.%d, "
        "which takes %d.0 to %d.%d. %s",
        module.c_str(), plugin->major, plugin->minor, plugin->built_with, MIXGRAD_VERSION, MIXGRAD_ABI_MAJOR,
        MIXGRAD_ABI_MINOR, MIXGRAD_ABI_MAJOR, MIXGRAD_ABI_MAJOR, MIXGRAD_ABI_MINOR,
        plugin->major > MIXGRAD_ABI_MAJOR || plugin->major == MIXGRAD_ABI_MAJOR
            ? "Upgrade mixgrad, or build the plug-in against it"
            : "Build the plug-in again");
  const mixgrad_registration* registrations = plugin->start(api_table());
  if (loaded->contains(library) && !replace) {
    Registry::instance().restore_native(registrations, module);
    return;
  }
  Registry::instance().add_native(registrations, module, replace);
  loaded->insert(library);
}

}  // namespace mixgrad::core
