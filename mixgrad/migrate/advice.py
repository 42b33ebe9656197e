# SPDX-License-Identifier: Apache-2.0
"""Which Python gradients and forwards are worth moving to C++, by the time that it would save."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mixgrad import _core
from mixgrad.debug.profiling import profile, shown_bytes, shown_time
from mixgrad.registry import registry

if TYPE_CHECKING:
    from mixgrad.debug.profiling import Profile

__all__ = ["Advice", "Costs", "Move", "advise", "measure_costs"]


class Costs(NamedTuple):
    """What a native implementation costs on this machine, as measured.

    Attributes
    ----------
    call : float
        Seconds for a call of one on a single number.
    byte : float
        Seconds for each byte that it allocates, in a loop over large arrays.
    """

    call: float
    byte: float


class Move(NamedTuple):
    """One Python implementation, and what moving it to C++ would save at most.

    Attributes
    ----------
    op, what : str
        The op, and "forward" or "gradient".
    calls : int
        How often it ran.
    seconds, share : float
        The time it took, and its share of the time in all ops.
    bytes : int
        What it allocated through mixgrad.
    saves : float
        The seconds that a native one would save: its time, less what native calls cost and native loops take for as many
        bytes.
    """

    op: str
    what: str
    calls: int
    seconds: float
    share: float
    bytes: int
    saves: float


class Gain(NamedTuple):
    """One move that was advised and has been made: seconds per call that were promised, and that were gained."""

    op: str
    what: str
    promised: float
    gained: float


@dataclass(frozen=True)
class Advice:
    """What is worth moving, the most rewarding first. Printed, it is a table with the reasons.

    Attributes
    ----------
    moves : list of Move
        Python implementations that ran.
    gains : list of Gain
        Moves advised before and made since.
    costs : Costs
        What the estimates stand on.
    total : float
        Seconds in all ops.
    """

    moves: list[Move]
    gains: list[Gain]
    costs: Costs
    total: float

    def table(self) -> Any:
        """The moves as a rich table; it needs the extra ``cli``."""
        from rich.table import Table  # noqa: PLC0415  an extra

        table = Table(caption=self._reasons(), caption_justify="left")
        for name in ("op", "what"):
            table.add_column(name)
        for name in ("calls", "time", "share", "per call", "allocated", "saves at most"):
            table.add_column(name, justify="right")
        for move in self.moves:
            table.add_row(
                move.op,
                move.what,
                f"{move.calls:,}",
                shown_time(move.seconds),
                f"{move.share:.1%}",
                shown_time(move.seconds / move.calls),
                shown_bytes(move.bytes),
                f"{shown_time(move.saves)} ({move.saves / (self.total or 1.0):.1%})",
            )
        return table

    def _reasons(self) -> str:
        lines = ["Nothing ran in Python: there is nothing to move."]
        if self.moves:
            estimate = (
                f"All ops together: {shown_time(self.total)}. A native call costs {shown_time(self.costs.call)} on this machine, and "
                f"a native loop {shown_time(self.costs.byte * 2**20)} for each MiB that it makes; what is saved is the time in Python "
                "less these. Calls into NumPy's own heavy functions (products, solvers) take as long from C++."
            )
            lines = [estimate, f"Begin with: python -m mixgrad scaffold {self.moves[0].op}"]
        lines += [
            f"{gain.op} {gain.what}: moved; {shown_time(gain.gained)} a call gained of {shown_time(gain.promised)} promised "
            f"({gain.gained / (gain.promised or 1.0):.0%})"
            for gain in self.gains
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415  an extra

        text = io.StringIO()
        Console(file=text, width=120).print(self.table())
        return text.getvalue().rstrip()


def measure_costs() -> Costs:
    """Measures what native gradients cost on this machine: takes about 50 ms.

    Examples
    --------
    >>> from mixgrad.migrate import measure_costs
    >>> costs = measure_costs()
    >>> 0.0 < costs.call < 1e-3
    True
    """
    small, large = _seconds(np.ones(()), 300), _seconds(np.ones(1_000_000), 5)
    return Costs(small, max(large - small, 0.0) / 8e6)


def _seconds(x: Any, repeats: int) -> float:
    """The shortest time of a native gradient that makes one array like `x`."""
    window = _core.Window(True)
    window.start()
    try:
        source = window.watch(x)
        y = registry["tanh"](source)
        window.stop()
        with profile() as measured:
            for _ in range(repeats):
                window.gradient([y], [source], [x])
    finally:
        window.close()
    return min(event.duration for event in measured.events) * 1e-9


def advise(measured: Profile, costs: Costs | None = None, *, file: str | Path | None = None) -> Advice:
    """Ranks the Python implementations that ran by what moving them to C++ would save.

    Parameters
    ----------
    measured : Profile
        From `mixgrad.debug.profile`.
    costs : Costs, optional
        Measured when left out.
    file : path, optional
        Where promises are kept from one run to the next: those of ops that have been moved since are set against what was
        gained. It is written again.

    Returns
    -------
    Advice
        Without what would save nothing.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> from mixgrad.migrate import Costs, advise
    >>> with mixgrad.debug.profile() as p, mixgrad.prefer("python"):
    ...     slope = mixgrad.grad(lambda x: np.sum(np.tanh(x)))(np.ones(1000))
    >>> sorted((move.op, move.what) for move in advise(p, Costs(0.0, 0.0)).moves)
    [('sum', 'forward'), ('sum', 'gradient'), ('tanh', 'forward'), ('tanh', 'gradient')]
    """
    costs = measure_costs() if costs is None else costs
    rows = measured.rows()
    moves = []
    for row in rows:
        saves = row["seconds"] - row["calls"] * costs.call - row["bytes"] * costs.byte
        if row["implementation"] == "python" and saves > 0.0:
            moves.append(Move(row["op"], row["what"], row["calls"], row["seconds"], row["share"], row["bytes"], saves))
    moves.sort(key=lambda move: -move.saves)
    path = None if file is None else Path(file)
    promises: dict[str, dict[str, float]] = {}
    if path is not None and path.exists():
        promises = json.loads(path.read_text(encoding="utf-8"))
    native = {(row["op"], row["what"]): row for row in rows if row["implementation"] == "native"}
    gains = [
        Gain(op, what, promise["promised"], promise["seconds"] - native[op, what]["seconds_per_call"])
        for (op, what), promise in ((_key(name), promise) for name, promise in promises.items())
        if (op, what) in native
    ]
    if path is not None:
        for move in moves:
            promises[f"{move.op} {move.what}"] = {
                "seconds": move.seconds / move.calls,
                "promised": move.saves / move.calls,
            }
        path.write_text(json.dumps(promises, indent=1) + "\n", encoding="utf-8")
    return Advice(moves, gains, costs, sum(row["seconds"] for row in rows))


def _key(name: str) -> tuple[str, str]:
    op, what = name.rsplit(" ", 1)
    return op, what
