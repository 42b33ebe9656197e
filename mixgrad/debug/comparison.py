# SPDX-License-Identifier: Apache-2.0
"""Native gradients beside the Python ones: the differences, and files that reproduce them."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mixgrad import _core
from mixgrad._difference import Difference, difference
from mixgrad.debug import saved_calls
from mixgrad.errors import GradientMismatchError, GradientMismatchWarning, MissingGradientError
from mixgrad.registry import in_force, record, registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mixgrad.registry import Op

__all__ = ["Comparison", "Mismatch", "compare_gradients"]

OnMismatch = Literal["raise", "warn", "record"]


@dataclass(frozen=True)
class Mismatch:
    """One gradient call in which the native implementation and the Python one differ.

    Attributes
    ----------
    op : str
        The op's name.
    native, python : str
        Who registered the two.
    where : tuple of (str, int) or None
        File and line where the op was called.
    input : int
        The input whose gradient differs; the first of several.
    difference : Difference
        Elements and values.
    file : Path or None
        What reproduces it, for ``python -m mixgrad replay``.
    """

    op: str
    native: str
    python: str
    where: tuple[str, int] | None
    input: int
    difference: Difference
    file: Path | None = None

    def __str__(self) -> str:
        at = f", called at {self.where[0]}:{self.where[1]}" if self.where else ""
        saved = f". To reproduce it: python -m mixgrad replay {self.file}" if self.file else ""
        return (
            f"op '{self.op}'{at}: the native gradient ({self.native}) of input {self.input} is not that of Python "
            f"({self.python}): {self.difference.text}{saved}"
        )


@dataclass
class Comparison:
    """What was compared, and what differs: the report of `compare_gradients`.

    Attributes
    ----------
    mismatches : list of Mismatch
        In the order in which they were found.
    compared : Counter
        For each op how many calls were compared.
    alone : Counter
        For each op how many native calls had no Python gradient to compare with.
    """

    mismatches: list[Mismatch] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [
            f"{sum(self.compared.values())} native gradient calls of {len(self.compared)} ops compared with Python"
        ]
        if self.alone:
            lines.append(f"no Python gradient to compare with: {', '.join(sorted(self.alone))}")
        by_op = Counter(m.op for m in self.mismatches)
        lines += [f"{n} mismatch{'es' if n > 1 else ''} in op '{name}'" for name, n in sorted(by_op.items())]
        lines += [str(mismatch) for mismatch in self.mismatches]
        return "\n".join(lines)


def compare_call(
    op: _core.Entry, native: Sequence[Any], python: Sequence[Any], rtol: float | None, atol: float | None
) -> tuple[int, Difference] | None:
    """The first input whose two gradients differ, and how; None if all agree."""
    for i, (found, expected) in enumerate(zip(native, python, strict=True)):
        if not op.needs_gradient(i):
            continue
        different = difference(plain(expected), plain(found), rtol, atol)
        if different is not None:
            return i, different
    return None


def plain(value: Any) -> Any:
    """An Array's numbers; anything else as it is."""
    return _core.value(value) if type(value) is _core.Array else value


def chosen(ops: str | Op | Iterable[str | Op] | None) -> list[Op | None]:
    """The ops that a tool is about: one, several, or all (None)."""
    if ops is None:
        return [None]
    listed = [ops] if isinstance(ops, (str, _core.Op)) else ops
    return [op if isinstance(op, _core.Op) else registry[op] for op in listed]


def warn_at(where: tuple[str, int] | None, text: str, category: type[Warning]) -> None:
    """Warns of the line where an op was called: that of the backward pass says nothing."""
    if where is None:
        warnings.warn(text, category, stacklevel=3)
    else:
        warnings.warn_explicit(text, category, *where)


def origins(name: str) -> tuple[str, str]:
    """Who registered the native and the Python gradient of an op."""
    has = _core.implementations(_core.find_op(name))["gradient"]
    return has.get("native", {}).get("origin", "?"), has.get("python", {}).get("origin", "?")


def mismatch_of(op: _core.Entry, g: Any, found: tuple[int, Difference], folder: Path | str | None) -> Mismatch:
    """The report on a call, with the file that reproduces it if a folder is given."""
    native, python = origins(op.name)
    file = saved_calls.save(op, g, Path(folder), native, python) if folder is not None else None
    return Mismatch(op.name, native, python, op.where, found[0], found[1], file)


@contextlib.contextmanager
def compare_gradients(
    *,
    rtol: float | None = None,
    atol: float | None = None,
    every: int = 1,
    ops: str | Op | Iterable[str | Op] | None = None,
    on_mismatch: OnMismatch = "raise",
    save: str | Path | None = None,
) -> Iterator[Comparison]:
    """For a ``with`` block: runs the Python gradient beside each native one, and reports the differences.

    The native result is what is used. Python's runs on plain read-only arrays, and is not recorded. It holds for the ops
    that are recorded inside the block, and for gradients taken inside it, in this thread and asyncio task.

    Parameters
    ----------
    rtol, atol : float, optional
        The allowed difference: 200 times the resolution of the dtype, relative to the largest element, when left out.
    every : int
        Compare each op's first call and every so many after it: 100 costs about a hundredth of the Python gradients.
    ops : str, Op or iterable of these, optional
        Compare these only.
    on_mismatch : {"raise", "warn", "record"}
        What to do at a difference, besides noting it in the report.
    save : path, optional
        A folder; each mismatch is saved as one file in it, which ``python -m mixgrad replay FILE`` runs again.

    Yields
    ------
    Comparison
        The report, which fills as gradients are taken.

    Raises
    ------
    GradientMismatchError
        With ``on_mismatch="raise"``, at the first difference.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> with mixgrad.debug.compare_gradients() as report:
    ...     slope = mixgrad.grad(lambda x: np.sum(np.sin(x) * x))(np.ones(3))
    >>> print(report)
    3 native gradient calls of 3 ops compared with Python
    """
    if on_mismatch not in ("raise", "warn", "record"):
        raise ValueError(f'on_mismatch is "raise", "warn" or "record", not {on_mismatch!r}')
    if every < 1:
        raise ValueError(f"every is the number of calls from one comparison to the next, at least 1; not {every}")
    report = Comparison()
    calls: dict[str, itertools.count[int]] = {}

    def compared(op: _core.Entry, g: Any) -> Any:
        if next(calls.setdefault(op.name, itertools.count())) % every or op.runs[0] != "native":
            return op.next(g)
        native = op.next(g)
        try:
            python = op.python(g, recorded=False)
        except MissingGradientError:
            report.alone[op.name] += 1
            return native
        report.compared[op.name] += 1
        found = compare_call(op, native, python, rtol, atol)
        if found is not None:
            mismatch = mismatch_of(op, g, found, save)
            report.mismatches.append(mismatch)
            if on_mismatch == "raise":
                raise GradientMismatchError(str(mismatch))
            if on_mismatch == "warn":
                warn_at(op.where, str(mismatch), GradientMismatchWarning)
        return native

    targets = chosen(ops)
    with in_force([record(target, gradient=compared, origin="mixgrad.debug.compare_gradients") for target in targets]):
        yield report
