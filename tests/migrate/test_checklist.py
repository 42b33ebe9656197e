# SPDX-License-Identifier: Apache-2.0
"""The checklist: its file, its page and what CI compares; which changes make a tick void; packages other than mixgrad."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mixgrad
from mixgrad import cpp
from mixgrad.cli import app
from mixgrad.migrate import checklist
from mixgrad.migrate.sources import native_digest, python_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

PACKAGE = """
import pathlib
import mixgrad
import numpy as np

__version__ = "1.2"

def samples():
    return [mixgrad.Sample(np.array([0.5, -1.5]))]

@mixgrad.register_op("proof_cube", saves="x", samples=samples)
def cube(x):
    return x**3

def cube_gradient(g, x, out):
    return g * 3 * x * x

cube.gradient(cube_gradient)

@mixgrad.register_op("proof_twice", saves="", samples=samples)
def twice(x):
    return x * 2

twice.gradient(lambda g, x, out: g * 2)

steps = mixgrad.register_op("proof_steps", differentiable=False, samples=samples)(lambda x: np.floor(x))
mixgrad.cpp.load(pathlib.Path(__file__).parent / "native" / "cube.cpp", name="proof-example")
"""
NATIVE = """
#include <mixgrad/mixgrad.hpp>
MIXGRAD_REGISTER_GRADIENT(proof_cube) { return g * 3.0 * square(op.input(0)); }
"""
PROVED = "Of 3 ops 2 are differentiable. 1 of them have a native gradient, 1 with parity proved: 50 %."


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package with three ops, one gradient of which is native."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "proof_example" / "native").mkdir(parents=True)
    (folder / "proof_example" / "__init__.py").write_text(PACKAGE)
    (folder / "proof_example" / "native" / "cube.cpp").write_text(NATIVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.syspath_prepend(str(folder))
        __import__("proof_example")
        yield folder
    for op in ("proof_cube", "proof_twice", "proof_steps"):
        mixgrad.unregister(op)
    del sys.modules["proof_example"]


@pytest.fixture(scope="module")
def proved(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with settings, and the checklist and its page as they were written."""
    folder = tmp_path_factory.mktemp("proved")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pyproject.toml").write_text(
            '[tool.mixgrad]\nmodules = ["proof_example"]\nchecklist = "proof/list.json"\n'
        )
        assert run("--run", *PAGE) == (0, "")
    return folder


