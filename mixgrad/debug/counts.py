# SPDX-License-Identifier: Apache-2.0
"""Live objects, calls by implementation, and the check for arrays that change while they are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from mixgrad import _core

__all__ = ["check_mutation", "counters", "reset_counts", "warn_fallbacks"]


def counters() -> dict[str, int]:
    """Count what is alive in the core.

    Returns
    -------
    dict
        ``buffers`` and ``buffer_bytes``: blocks of memory and their total size in bytes; ``values``, ``arrays``,
        ``entries`` and ``windows``: objects of the tape. Each returns to where it was when the last Array and tape are gone.

    Examples
    --------
    >>> import mixgrad
    >>> before = mixgrad.debug.counters()
    >>> gradient = float(mixgrad.grad(lambda x: x * x)(3.0))
    >>> mixgrad.debug.counters() == before
    True
    """
    return dict(_core.counters())


def reset_counts() -> None:
    """Set the registry's counts of calls back to zero."""
    _core.reset_counts()


def warn_fallbacks(on: bool = True) -> None:
    """Warn, once per op, when a native gradient declines a call and the Python one runs. Fallbacks are counted in any case.

    Parameters
    ----------
    on : bool
        False: do not warn. Each call of this function lets every op warn again.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.debug.warn_fallbacks(False)
    """
    _core.tell_fallbacks(on)


@contextlib.contextmanager
def _restored(mode: str) -> Iterator[None]:
    try:
        yield
    finally:
        _core.set_mutation_check(mode)


def check_mutation(mode: Literal["full", "sampled", "off"]) -> contextlib.AbstractContextManager[None]:
    """Choose how arrays that the tape shares with you are watched for changes in place.

    Parameters
    ----------
    mode : {"full", "sampled", "off"}
        ``sampled`` (the default) compares one cache line of each page of memory, ``full`` every byte. Arrays of up to
        16 KiB are copied in any case.

    Returns
    -------
    context manager
        The mode holds from the call on; used in a ``with`` statement, until the end of the block.

    Examples
    --------
    >>> import mixgrad
    >>> with mixgrad.debug.check_mutation("full"):
    ...     gradient = mixgrad.grad(lambda x: x * x)(3.0)
    """
    before = _core.get_mutation_check()
    _core.set_mutation_check(mode)
    return _restored(before)
