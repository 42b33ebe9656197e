# SPDX-License-Identifier: Apache-2.0
"""What an op is made of, as text: so that a change of it can be told."""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mixgrad.registry import Op

__all__ = ["native_digest", "python_digest"]


def python_digest(op: Op) -> str:
    """A hash of an op's forward, gradients and samples in Python, with all of their own files that they use.

    Whole statements are taken: those that define them, those that name the op, and those that define what these use.
    """
    there = _core.implementations(op)
    places = [_place(function) for function in (op.forward, op.samples)]
    places.append(_split(there["gradient"].get("python", {}).get("origin", "")))
    by_file: dict[str, set[int]] = {}
    for file, line in filter(None, places):
        by_file.setdefault(file, set()).add(line)
    digest = hashlib.sha256()
    # In the order of their texts: the files' folders differ from machine to machine.
    for text in sorted(_text(file, lines, op) for file, lines in by_file.items()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def native_digest(op: Op, package: str) -> str | None:
    """A hash of the file that registers the op's native gradient; of the shared library where that is not found.

    None if there is no native gradient.
    """
    native = _core.implementations(op)["gradient"].get("native")
    if native is None:
        return None
    digest = hashlib.sha256()
    for path in _native_files(native["origin"], package):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# --- Python ----------------------------------------------------------------------------------------------------------


def _place(function: Any) -> tuple[str, int] | None:
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else None


def _split(origin: str) -> tuple[str, int] | None:
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None


def _text(file: str, lines: set[int], op: Op) -> str:
    """The statements of a file that make up an op."""
    source = _source(file)
    names = {op.name, *op.aliases, *(name for name, value in _globals(file).items() if value is op)}
    wanted = {
        i
        for i, (first, last, used) in enumerate(source.statements)
        if any(first <= line <= last for line in lines) or used & names
    }
    waiting = list(wanted)
    while waiting:
        for name in source.statements[waiting.pop()][2]:
            new = source.defines.get(name, set()) - wanted
            wanted |= new
            waiting += new
    return "\n".join(
        "".join(source.lines[first - 1 : last]) for first, last, _ in (source.statements[i] for i in sorted(wanted))
    )


def _globals(file: str) -> dict[str, Any]:
    return next(
        (vars(module) for module in list(sys.modules.values()) if getattr(module, "__file__", None) == file), {}
    )


class _Source:
    """A file's statements: first and last line, and what they name; and which statements define a name."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.statements: list[tuple[int, int, frozenset[str]]] = []
        self.defines: dict[str, set[int]] = {}
        for number, statement in enumerate(ast.parse("".join(lines)).body):
            first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
            self.statements.append((first, statement.end_lineno or first, frozenset(_named(statement))))
            for name in _defined(statement):
                self.defines.setdefault(name, set()).add(number)


@functools.cache
def _source(file: str) -> _Source:
    return _Source(linecache.getlines(file))


def _named(statement: ast.stmt) -> Iterator[str]:
    """The variables that a statement reads, and the strings in it, which could be the name of an op."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # C++ in a string names its op inside.
            yield from re.findall(r"\w+", node.value) if "{" in node.value else [node.value]


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


# --- native ----------------------------------------------------------------------------------------------------------


def _native_files(origin: str, package: str) -> list[Path]:
    """The source file of an origin such as "mixgrad (ops/math.cpp:59)", or the package's libraries."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return []
    folder = Path(file).parent
    if match := re.search(r"\((.+):\d+\)$", origin):
        # The package beside its native folder, or in a folder src beside it.
        for start in (folder, *folder.parents[:2]):
            for inner in ("", "native", "src"):
                if (path := start / inner / match[1]).is_file():
                    return [path]
    return sorted(folder.rglob("*.so"))
