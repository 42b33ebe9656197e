# SPDX-License-Identifier: Apache-2.0
"""Where the time goes, by op and implementation."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Event", "Profile", "profile"]


class Event(NamedTuple):
    """One forward or gradient that ran. Times in nanoseconds; `own` is without what ran inside it."""

    op: str
    what: str
    implementation: str
    where: tuple[str, int] | None
    start: int
    duration: int
    own: int
    bytes: int
    thread: int


@dataclass
class Profile:
    """What ran inside a `profile` block.

    Attributes
    ----------
    events : list of Event
        In the order in which they ended.
    lost : int
        How many were not kept: there is room for a million.
    """

    events: list[Event] = field(default_factory=list)
    lost: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """One row per op and implementation, the most expensive first, for ``pandas.DataFrame`` and the like.

        Returns
        -------
        list of dict
            op, what ("forward" or "gradient"), implementation, calls, seconds (without what ran inside), seconds_per_call,
            bytes (allocated), share (of all the time, 0 to 1).

        Examples
        --------
        >>> import mixgrad, numpy as np
        >>> with mixgrad.debug.profile() as p:
        ...     slope = mixgrad.grad(lambda x: np.exp(x) * 2.0)(1.0)
        >>> sorted((row["op"], row["what"], row["calls"]) for row in p.rows())
        [('exp', 'forward', 1), ('exp', 'gradient', 1), ('multiply', 'forward', 1), ('multiply', 'gradient', 1)]
        """
        sums: dict[tuple[str, str, str], list[int]] = {}
        for event in self.events:
            row = sums.setdefault((event.op, event.what, event.implementation), [0, 0, 0])
            row[0] += 1
            row[1] += event.own
            row[2] += event.bytes
        total = sum(row[1] for row in sums.values()) or 1
        return [
            {
                "op": op,
                "what": what,
                "implementation": implementation,
                "calls": calls,
                "seconds": own * 1e-9,
                "seconds_per_call": own * 1e-9 / calls,
                "bytes": allocated,
                "share": own / total,
            }
            for (op, what, implementation), (calls, own, allocated) in sorted(
                sums.items(), key=lambda item: -item[1][1]
            )
        ]

    def table(self, limit: int | None = 30) -> Any:
        """The rows as a rich table; it needs the extra ``cli``.

        Parameters
        ----------
        limit : int, optional
            How many rows; None for all.
        """
        from rich.table import Table  # noqa: PLC0415  an extra

        rows = self.rows()
        table = Table(caption=self._caption(rows, limit), caption_justify="left")
        for name in ("op", "what", "by"):
            table.add_column(name)
        for name in ("calls", "time", "per call", "allocated", "share"):
            table.add_column(name, justify="right")
        for row in rows[:limit]:
            table.add_row(
                row["op"],
                row["what"],
                row["implementation"],
                f"{row['calls']:,}",
                shown_time(row["seconds"]),
                shown_time(row["seconds_per_call"]),
                shown_bytes(row["bytes"]),
                f"{row['share']:.1%}",
            )
        return table

    def _caption(self, rows: list[dict[str, Any]], limit: int | None) -> str:
        parts = [f"{shown_time(sum(row['seconds'] for row in rows))} in {sum(row['calls'] for row in rows):,} calls"]
        if limit is not None and len(rows) > limit:
            parts.append(f"{len(rows) - limit} more rows")
        if self.lost:
            parts.append(f"{self.lost:,} events were not kept")
        return ", ".join(parts)

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415  an extra

        text = io.StringIO()
        Console(file=text, width=110).print(self.table())
        return text.getvalue().rstrip()

    def save_trace(self, path: str | Path) -> None:
        """Writes a trace for Perfetto (https://ui.perfetto.dev) or Chrome's ``about:tracing``: each call with its line and bytes."""
        events = [
            {
                "name": event.op if event.what == "forward" else f"{event.op} gradient",
                "cat": f"{event.what},{event.implementation}",
                "ph": "X",
                "ts": event.start / 1000,
                "dur": event.duration / 1000,
                "pid": 0,
                "tid": event.thread,
                "args": {
                    "implementation": event.implementation,
                    "where": f"{event.where[0]}:{event.where[1]}" if event.where else "",
                    "bytes": event.bytes,
                },
            }
            for event in self.events
        ]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """For a ``with`` block: measures every forward and gradient, in all threads.

    Measuring costs about 100 ns a call. Outside of such blocks it costs nothing.

    Yields
    ------
    Profile
        Filled at the end of the block; printed, it is a table.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> with mixgrad.debug.profile() as p:
    ...     slope = mixgrad.grad(lambda x: np.sum(np.tanh(x)))(np.ones(1000))
    >>> print(p)  # doctest: +SKIP
    """
    result = Profile()
    _hand_out()
    _active.append(result)
    _core.start_looking("profile")
    try:
        yield result
    finally:
        _core.stop_looking("profile")
        _hand_out()
        # By identity: two profiles that are empty are equal.
        del _active[next(i for i, one in enumerate(_active) if one is result)]


_active: list[Profile] = []


def _hand_out() -> None:
    """What has run since the last time belongs to every profile that is open."""
    events, lost = _core.take_events()
    named = [Event(*event) for event in events]
    for one in _active:
        one.events += named
        one.lost += lost


def shown_time(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def shown_bytes(count: float) -> str:
    """A size in the unit that suits it."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
