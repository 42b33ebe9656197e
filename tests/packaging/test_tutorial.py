# SPDX-License-Identifier: Apache-2.0
"""Every command of docs/tutorial.md, in a copy of its example and in the page's order, prints what the page says."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Language, text and, of a file, the path of each fenced block."""
    for match in re.finditer(r"(?:\*\*`(.+?)`\*\*\n\n)?^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield match[2], match[3], match[1] or ""


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with its output."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str, folder: Path) -> str:
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "COLUMNS": "110",
        "TMPDIR": str(folder / "tmp"),
        "MIXGRAD_CACHE": str(folder / "cache"),
    }
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder / "sir",
        env=environment,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.replace(str(folder / "sir") + os.sep, "").replace(str(folder), "")


def told_apart(text: str) -> str:
    """Without what belongs to a machine and a day: times, sizes and shares, hexadecimal names, boxes."""
    text = re.sub(r"[│┃┏┓┗┛┡┩└┘━─┳┻╇┴┼]", " ", text)
    text = re.sub(r"\d[\d.,e+-]*\s*(ns|µs|ms|s|B|KiB|MiB|%)(?=[\s).,]|$)", r"# \1", text)
    text = re.sub(r"-[0-9a-f]{8}\.npz", "-#.npz", text)
    text = re.sub(r"mixgrad-\w{8}/", "mixgrad-#/", text)
    text = re.sub(r"\bNumPy \d[\d.]*|mixgrad \d[\d.]*", "#", text)
    text = re.sub(r"(\d+\.\d{6})\d+", r"\1", text)
    return re.sub(r"(?<![\w.])\d+\.\d(?!\d)", "#", text)


def test_the_commands(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "examples" / "sir", tmp_path / "sir", ignore=shutil.ignore_patterns("__pycache__", ".*", "native")
    )
    checker = doctest.OutputChecker()
    for language, block, path in blocks(PAGE.read_text()):
        if path:
            (tmp_path / "sir" / path).write_text(block)
        elif language == "text":
            for command, expected in commands(block):
                found = run(command, tmp_path)
                same = checker.check_output(told_apart(expected), told_apart(found), FLAGS)
                assert same, f"$ {command}\nexpected:\n{expected}\nfound:\n{found}"
        else:
            # Code that the page shows stands in the example.
            assert block in (ROOT / "examples" / "sir" / "sir.py").read_text()
