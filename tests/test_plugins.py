"""Packages that bring gradients: written by new-plugin, built with CMake by both compilers, found by their entry points."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
from mixgrad import cpp, plugins
from mixgrad.errors import DuplicateRegistrationError, PluginWarning, UnknownOpError
from mixgrad.scaffolding import new_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

GRADIENT = """
#include <mixgrad/mixgrad.hpp>
MIXGRAD_REGISTER_GRADIENT(exp, mixgrad::replace) { return g * op.output(); }
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_native(package: Path, into: Path) -> None:
    """What `pip install` does, without its isolated environment: that would need a released mixgrad."""
    # The one that pip installed beside Python first.
    cmake = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert cmake is not None, "the extra 'test' brings cmake"
    build = package / "build"
    run(cmake, "-S", str(package / "native"), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}", cwd=package)
    run(cmake, "--build", str(build), cwd=package)
    shutil.copy(build / "native.so", into)


def test_new_plugin_builds_and_passes_its_tests(tmp_path: Path) -> None:
    new_plugin("my-gradients", tmp_path / "package")
    package = tmp_path / "package"
    build_native(package, package / "src" / "my_gradients")
    out = run(sys.executable, "-m", "pytest", "-q", "tests", cwd=package, PYTHONPATH=str(package / "src"))
    assert "3 passed" in out


@pytest.mark.parametrize(
    ("name", "folder", "text"), [("3d", "new", "no name for a package"), ("fine", "full", "not an empty folder")]
)
def test_new_plugin_refuses(tmp_path: Path, name: str, folder: str, text: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match=text):
        new_plugin(name, tmp_path / folder)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_either_compiler(tmp_path: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = (
        "import mixgrad\n"
        f"mixgrad.cpp.load({str(tmp_path / 'gradient.cpp')!r})\n"
        "print(float(mixgrad.grad(mixgrad.grad(mixgrad.numpy.exp))(0.0)), mixgrad.registry.explain('exp'))\n"
    )
    (tmp_path / "gradient.cpp").write_text(GRADIENT)
    out = run(sys.executable, "-c", program, cwd=tmp_path, CXX=compiler, MIXGRAD_CACHE=str(tmp_path / "cache"))
    assert out.startswith("1.0 ")
    assert "runs   native  gradient (" in out


def test_the_headers_alone_compile_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "gradient.cpp").write_text(GRADIENT)
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{cpp.get_include()}"]
    for compiler in ("g++", "clang++"):
        if shutil.which(compiler):
            run(compiler, *flags, "gradient.cpp", cwd=tmp_path)


# --- entry points ----------------------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes modules importable, and entry points of them the only plug-ins there are."""
    entries: list[EntryPoint] = []

    def add(name: str, text: str, value: str | None = None) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        entries.append(EntryPoint(name, value or name, plugins.GROUP))

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [e for e in entries if e.group == group])
    monkeypatch.setattr(plugins, "_loaded", {})
    yield add
    for entry in entries:
        sys.modules.pop(entry.name, None)


OP = """
import mixgrad
@mixgrad.register_op("{op}", saves="")
def {op}(x):
    return x * 2.0
{op}.gradient(lambda g, x, out: g * 2.0)
"""


def test_a_plugin_is_loaded_when_its_op_is_asked_for(modules: Any) -> None:
    modules("plugin_a", OP.format(op="test_plugin_double"))
    try:
        assert "test_plugin_double" not in mixgrad.registry
        assert mixgrad.grad(mixgrad.ops.test_plugin_double)(1.0) == 2.0
        assert mixgrad.load_plugins() == ["plugin_a"]
    finally:
        mixgrad.unregister("test_plugin_double")


def test_a_plugin_may_be_a_function(modules: Any) -> None:
    text = "def register():\n    import mixgrad\n    mixgrad.op(lambda x: x + 1.0, name='test_plugin_function')\n"
    modules("plugin_f", text, "plugin_f:register")
    assert mixgrad.load_plugins() == ["plugin_f"]
    mixgrad.unregister("test_plugin_function")


def test_a_broken_plugin_is_a_warning_and_the_others_work(modules: Any) -> None:
    modules("plugin_broken", "raise ZeroDivisionError('at import')")
    modules("plugin_b", OP.format(op="test_plugin_other"))
    try:
        with pytest.warns(PluginWarning, match="'plugin_broken' .*ZeroDivisionError: at import"):
            assert mixgrad.load_plugins() == ["plugin_b"]
        assert mixgrad.load_plugins() == ["plugin_b"]
        np.testing.assert_array_equal(mixgrad.registry["test_plugin_other"](np.ones(2)), [2.0, 2.0])
    finally:
        mixgrad.unregister("test_plugin_other")


def test_two_plugins_that_claim_one_op(modules: Any) -> None:
    modules("plugin_one", OP.format(op="test_plugin_claimed"))
    modules("plugin_two", OP.format(op="test_plugin_claimed"))
    try:
        with pytest.raises(DuplicateRegistrationError) as caught:
            mixgrad.load_plugins()
        assert "plugin_one.py" in str(caught.value)
        assert "plugin_two.py" in str(caught.value)
    finally:
        mixgrad.unregister("test_plugin_claimed")


def test_an_unknown_op_stays_unknown(modules: Any) -> None:
    modules("plugin_c", "import mixgrad\nassert 'no_such_op_either' not in mixgrad.registry\n")
    with pytest.raises(UnknownOpError, match="no op named 'no_such_op'"):
        mixgrad.registry["no_such_op"]


def test_the_example_of_a_package(tmp_path: Path) -> None:
    """Built as it stands, moved step by step, and its own tests."""
    package = tmp_path / "package"
    shutil.copytree(Path(__file__).parents[1] / "examples" / "plugins" / "black_scholes", package)
    build_native(package, package / "src" / "black_scholes")
    out = run(sys.executable, "steps.py", "1000", cwd=package, PYTHONPATH=str(package / "src"))
    steps = [line.split("  ")[0].strip() for line in out.splitlines()[3:]]
    assert steps == ["none", "bs_cdf", "bs_cdf, bs_d1", "bs_cdf, bs_d1, bs_discount"]
    out = run(sys.executable, "-m", "pytest", "-q", "tests", cwd=package, PYTHONPATH=str(package / "src"))
    assert "7 passed" in out
