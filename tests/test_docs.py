# SPDX-License-Identifier: Apache-2.0
"""README and docs say what is so: programs print what stands below them, code is the real files', tables are complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mixgrad import cpp, errors

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [*sorted((ROOT / "mixgrad" / "ops").glob("*.py")), *sorted((ROOT / "native" / "ops").glob("*.cpp"))]


def blocks(text: str, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in fences if name == language]


def without_places(text: str) -> str:
    """Without folders and line numbers, which differ from machine to machine and day to day."""
    return re.sub(r"[^\s(]*/(\w+\.(?:py|cpp)):\d+", r"\1", text)


def test_the_readmes_program_prints_what_it_says(tmp_path: Path) -> None:
    program = tmp_path / "readme.py"
    program.write_text(blocks(README, "python")[0])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert without_places(done.stdout) == without_places(blocks(README, "")[0])


def code_of_the_project() -> list[tuple[str, str]]:
    """The blocks that are no program of their own and no session: they show code of the project."""
    shown = []
    for page in PAGES:
        if page.name in ("gradients_in_cpp.md", "tutorial.md"):
            # Tests of their own run all of these: test_gradients_in_cpp.py, packaging/test_tutorial.py.
            continue
        text = page.read_text()
        python = blocks(text, "python")[1:] if page.name == "README.md" else blocks(text, "python")
        # The C++ twin of the README's program; it is compiled below.
        native = [block for block in blocks(text, "cpp") if "softsign" not in block]
        shown += [(page.name, block) for block in [*python, *native] if ">>> " not in block]
    return shown


@pytest.mark.parametrize(("page", "block"), code_of_the_project())
def test_code_is_that_of_the_project(page: str, block: str) -> None:
    found = [source.name for source in SOURCES if block in source.read_text()]
    assert found, f"{page} shows code that is nowhere in mixgrad/ops and native/ops:\n{block}"


def test_the_readmes_native_gradient_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    (block,) = [block for block in blocks(README, "cpp") if "softsign" in block]
    source = tmp_path / "softsign.cpp"
    source.write_text(f"#include <mixgrad/mixgrad.hpp>\nnamespace mixgrad {{\nnamespace {{\n{block}}}\n}}\n")
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", *warnings, "-I", cpp.get_include(), str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_two_commands_that_differ_in_their_end_only() -> None:
    commands = re.findall(r"^    \$ (.*)$", README, re.MULTILINE)
    assert len(commands) == 2
    demo, tests = (command.partition("pip install -e ") for command in commands)
    assert demo[0] == tests[0]
    assert demo[2] == "'.[examples]' && .venv/bin/python -m mixgrad demo"
    assert tests[2] == "'.[test]' && .venv/bin/python -m pytest"
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=60)


def test_the_page_of_errors_has_them_all() -> None:
    rows = ["| class | also a | what happened |", "|---|---|---|"]
    for name in errors.__all__:
        error = getattr(errors, name)
        also = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not errors.MixgradError)
        summary = error.__doc__.splitlines()[0].replace("``", "`")
        rows.append(f"| `{name}` | {also} | {summary} |")
    assert "\n".join(rows) in (ROOT / "docs" / "errors.md").read_text()


def test_all_environment_variables_are_documented() -> None:
    files = [*(ROOT / "mixgrad").rglob("*.py"), *(ROOT / "native").rglob("*.cpp"), *(ROOT / "native").rglob("*.h")]
    read = {name for file in files for name in re.findall(r'"(MIXGRAD_[A-Z_]+)"', file.read_text())}
    documented = set(re.findall(r"^\| `(MIXGRAD_\w+)` \|", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE))
    assert documented == read


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert linked == {page.name for page in PAGES} - {"README.md", "index.md"}
