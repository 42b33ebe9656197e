# SPDX-License-Identifier: Apache-2.0
"""Sample inputs of ops: small random arrays, made only when a test asks for them.

The same call gives the same numbers in every run, whatever ran before it. Random numbers have both signs, stay away
from 0 and never repeat, so that no sample lies on a kink by accident; kinks are given as such (``at=``).
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad.registry import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Shapes that one input, and two inputs that broadcast, are tried with.
_SHAPES = ((2, 3), (), (0, 3))
_PAIRS = (
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((), (2,)),
    ((3,), ()),
    ((), ()),
    ((4, 1), (4, 0)),
    ((0,), (1,)),
)


def array(*shape: int, dtype: Any = np.float64) -> Any:
    """Random numbers of both signs, between 0.3 and 1.7 in size; of a complex dtype in both parts.

    Two calls in one expression give different numbers.

    >>> array(2, 3).shape, array(dtype=np.complex64).dtype
    ((2, 3), dtype('complex64'))
    """
    # Where the caller stands in its own code is the seed.
    return _Random(sys._getframe(1).f_lasti).both_signs(shape, dtype)


def between(low: float, high: float, *shape: int, dtype: Any = np.float64) -> Any:
    """Random numbers of a real dtype from an interval, as `array` gives them.

    >>> bool(np.all(between(1.0, 2.0, 4) > 1))
    True
    """
    return _Random(sys._getframe(1).f_lasti).real(low, high, shape, dtype)


class _Random:
    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def both_signs(self, shape: Sequence[int], dtype: Any) -> Any:
        if np.dtype(dtype).kind == "c":
            return np.asarray(self.both_signs(shape, np.float64) + 1j * self.both_signs(shape, np.float64), dtype)
        size = np.prod(shape, dtype=int)
        signs = self.rng.permutation(np.resize([1.0, -1.0], size))
        return np.asarray((signs * self.rng.uniform(0.3, 1.7, size)).reshape(shape), dtype)

    def real(self, low: float, high: float, shape: Sequence[int], dtype: Any) -> Any:
        return np.asarray(self.rng.uniform(low, high, shape), dtype)

    def one(self, interval: tuple[float, float] | None, shape: Sequence[int], dtype: Any) -> Any:
        if interval is None or np.dtype(dtype).kind == "c":
            return self.both_signs(shape, dtype)
        return self.real(*interval, shape, dtype)


def unary(
    low: float | None = None,
    high: float | None = None,
    *,
    complex: bool = False,
    at: Sequence[float] = (),
    **attributes: Any,
) -> Callable[[], list[Sample]]:
    """Samples of an op with one array input.

    Parameters
    ----------
    low, high : float, optional
        Where the op is defined; numbers of both signs when left out.
    complex : bool
        Whether the op takes complex numbers as well; those are taken from both sides of both axes.
    at : sequence of float
        Points that deserve a sample of their own, such as zeros and kinks.
    **attributes
        The same for all samples.

    >>> unary(0.5, 2.0)()[1].args[0].shape
    ()
    """

    def samples() -> list[Sample]:
        random = _Random(_seed(low, high, complex, attributes))
        interval = None if low is None or high is None else (low, high)
        arrays = [random.one(interval, shape, np.float64) for shape in _SHAPES]
        arrays.append(random.one(interval, (3, 2), np.float64).T)
        arrays.append(random.one(interval, (3,), np.float32))
        if complex:
            arrays += [random.one(None, (2, 2), np.complex128), random.one(None, (), np.complex128)]
            arrays.append(random.one(None, (2,), np.complex64))
        if len(at):
            arrays.append(np.array(at, np.float64))
        return [Sample(a, **attributes) for a in arrays]

    return samples


def pairs(
    first: tuple[float, float] | None = None,
    second: tuple[float, float] | None = None,
    *,
    complex: bool = False,
    at: Sequence[tuple[float, float]] = (),
    scalar: float = 0.75,
) -> Callable[[], list[Sample]]:
    """Samples of an op with two array inputs that broadcast.

    Parameters
    ----------
    first, second : (low, high), optional
        Where each input is taken from; numbers of both signs when left out.
    complex : bool
        Whether the op takes complex numbers as well.
    at : sequence of pairs
        Points that deserve a sample of their own, such as zeros and ties.
    scalar : float
        A Python number, which does not change the dtype of what it meets.

    >>> [s.args[1].shape for s in pairs()()[:2]]
    [(2, 3), (3,)]
    """

    def samples() -> list[Sample]:
        random = _Random(_seed(first, second, complex))

        def pair(x_shape: Sequence[int], y_shape: Sequence[int], x_dtype: Any, y_dtype: Any) -> Sample:
            return Sample(random.one(first, x_shape, x_dtype), random.one(second, y_shape, y_dtype))

        found = [pair(x, y, np.float64, np.float64) for x, y in _PAIRS]
        found += [Sample(x.T, y) for x, y in [pair((3, 2), (3,), np.float64, np.float64).args]]
        found += [pair((2, 3), (3,), np.float32, np.float32), pair((2,), (2,), np.float32, np.float64)]
        found += [
            Sample(random.one(first, (2, 2), np.float64), scalar),
            Sample(random.one(first, (2,), np.float32), scalar),
            Sample(scalar, random.one(second, (2,), np.float32)),
            Sample(random.one(first, (3,), np.float64), np.array([1, 2, 3])),
            Sample(np.array([1, 2, 3]), random.one(second, (3,), np.float64)),
        ]
        if complex:
            found += [pair((2, 1), (2,), np.complex128, np.complex128), pair((2,), (), np.complex128, np.float64)]
            found += [pair((2,), (2, 2), np.float64, np.complex128), pair((2,), (2,), np.complex64, np.complex64)]
            found.append(pair((2,), (2,), np.complex64, np.float32))
        if len(at):
            found.append(Sample(*np.array(at, np.float64).T))
        return found

    return samples


def _seed(*facts: Any) -> int:
    return zlib.crc32(repr(facts).encode())
