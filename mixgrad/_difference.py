# SPDX-License-Identifier: Apache-2.0
"""How two results of one computation differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# In units in the last place: two good ways to compute a gradient round differently, and no more than this.
_ULPS = 200


class Difference(NamedTuple):
    """Where and by how much two arrays differ.

    Attributes
    ----------
    wrong, size : int
        How many elements differ, and of how many.
    first, worst : tuple of int
        The first element that differs, and the one that differs most.
    first_values, worst_values : tuple
        What was expected and what was found there.
    error : float
        The largest difference, relative to the largest element that was expected.
    text : str
        The same in words.
    """

    wrong: int
    size: int
    first: tuple[int, ...]
    worst: tuple[int, ...]
    first_values: tuple[Any, Any]
    worst_values: tuple[Any, Any]
    error: float
    text: str


def difference(
    expected: Any,
    found: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("Python", "native"),
) -> Difference | None:
    """The difference of two results; None if they agree.

    Parameters
    ----------
    expected, found : ndarray or None
        None is zero.
    rtol, atol : float, optional
        The allowed difference. `rtol` is 200 times the dtype's resolution when left out, `atol` is `rtol` times the
        largest element of `expected`.
    names : tuple of str
        Who gave the two, for the text.
    """
    if expected is None and found is None:
        return None
    if expected is None or found is None:
        there = found if expected is None else expected
        expected, found = (np.zeros_like(there) if one is None else one for one in (expected, found))
    expected, found = np.asarray(expected), np.asarray(found)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        text = f"{names[0]} gives {expected.dtype} of shape {expected.shape}, {names[1]} {found.dtype} of shape {found.shape}"
        return Difference(found.size, found.size, (), (), (None, None), (None, None), np.inf, text)
    if np.array_equal(expected, found):
        # What most comparisons come to.
        return None
    with np.errstate(all="ignore"):
        if expected.dtype.kind in "fc":
            rtol = _ULPS * float(np.finfo(expected.dtype).eps) if rtol is None else rtol
            scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
            allowed = rtol * scale if atol is None else atol
            wrong = ~np.isclose(found, expected, rtol=rtol, atol=allowed, equal_nan=True)
        else:
            scale, wrong = 1.0, np.asarray(expected != found)
        count = int(np.count_nonzero(wrong))
        if count == 0:
            return None
        size = np.where(wrong, np.abs(np.subtract(found, expected, dtype=np.result_type(found, np.float32))), -1.0)
    worst = _index(int(np.argmax(np.where(np.isnan(size), np.inf, size))), expected.shape)
    first = _index(int(np.argmax(wrong)), expected.shape)
    first_values, worst_values = (expected[first], found[first]), (expected[worst], found[worst])
    text = f"{count} of {found.size} elements differ; first {_at(first, first_values, names)}"
    if worst != first:
        text += f"; worst {_at(worst, worst_values, names)}"
    error = float(size[worst]) / (scale or 1.0)
    return Difference(count, found.size, first, worst, first_values, worst_values, error, text)


def largest_error(expected: Any, found: Any) -> float:
    """The largest difference of two results of one shape, relative to the largest element that was expected."""
    found_difference = difference(expected, found, rtol=0.0, atol=0.0)
    return 0.0 if found_difference is None else found_difference.error


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def _at(index: tuple[int, ...], values: tuple[Any, Any], names: tuple[str, str]) -> str:
    where = f"element {list(index)}: " if index else ""
    return f"{where}{names[0]} gives {values[0]!s}, {names[1]} {values[1]!s}"
