// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests in a Python interpreter: this one's packages, mixgrad's Python files from the source tree, and the
// extension that is linked into this program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <pybind11/embed.h>

#include "support.h"

extern "C" PyObject* PyInit__core();

namespace {

namespace py = pybind11;

void import_mixgrad() {
  const py::module_ sys = py::module_::import("sys");
  sys.attr("path").attr("insert")(0, MIXGRAD_SOURCE_FOLDER);
  sys.attr("modules")["mixgrad._core"] = py::module_::import("_core");
  py::module_::import("mixgrad");
}

}  // namespace

REGISTER_EXCEPTION_TRANSLATOR(const mixgrad::core::PythonError&) { return py::error_already_set().what(); }

int main(int argc, char** argv) {
  PyImport_AppendInittab("_core", PyInit__core);
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  PyConfig_SetBytesString(&config, &config.program_name, MIXGRAD_PYTHON);
  const py::scoped_interpreter interpreter(&config);
  import_mixgrad();
  return doctest::Context(argc, argv).run();
}
