# SPDX-License-Identifier: Apache-2.0
"""The installed package: if only one test file is run, then this one.

It needs pytest and mixgrad's own dependencies, and nothing from the source tree: `nox -s build` runs it on the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mixgrad

if TYPE_CHECKING:
    from pathlib import Path


def python(folder: Path, *arguments: str) -> str:
    """What a new Python prints, run in a folder where nothing can be imported by accident."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version() -> None:
    assert mixgrad.__version__ == metadata.version("mixgrad")


def test_typed() -> None:
    assert files(mixgrad).joinpath("py.typed").is_file()
    assert files(mixgrad).joinpath("_core.pyi").is_file()


def test_headers() -> None:
    installed = [str(file) for file in metadata.files("mixgrad") or ()]
    assert "mixgrad/include/mixgrad/api.h" in installed
    assert "mixgrad/include/mixgrad/mixgrad.hpp" in installed


def test_dependencies() -> None:
    required = [line for line in metadata.requires("mixgrad") or () if "extra ==" not in line]
    assert sorted(line.split(">=")[0] for line in required) == ["numpy", "optree", "typing-extensions"]


def test_gradient() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    dx, dy = mixgrad.grad(lambda x, y: (x * np.sin(y)).sum(), argnum=(0, 1))(x, y)
    np.testing.assert_allclose(dx, np.sin(y))
    np.testing.assert_allclose(dy, x * np.cos(y))


def test_native_ops_are_linked() -> None:
    multiply = mixgrad.registry["multiply"]
    x = np.array([2.0])
    with mixgrad.prefer("native"):
        assert mixgrad.grad(lambda x: multiply(x, x).sum())(x) == 4.0
    assert "native" in str(mixgrad.registry)


def test_command_line(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="needs the extra 'cli'")
    assert "multiply" in python(tmp_path, "-m", "mixgrad", "registry", "--explain", "mul")


def test_import_takes_what_it_needs_only(tmp_path: Path) -> None:
    code = "import numpy, sys; before = set(sys.modules); import mixgrad; print(*set(sys.modules) - before)"
    loaded = {name.partition(".")[0] for name in python(tmp_path, "-c", code).split()}
    third_party = loaded - set(sys.stdlib_module_names) - {"mixgrad", "numpy", "typing_extensions"}
    assert third_party == set(), "imported when first needed, not by `import mixgrad`"


def test_import_time(tmp_path: Path) -> None:
    code = (
        "from time import perf_counter; start = perf_counter(); import numpy; middle = perf_counter(); import mixgrad;"
        "print(middle - start, perf_counter() - middle)"
    )
    python(tmp_path, "-c", code)  # compiles the bytecode
    rounds = [map(float, python(tmp_path, "-c", code).split()) for _ in range(7)]
    # The fastest: whatever else the machine does only adds to a time.
    numpy_time, own_time = (min(times) for times in zip(*rounds, strict=True))
    assert own_time <= 0.3 * numpy_time, (
        f"mixgrad takes {own_time * 1e3:.0f} ms beside NumPy's {numpy_time * 1e3:.0f} ms"
    )
