// SPDX-License-Identifier: Apache-2.0
#define MIXGRAD_IMPORT_NUMPY
#include "casters.h"
#include "core/api.h"
#include "core/entry.h"
#include "core/window.h"
#include "mixgrad/mixgrad.hpp"

namespace {

void import_numpy() {
  if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0) throw pybind11::error_already_set();
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  using namespace mixgrad;
  module.doc() = "mixgrad's native core.";
  import_numpy();
  bindings::translated([&] {
    core::kernels::initialise();
    core::init_array(module.ptr());
    core::init_op(module.ptr());
    core::init_entry(module.ptr());
    core::init_window(module.ptr());
    // Static registrars have only linked their nodes; here an error becomes an ImportError, not a dead process.
    v1::set_api(core::api_table());
    core::Registry::instance().add_native(v1::registrations(), core::kOwnModule);
  });
  bindings::bind_registry(module);
  bindings::bind_state(module);
  module.attr("api") = pybind11::capsule(core::api_table(), MIXGRAD_CAPSULE_NAME);
#ifdef MIXGRAD_VERSION
  module.attr("__version__") = MIXGRAD_VERSION;
#endif
}