@pytest.fixture
def project(proved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it to work in."""
    shutil.copytree(proved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


LIST, PAGE = "proof/list.json", ("--format", "markdown", "--output", "proof/list.md")


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["checklist", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def edit(change: Any) -> None:
    """Change what the file says, by hand."""
    content = json.loads(Path(LIST).read_text())
    change(content)
    Path(LIST).write_text(checklist.dump(content))


def test_the_file(project: None) -> None:
    text = Path(LIST).read_text()
    content = json.loads(text)
    assert content["packages"] == ["proof_example"]
    numpy = ".".join(np.__version__.split(".")[:2])
    assert content["versions"] == {"mixgrad": mixgrad.__version__, "numpy": numpy, "proof_example": "1.2"}
    assert list(content["ops"]) == ["proof_cube", "proof_steps", "proof_twice"]
    cube, steps, twice = content["ops"].values()
    assert cube["proved"]
    assert {dtype: parity["status"] for dtype, parity in cube["parity"].items()} == {
        "float32": "passed",
        "float64": "passed",
    }
    assert (cube["second_order"]["status"], cube["leak_free"]["status"], cube["samples"]) == ("passed", "passed", 1)
    assert cube["source"]["C++"] != twice["source"]["C++"] is None
    assert "parity" not in twice
    assert steps["differentiable"] is False
    # A line for each op.
    assert len(re.findall(r'^    "proof_\w+": \{.*\},?$', text, re.MULTILINE)) == 3


def test_the_page(project: None) -> None:
    page = Path("proof/list.md").read_text()
    assert page.startswith(f"# Checklist of proof_example\n\n{PROVED}\n")
    cube, steps, twice = re.findall(r"^\| (proof_.*) \|$", page, re.MULTILINE)
    assert re.fullmatch(r"proof_cube \| ✓ \| - \| ✓ \| ✓ float32 \S+, ✓ float64 \S+ \| ✓ \| ✓ \| [\d.]+ \| 1", cube)
    assert steps == "proof_steps | not differentiable | - | - |  |  |  |  | 1"
    assert twice == "proof_twice | ✓ | - | - |  |  |  |  | 1"


def test_it_prints_without_running(project: None) -> None:
    code, text = run()
    assert code == 0
    assert PROVED in text
    assert "✓ float32" in text
    code, text = run("--format", "json")
    assert code == 0
    assert json.loads(text) == {**json.loads(Path(LIST).read_text()), "void": {}}
    code, text = run("--format", "html")
    assert code == 0
    assert "<td>proof_cube</td><td>✓</td><td>-</td><td>✓</td><td>✓ float32" in text
    run("--output", "table.txt")
    assert "proof_cube" in Path("table.txt").read_text()


def test_a_check_after_a_run_passes(project: None) -> None:
    assert run("--check", *PAGE) == (0, f"{PROVED}\n")


def test_a_check_forgives_what_is_measured(project: None) -> None:
    def change(content: Any) -> None:
        content["date"] = "1999-12-31"
        content["versions"]["numpy"] = "1.0"
        content["ops"]["proof_cube"]["speed_up"]["ratio"] = 1e6
        content["ops"]["proof_cube"]["parity"]["float32"] |= {"error": 1e-9, "where": "elsewhere"}

    edit(change)
    assert run("--check") == (0, f"{PROVED}\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["ops"]["proof_cube"]["second_order"].update(status="failed"),
            "second_order status: was failed, is",
        ),
        (lambda c: c["ops"]["proof_cube"]["source"].update({"C++": "0"}), "proof_cube source C++: was 0, is "),
        (lambda c: c["ops"].pop("proof_cube"), "proof_cube proved: was not there, is True"),
        (lambda c: c["versions"].update(proof_example="1.1"), "versions proof_example: was 1.1, is 1.2"),
        (
            lambda c: c["ops"]["proof_twice"].update(native={"status": "passed", "detail": ""}),
            "proof_twice has lost the native gradient: it is not there",
        ),
    ],
)
def test_a_check_finds_what_was_typed_by_hand(project: None, change: Any, message: str) -> None:
    edit(change)
    code, text = run("--check")
    assert code == 1
    assert message in text


def test_an_op_may_have_any_name() -> None:
    old, new = ({"versions": {}, "ops": {"where": {"proved": proved, "date": str(proved)}}} for proved in (True, False))
    assert checklist.differences(old, new) == ["where proved: was True, is False"]


def test_a_check_finds_a_page_that_was_edited(project: None) -> None:
    page = Path("proof/list.md")
    page.write_text(page.read_text().replace("50 %", "100 %"))
    code, text = run("--check", *PAGE)
    assert code == 1
    assert "proof/list.md is not the page of " in text
    page.unlink()
    assert run("--check", *PAGE)[0] == 1


@pytest.mark.parametrize("option", ["--check", "--run"])
def test_a_lost_tick_fails(project: None, option: str) -> None:
    cube = mixgrad.registry["proof_cube"]
    cube.gradient(lambda g, x, out: g * 3.001 * x * x, replace=True)
    try:
        code, text = run(option)
    finally:
        cube.gradient(sys.modules["proof_example"].cube_gradient, replace=True)
    assert code == 1
    assert "proof_cube has lost parity in float64: op 'proof_cube', sample 0" in text
    assert "1 of them have a native gradient, 0 with parity proved: 0 %" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["ops"]["proof_cube"]["source"].update(Python="0"), "its source in Python has changed"),
        (lambda c: c["ops"]["proof_cube"]["source"].update({"C++": "0"}), "its source in C++ has changed"),
        (lambda c: c["versions"].update(numpy="1.0"), "checked with numpy 1.0, this is "),
        (lambda c: c["versions"].update(mixgrad="0.0"), "checked with mixgrad 0.0, this is "),
    ],
)
def test_a_void_tick_says_why(project: None, change: Any, reason: str) -> None:
    edit(change)
    code, text = run("--fail-under", "1")
    assert code == 1
    assert f"void: {reason}" in text
    assert "0 with parity proved" in text
    assert "0.0 % of the ops have a proved native gradient, less than --fail-under 1" in text


def test_an_op_that_is_gone_is_void(project: None) -> None:
    edit(lambda c: c["ops"].update(proof_gone=c["ops"]["proof_cube"]))
    assert "void: there is no such op" in run()[1]


def test_fail_under(project: None) -> None:
    assert run("--fail-under", "50")[0] == 0
    assert run("--fail-under", "51")[0] == 1


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (None, 1, "list.json; write it with --run"),
        ("[]", 2, "is not a checklist"),
        ("{", 2, "is not a checklist"),
        ('{"packages": []}', 2, "is not a checklist: it lacks date, ops, versions"),
        (
            '{"packages": ["other"], "ops": {}, "date": "", "versions": {}}',
            2,
            "is the checklist of other, not of proof_example",
        ),
    ],
)
def test_other_files(project: None, text: str | None, code: int, message: str) -> None:
    Path(LIST).unlink() if text is None else Path(LIST).write_text(text)
    found, output = run()
    assert found == code
    assert message in output


def test_a_package_without_ops() -> None:
    code, text = run("--package", "json")
    assert code == 2
    assert "the package json has registered no op" in text


def test_options_that_do_not_go_together(project: None) -> None:
    for options in (("--run", "--check"), ("--check", "--output", "page.md")):
        code, text = run(*options)
        assert code == 2
        assert "--check is without --run" in text


def test_mixgrads_own_page_is_that_of_its_file() -> None:
    content = checklist.load(ROOT / "docs" / "checklist.json", ["mixgrad"])
    assert content is not None
    assert (ROOT / "docs" / "checklist.md").read_text() == checklist.render(content, {}, "markdown")
    native = [name for name, row in content["ops"].items() if "native" in row["gradient"]]
    assert native == [name for name, row in content["ops"].items() if row.get("proved")]


# --- sources ---------------------------------------------------------------------------------------------------------

MODULE = """
import mixgrad

def factor():
    return FACTOR

FACTOR = 2.0

def unrelated(x):
    return x

@mixgrad.register_op("sources_op")
def forward(x):
    return x * factor()

@mixgrad.register_gradient("sources_op", argument=0)
def gradient(g, x, out):
    return g * 2.0

if False:
    mixgrad.cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(sources_op) { return 2.0 * g; }")
"""


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("return x * factor()", "return factor() * x", True),
        ("return g * 2.0", "return 2.0 * g", True),
        ("return FACTOR", "return 1 * FACTOR", True),
        ("FACTOR = 2.0", "FACTOR = 3.0", True),
        ("{ return 2.0 * g; }", "{ return g * 2.0; }", True),
        ("unrelated(x):\n    return x", "unrelated(x):\n    return -x", False),
        ("import mixgrad\n", "# A comment.\nimport mixgrad\n", False),
    ],
)
def test_a_change_of_what_an_op_uses_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, differs: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = []
    for name, text in (("sources_before", MODULE), ("sources_after", MODULE.replace(old, new))):
        (tmp_path / f"{name}.py").write_text(text)
        __import__(name)
        digests.append(python_digest(mixgrad.registry["sources_op"]))
        mixgrad.unregister("sources_op")
        del sys.modules[name]
    assert (digests[0] != digests[1]) == differs


def test_the_native_digest_is_that_of_its_file(package: Path) -> None:
    cube = mixgrad.registry["proof_cube"]
    file = package / "proof_example" / "native" / "cube.cpp"
    before = native_digest(cube, "proof_example")
    try:
        file.write_text(NATIVE + "\n")
        assert native_digest(cube, "proof_example") != before
        file.unlink()
        (file.parent / "library.so").write_bytes(b"one")
        one = native_digest(cube, "proof_example")
        (file.parent / "library.so").write_bytes(b"two")
        assert native_digest(cube, "proof_example") not in {before, one}
    finally:
        file.write_text(NATIVE)
        (file.parent / "library.so").unlink(missing_ok=True)
    assert native_digest(cube, "proof_example") == before
    assert native_digest(mixgrad.registry["proof_twice"], "proof_example") is None


# --- a real package --------------------------------------------------------------------------------------------------


def test_black_scholes(tmp_path: Path) -> None:
    """As its authors use it: in a process of its own, with no installation and no settings but one table."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    shutil.copytree(ROOT / "examples" / "plugins" / "black_scholes", tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "pyproject.toml"
    settings.write_text(
        settings.read_text().replace('require-native = ["bs_cdf", ', 'require-native = ["mul", "bs_cdf", ')
    )
    sources = sorted(str(path) for path in (tmp_path / "native").glob("*.cpp"))
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{cpp.get_include()}"]
    subprocess.run([compiler, *flags, *sources, "-o", "src/black_scholes/native.so"], cwd=tmp_path, check=True)

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mixgrad", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "4 ops verified, 4 with parity proved, 0 checks failed" in command("verify")
    proved = "Of 3 ops 3 are differentiable. 3 of them have a native gradient, 3 with parity proved: 100 %."
    assert proved in command("checklist", "--run")
    assert proved in command("checklist", "--check", "--fail-under", "100")
    assert set(json.loads((tmp_path / "docs" / "checklist.json").read_text())["ops"]) == {
        "bs_cdf",
        "bs_d1",
        "bs_discount",
    }
