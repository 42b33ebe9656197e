# SPDX-License-Identifier: Apache-2.0
"""What several families need of shapes and axes."""

from __future__ import annotations

from typing import Any

import mixgrad.numpy as mnp


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum `g` over the axes along which an array of this shape was broadcast to it.

    >>> sum_to(mnp.ones((3, 2)), (1, 2))
    array([[3., 3.]])
    """
    if g.shape == shape:
        return g
    lead = g.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1))
    return mnp.reshape(mnp.sum(g, axis=axes), shape)


def along(axis: int, index: Any) -> tuple[Any, ...]:
    """The index that selects `index` on one axis, counted from the front, and all of the axes before it.

    >>> along(1, 0)
    (slice(None, None, None), 0)
    """
    return (*(slice(None),) * axis, index)
