# SPDX-License-Identifier: Apache-2.0
"""Live buffers, by the op that made them and the line that called it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LiveBuffers", "live_buffers", "track_buffers"]


class LiveBuffers(NamedTuple):
    """Buffers of one origin that are alive.

    Attributes
    ----------
    op, what, implementation : str
        Which op's forward or gradient made them, and in which language it ran; empty for what was made outside of ops.
    where : tuple of (str, int) or None
        File and line where the op was called.
    buffers, nbytes : int
        How many there are, and their size together. Memory that belongs to others (an ndarray of yours) counts as they do.
    kept_by, kept_in : str
        The op whose gradient was given the buffer and still holds it after its return, and the language it is written in;
        empty if none does.
    """

    op: str
    what: str
    implementation: str
    where: tuple[str, int] | None
    buffers: int
    nbytes: int
    kept_by: str
    kept_in: str

    def __str__(self) -> str:
        made = f"by the {self.what} of op '{self.op}' ({self.implementation})" if self.op else "outside of ops"
        at = f" at {self.where[0]}:{self.where[1]}" if self.where else ""
        kept = f", kept by the {self.kept_in} gradient of op '{self.kept_by}'" if self.kept_by else ""
        plural = "s" if self.buffers > 1 else ""
        return f"{self.buffers} buffer{plural} ({self.nbytes} bytes) made {made}{at}{kept}"


@contextlib.contextmanager
def track_buffers() -> Iterator[None]:
    """For a ``with`` block: keeps account of every buffer that is made in it, for `live_buffers`; in all threads.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> with mixgrad.debug.track_buffers():
    ...     with mixgrad.Tape() as tape:
    ...         y = np.exp(tape.watch(np.ones(4)))
    ...     for made in mixgrad.debug.live_buffers():
    ...         if made.op:
    ...             print(made.op, made.what, made.buffers, made.nbytes)
    exp forward 1 32
    """
    _core.start_looking("buffers")
    try:
        yield
    finally:
        _core.stop_looking("buffers")


def live_buffers() -> list[LiveBuffers]:
    """The buffers that are alive, of those made since `track_buffers` was entered, the largest origin first.

    Returns
    -------
    list of LiveBuffers
        Empty outside of such a block.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.debug.live_buffers()
    []
    """
    sums: dict[tuple[str, str, str, tuple[str, int] | None, str, str], list[int]] = {}
    for op, what, implementation, where, size, kept_by, kept_in in _core.live_buffers():
        row = sums.setdefault((op, what, implementation, where, kept_by, kept_in), [0, 0])
        row[0] += 1
        row[1] += size
    found = [
        LiveBuffers(op, what, by, where, buffers, size, keeper, language)
        for (op, what, by, where, keeper, language), (buffers, size) in sums.items()
    ]
    return sorted(found, key=lambda one: -one.nbytes)
