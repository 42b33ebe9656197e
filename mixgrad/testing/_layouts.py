# SPDX-License-Identifier: Apache-2.0
"""The same numbers in all the memory layouts that a gradient meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LAYOUTS"]


def _reversed(g: Any) -> Any:
    return np.ascontiguousarray(g[::-1])[::-1] if g.ndim else g


def _strided(g: Any) -> Any:
    if not g.ndim:
        return g
    wide = np.full((*g.shape[:-1], 2 * g.shape[-1]), np.nan, g.dtype)
    wide[..., ::2] = g
    return wide[..., ::2]


def _repeated(g: Any) -> Any:
    return np.broadcast_to(g.reshape(-1)[:1].reshape(()), g.shape) if g.ndim and g.size else g


def _read_only(g: Any) -> Any:
    copy = np.array(g)
    copy.flags.writeable = False
    return copy


def _not_aligned(g: Any) -> Any:
    memory = np.zeros(g.nbytes + 1, np.uint8)
    shifted = np.frombuffer(memory, g.dtype, g.size, offset=1) if g.size else g
    if g.size:
        shifted.flags.writeable = True
        shifted[:] = g.reshape(-1)
    return shifted.reshape(g.shape)


def _number(g: Any) -> Any:
    return g if g.ndim else g.item()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in Fortran order": lambda g: np.array(g, order="F"),
    "in reverse order in memory": _reversed,
    "every other element in memory": _strided,
    "one number that is broadcast, with strides of 0": _repeated,
    "read-only": _read_only,
    "not aligned in memory": _not_aligned,
    "a Python number": _number,
}
"""How what arrives at an output may lie in memory, in words, and a function that lays it so."""
