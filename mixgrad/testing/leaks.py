# SPDX-License-Identifier: Apache-2.0
"""What stays alive."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mixgrad import _core
from mixgrad.debug.memory import live_buffers, track_buffers
from mixgrad.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["assert_no_leaks", "left_since"]


def left_since(before: dict[str, int]) -> str:
    """What is alive beyond what was counted `before`, in words; nothing if there is no more."""
    if not _more(before):
        return ""
    # Python collects cycles when it likes.
    gc.collect()
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in _more(before).items())


def _more(before: dict[str, int]) -> dict[str, int]:
    now = _core.counters()
    return {name: now[name] - count for name, count in before.items() if now[name] > count}


@contextmanager
def assert_no_leaks() -> Iterator[None]:
    """For a ``with`` block: after it, mixgrad's live buffers, arrays, entries and tapes are as many as before.

    Arrays made before the block may be used in it; what the block makes must be gone at its end. The error lists what is left, by
    the op and line that made it, and the op whose gradient keeps it.

    Examples
    --------
    >>> import mixgrad
    >>> from mixgrad.testing import assert_no_leaks
    >>> with assert_no_leaks():
    ...     _ = mixgrad.grad(lambda x: x * x)(2.0)
    """
    gc.collect()
    before = _core.counters()
    with track_buffers():
        yield
        left = left_since(before)
        if left:
            made = "".join(f"\n  {one}" for one in live_buffers()[:10])
            raise CheckError(
                f"the block left behind {left}. Something still holds an Array or a Tape: a global, a closure, an exception's "
                f"traceback, or a gradient that keeps what it was given{made and ':'}{made}"
            )
