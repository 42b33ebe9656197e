# SPDX-License-Identifier: Apache-2.0
"""All the gradients that a computation would need and does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mixgrad import _core
from mixgrad._tree import flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Missing", "MissingReport", "missing_gradients"]

_FLOATS = ("f", "c")


class Missing(NamedTuple):
    """An op without a gradient of one kind: "gradient", "second order" or "native"; how often, and where it was called first."""

    op: str
    kind: Literal["gradient", "second order", "native"]
    calls: int
    where: tuple[str, int] | None


@dataclass(frozen=True)
class MissingReport:
    """What `missing_gradients` found: a sequence of `Missing`, which prints as a list.

    Attributes
    ----------
    rows : list of Missing
        What lacks any gradient first.
    ops : int
        How many different ops were recorded.
    """

    rows: list[Missing]
    ops: int

    def __iter__(self) -> Iterator[Missing]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return f"all {self.ops} ops have a native gradient, of any order"
        words = {"gradient": "no gradient", "second order": "first order only", "native": "no native gradient"}
        width = max(len(row.op) for row in self.rows)
        lines = []
        for row in self.rows:
            at = f", first at {row.where[0]}:{row.where[1]}" if row.where else ""
            lines.append(f"{row.op:<{width}}  {words[row.kind]} ({row.calls} call{'s' if row.calls > 1 else ''}{at})")
        return "\n".join(lines)


def missing_gradients(f: Callable[..., Any], *args: Any) -> MissingReport:
    """Runs a function once, and lists every op in it that lacks a gradient, one of second order, or a native one.

    Parameters
    ----------
    f : callable
        A function of arrays.
    *args
        Its arguments. All float and complex arrays in them are taken as sources.

    Returns
    -------
    MissingReport
        One row per op and kind of gradient.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> @mixgrad.register_op(name="twice_example")
    ... def twice(x):
    ...     return 2.0 * x
    >>> print(mixgrad.missing_gradients(lambda x: np.sum(twice(np.sin(x))), np.ones(3)))  # doctest: +ELLIPSIS
    twice_example  no gradient (1 call, first at ...)
    >>> mixgrad.unregister("twice_example")
    """
    window = _core.Window()
    window.start()
    try:
        leaves, structure = flatten(args)
        watched = [window.watch(leaf) if _is_source(leaf) else leaf for leaf in leaves]
        f(*structure.unflatten(watched))
        window.stop()
        first, second = window.entries(), window.entries(True)
    finally:
        window.close()
    found: dict[tuple[str, Literal["gradient", "second order", "native"]], Missing] = {}
    for entry, recorded in zip(first, second, strict=True):
        if entry["op"] == "watch":
            continue
        kind = _lacks(entry["runs"], recorded["runs"])
        if kind is None:
            continue
        old = found.get((entry["op"], kind), Missing(entry["op"], kind, 0, entry["where"]))
        found[entry["op"], kind] = old._replace(calls=old.calls + 1)
    order = ("gradient", "second order", "native")
    rows = sorted(found.values(), key=lambda row: (order.index(row.kind), -row.calls))
    return MissingReport(rows, len({entry["op"] for entry in first} - {"watch"}))


def _is_source(leaf: Any) -> bool:
    return isinstance(leaf, (float, complex)) or getattr(getattr(leaf, "dtype", None), "kind", "") in _FLOATS


def _lacks(first: str, second: str) -> Literal["gradient", "second order", "native"] | None:
    if not first:
        return "gradient"
    if not second:
        return "second order"
    return "native" if first == "python" else None
