# SPDX-License-Identifier: Apache-2.0
"""The faults that `mutate` plants: ways for a gradient to be wrong that people have met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import mixgrad.numpy as mnp
from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAULTS", "KEPT", "Fault", "plain"]


class Fault(NamedTuple):
    """A way for a gradient to be wrong.

    Attributes
    ----------
    name : str
        In the report.
    plant : callable
        Called as ``(op, g, gradients)`` with what is right, one value per input; returns what is wrong, or None where the
        fault has no place.
    each : bool
        Whether it is planted in one input at a time: `plant` is then called as ``(op, g, gradients, i)`` and returns that
        input's gradient.
    hidden : bool
        Whether the values that it returns may be right: it does its harm elsewhere.
    """

    name: str
    plant: Callable[..., Any]
    each: bool = False
    hidden: bool = False


def plain(value: Any) -> Any:
    return _core.value(value) if type(value) is _core.Array else np.asarray(value)


def _arriving(op: _core.Entry, g: Any) -> Any:
    return g if isinstance(g, tuple) else (g,)


def _not_summed(op: _core.Entry, g: Any, gradients: Any, i: int) -> Any:
    """Takes the first of what should be summed: what arrives elsewhere along the broadcast axes is lost."""
    shape = np.shape(gradients[i])
    if isinstance(g, tuple) or shape == g.shape or len(shape) > g.ndim:
        return None
    padded = (1,) * (g.ndim - len(shape)) + shape
    if any(one not in (1, n) for one, n in zip(padded, g.shape, strict=True)):
        return None
    kept = np.zeros(g.shape, bool)
    kept[tuple(slice(1 if one == 1 else None) for one in padded)] = True
    return op.next(mnp.where(kept, g, 0))[i]


def _where_input(condition: Callable[[Any], Any]) -> Callable[..., Any]:
    def plant(op: _core.Entry, g: Any, gradients: Any, i: int) -> Any:
        x, gradient = op.inputs[i], gradients[i]
        if isinstance(x, _core.NotSaved) or np.shape(x) != np.shape(gradient):
            return None
        chosen = condition(np.real(plain(x)))
        return gradient * np.where(chosen, 2.0, 1.0).astype(gradient.dtype) if np.any(chosen) else None

    return plant


def _rounded(x: Any) -> Any:
    single = np.complex64 if x.dtype.kind == "c" else np.float32
    return x.astype(single).astype(x.dtype)


def _round_arriving(op: _core.Entry, g: Any, gradients: Any) -> Any:
    return op.next(tuple(map(_rounded, g)) if isinstance(g, tuple) else _rounded(g))


def _ignore_arriving(op: _core.Entry, g: Any, gradients: Any) -> Any:
    return op.next(tuple(map(np.ones_like, g)) if isinstance(g, tuple) else np.ones_like(plain(g)))


def _ignore_last(op: _core.Entry, g: Any, gradients: Any) -> Any:
    return op.next((*g[:-1], 0 * g[-1])) if isinstance(g, tuple) and len(g) > 1 else None


def _swap(op: _core.Entry, g: Any, gradients: Any) -> Any:
    if len(gradients) < 2 or any(x is None for x in gradients[:2]) or gradients[0].shape != gradients[1].shape:
        return None
    return (gradients[1], gradients[0], *gradients[2:])


def _contiguous(op: _core.Entry, g: Any, gradients: Any) -> Any:
    given = _arriving(op, g)
    if all(type(one) is _core.Array or one.flags.c_contiguous for one in given):
        return None
    read = tuple(one if type(one) is _core.Array else _in_order(one) for one in given)
    return op.next(read if isinstance(g, tuple) else read[0])


def _in_order(g: Any) -> Any:
    """What a loop over a pointer reads; nan where that is beyond the array's own memory."""
    found = np.full(g.size, np.nan, g.dtype)
    _, end = np.lib.array_utils.byte_bounds(g)
    here = min(g.size, (end - g.__array_interface__["data"][0]) // g.itemsize)
    found[:here] = np.lib.stride_tricks.as_strided(g, (here,), (g.itemsize,))
    return found.reshape(g.shape)


def _no_elements(op: _core.Entry, g: Any, gradients: Any) -> Any:
    if all(np.size(x) for x in (*op.inputs, *_arriving(op, g))):
        return None
    raise IndexError("index 0 is out of bounds for axis 0 with size 0")


def _write(op: _core.Entry, g: Any, gradients: Any) -> Any:
    given = _arriving(op, g)
    if any(type(one) is _core.Array for one in given):
        return None
    for one in given:
        np.multiply(one, 2, out=one)
    return gradients


class _Writable:
    """The memory of an array, as a pointer in C has it: the read-only flag is not known there."""

    def __init__(self, array: Any) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _write_memory(of: Callable[[_core.Entry, Any], Any]) -> Callable[..., Any]:
    def plant(op: _core.Entry, g: Any, gradients: Any) -> Any:
        arrays = [x for x in of(op, g) if isinstance(x, np.ndarray) and x.size and x.dtype.kind in "fc"]
        if not arrays:
            return None
        memory = np.asarray(_Writable(arrays[0]))
        memory -= 1
        return gradients

    return plant


KEPT: list[Any] = []
"""What the faults that leak have kept."""

_noise = np.random.default_rng(0)


def _keep(of: Callable[[_core.Entry, Any], Any]) -> Callable[..., Any]:
    def plant(op: _core.Entry, g: Any, gradients: Any) -> Any:
        values = [x for x in of(op, g) if isinstance(x, (np.ndarray, _core.Array))]
        KEPT.extend(values)
        return gradients if values else None

    return plant


def _saved(op: _core.Entry, g: Any) -> Any:
    return (*op.inputs, *op.outputs)


FAULTS = (
    Fault("zero", lambda op, g, gradients, i: 0 * gradients[i], each=True),
    Fault("sign", lambda op, g, gradients, i: -gradients[i], each=True),
    Fault("times 1.01", lambda op, g, gradients, i: 1.01 * gradients[i], each=True),
    Fault("times 1.0005", lambda op, g, gradients, i: 1.0005 * gradients[i], each=True),
    Fault("None", lambda op, g, gradients, i: None, each=True),
    Fault("not summed over broadcast axes", _not_summed, each=True),
    Fault("wrong where the input is negative", _where_input(lambda x: x < 0), each=True),
    Fault("wrong where the input is over 10", _where_input(lambda x: abs(x) > 10), each=True),
    Fault("conjugated", lambda op, g, gradients, i: mnp.conj(gradients[i]), each=True),
    Fault("rounded to float32", lambda op, g, gradients, i: _rounded(gradients[i]), each=True),
    Fault("noise of 1e-9", lambda op, g, gradients, i: gradients[i] * (1 + 1e-9 * _noise.random()), each=True),
    Fault("float32 inside", _round_arriving),
    Fault("ignores what arrives", _ignore_arriving),
    Fault("ignores the last output", _ignore_last),
    Fault("inputs swapped", _swap),
    Fault("takes g for contiguous", _contiguous),
    Fault("fails without elements", _no_elements),
    Fault("writes into g", _write, hidden=True),
    Fault("writes into g through a pointer", _write_memory(_arriving), hidden=True),
    Fault("writes into what is saved through a pointer", _write_memory(_saved), hidden=True),
    Fault("keeps g", _keep(_arriving), hidden=True),
    Fault("keeps what is saved", _keep(_saved), hidden=True),
)
"""The faults that `mutate` plants."""
