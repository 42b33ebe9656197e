# SPDX-License-Identifier: Apache-2.0
"""Every program in examples/ runs by itself, and prints what its readers are told."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mixgrad import demo

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PRINTS = {
    "define_gradient.py": (r"1\. \[0\. 0\. 1\.\]", r"0\.25, -0\.25", "gradient of logsumexp: that of input 0"),
    "higher_order.py": (r"at 2: 16\.0 14\.0 14\.0",),
    "override_for_debugging.py": (
        "mul at .* gets",
        r"without the gradient of \['tanh'\]",
        "gradient of tanh: that of input 0",
    ),
    "seed.py": (
        r"multiply: 1 native, 0 python \| exp: 0 native, 1 python",
        r"largest difference to the native gradient: 0\.0",
        r"runs   python  .*seed\.py:\d+: the first that takes this call",
    ),
    "train_digits.py": (
        r"native   loss .* ran: \d+ native, 0 Python",
        r"python   loss .* ran: 0 native, \d+ Python",
        r"mixed    loss .* ran: [1-9]\d* native, [1-9]\d* Python",
        "own mul  loss",
    ),
}


def test_all_examples_are_tested() -> None:
    assert [example.name for example in EXAMPLES] == sorted(PRINTS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    if "sklearn" in example.read_text():
        pytest.importorskip("sklearn", reason="needs the extra 'examples'")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIXGRAD_")}
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in PRINTS[example.name]:
        assert re.search(pattern, done.stdout), f"{pattern!r} is not in\n{done.stdout}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_import_nothing_private(example: Path) -> None:
    for statement in ast.walk(ast.parse(example.read_text())):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
        else:
            continue
        assert not any(part.startswith("_") for name in names if name.startswith("mixgrad") for part in name.split("."))


def definitions(path: Path) -> dict[str, str]:
    """The text of the functions and classes of a file."""
    source = path.read_text()
    return {
        statement.name: ast.get_source_segment(source, statement) or ""
        for statement in ast.parse(source).body
        if isinstance(statement, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("name", ["make_parameters", "predict", "loss", "Adam", "my_mul"])
def test_the_demo_is_the_example(name: str) -> None:
    (example,) = [path for path in EXAMPLES if path.name == "train_digits.py"]
    assert definitions(example)[name] == definitions(Path(demo.__file__))[name]
