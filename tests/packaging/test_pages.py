# SPDX-License-Identifier: Apache-2.0
"""README and docs: links lead somewhere, examples with prompts print what they say, other Python parses."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The first line's number and the text of each Python block."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(1)) + 1, match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@every_page
def test_links(page: Path) -> None:
    # A C++ lambda looks like a link.
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^    .*$", "", prose, flags=re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


@every_page
def test_examples(page: Path, tmp_path: Path) -> None:
    """In a process of its own: what a page registers, and leaks to make a point, is no other test's affair."""
    done = subprocess.run(
        [sys.executable, __file__, str(page)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def run_examples(page: Path) -> None:
    """The examples of one page share their names, as a reader types them one after the other."""
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for line, block in python_blocks(page):
        if ">>> " in block:
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), line - 1)
            runner.run(test, clear_globs=False)
            names = test.globs
        else:
            ast.parse(block, f"{page}:{line}")


if __name__ == "__main__":
    run_examples(Path(sys.argv[1]))
