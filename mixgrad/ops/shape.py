# SPDX-License-Identifier: Apache-2.0
"""Ops that move elements about: reshape, transpose, concatenate, split, roll, pad and kin."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

import mixgrad.numpy as mnp
from mixgrad._core import Array
from mixgrad.errors import UnsupportedError
from mixgrad.ops._axes import along
from mixgrad.ops._samples import array
from mixgrad.ops.index import index_add
from mixgrad.protocol import implements
from mixgrad.registry import Sample, op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


# --- one array in another shape --------------------------------------------------------------------------------------


@op(
    inputs=("a",),
    saves="",
    numpy=np.reshape,
    samples=lambda: [
        Sample(array(2, 6), (3, 4)),
        Sample(array(2, 6), shape=-1),
        Sample(array(3, 4), (2, -1), order="F"),
        Sample(array(), (1, 1)),
        Sample(array(1, 1), ()),
        Sample(array(0, 3), (3, 0)),
        Sample(array(2, 3, dtype=np.float32), (6,)),
        Sample(array(2, 3, dtype=np.complex128), (3, 2)),
    ],
)
def reshape(a: Any, shape: Any, order: str = "C") -> Any:
    return np.reshape(a, shape, order=order)  # type: ignore[call-overload]


@reshape.gradient(argument=0)
def _reshape_a(g: Any, a: Any, out: Any, order: str) -> Any:
    return mnp.reshape(g, a.shape, order=_fixed(order, "reshape"))


def _fixed(order: str, name: str) -> str:
    if order not in ("C", "F"):
        raise UnsupportedError(
            f"{name} of an Array with order={order!r} would depend on how its memory happens to be laid out; choose 'C' or 'F'"
        )
    return order


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    return mnp.reshape(a, -1, order=_fixed(order, "ravel"))


@op(
    saves="",
    numpy=np.transpose,
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array(2, 3, 4), (1, 2, 0)),
        Sample(array(2, 3, 4), axes=(-1, 0, -2)),
        Sample(array(4)),
        Sample(array()),
        Sample(array(0, 3)),
        Sample(array(2, 3, dtype=np.float32)),
        Sample(array(2, 3, dtype=np.complex128), [1, 0]),
    ],
)
def transpose(a: Any, axes: Any = None) -> Any:
    return np.transpose(a, axes)


@transpose.gradient(argument=0)
def _transpose_a(g: Any, a: Any, out: Any, axes: Any) -> Any:
    return mnp.transpose(g, None if axes is None else inverse(axes, a.ndim))


def inverse(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """The axes that undo a transpose.

    >>> inverse((1, 2, 0), 3)
    (2, 0, 1)
    """
    back = [0] * ndim
    for i, axis in enumerate(axes):
        back[axis] = i
    return tuple(back)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    sources = normalize_axis_tuple(source, a.ndim, "source")
    places = normalize_axis_tuple(destination, a.ndim, "destination")
    if len(sources) != len(places):
        msg = "`source` and `destination` arguments must have the same number of elements"
        raise ValueError(msg)
    axes = [axis for axis in range(a.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        axes.insert(place, axis)
    return mnp.transpose(a, tuple(axes))


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    first, second = normalize_axis_index(axis1, a.ndim), normalize_axis_index(axis2, a.ndim)
    axes = list(range(a.ndim))
    axes[first], axes[second] = second, first
    return mnp.transpose(a, tuple(axes))


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    axis = normalize_axis_index(axis, a.ndim)
    start = normalize_axis_index(start, a.ndim + 1)
    return moveaxis(a, axis, start - 1 if axis < start else start)


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x: Any) -> Any:
    return swapaxes(x, -1, -2)


@op(
    inputs=("a",),
    saves="",
    numpy=np.expand_dims,
    samples=lambda: [
        Sample(array(2, 3), 0),
        Sample(array(2, 3), axis=-1),
        Sample(array(3), (0, 2)),
        Sample(array(), 0),
        Sample(array(0, 2), 1),
        Sample(array(2, dtype=np.float32), 1),
        Sample(array(2, dtype=np.complex128), 0),
    ],
)
def expand_dims(a: Any, axis: Any) -> Any:
    return np.expand_dims(a, axis)


expand_dims.gradient(lambda g, a, out: mnp.reshape(g, a.shape))


@op(
    saves="",
    numpy=np.squeeze,
    samples=lambda: [
        Sample(array(1, 3, 1)),
        Sample(array(1, 3, 1), 0),
        Sample(array(1, 3, 1), axis=(0, -1)),
        Sample(array(1, 1)),
        Sample(array()),
        Sample(array(1, 0)),
        Sample(array(2, 1, dtype=np.float32)),
        Sample(array(1, 2, dtype=np.complex128)),
    ],
)
def squeeze(a: Any, axis: Any = None) -> Any:
    return np.squeeze(a, axis)


squeeze.gradient(lambda g, a, out: mnp.reshape(g, a.shape))


@op(
    inputs=("array",),
    saves="",
    broadcasts=True,
    numpy=np.broadcast_to,
    samples=lambda: [
        Sample(array(3), (2, 3)),
        Sample(array(2, 1, 3), shape=(4, 2, 5, 3)),
        Sample(array(), (2, 2)),
        Sample(array(), ()),
        Sample(array(1), 3),
        Sample(array(4, 1), (4, 0)),
        Sample(array(2, 1, dtype=np.float32), (2, 3)),
        Sample(array(1, 2, dtype=np.complex128), (3, 2)),
    ],
)
def broadcast_to(array: Any, shape: Any) -> Any:
    return np.broadcast_to(array, shape)


broadcast_to.gradient(lambda g, array, out: g)


@implements(np.broadcast_arrays)
def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    return tuple(a if np.shape(a) == shape else mnp.broadcast_to(a, shape) for a in arrays)


def _at_least(arrays: tuple[Any, ...], ndim: int, shape_of: Callable[[Any], tuple[int, ...]]) -> Any:
    results = tuple(a if a.ndim >= ndim else mnp.reshape(a, shape_of(a.shape)) for a in map(as_array, arrays))
    return results[0] if len(results) == 1 else results


@implements(np.atleast_1d)
def atleast_1d(*arrays: Any) -> Any:
    return _at_least(arrays, 1, lambda _: (1,))


@implements(np.atleast_2d)
def atleast_2d(*arrays: Any) -> Any:
    return _at_least(arrays, 2, lambda shape: (1, *shape) if shape else (1, 1))


@implements(np.atleast_3d)
def atleast_3d(*arrays: Any) -> Any:
    return _at_least(
        arrays, 3, lambda shape: (*shape, 1) if len(shape) == 2 else (1, *shape, 1) if shape else (1, 1, 1)
    )


# --- the same values -------------------------------------------------------------------------------------------------


@op(
    saves="",
    numpy=np.copy,
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array()),
        Sample(array(0)),
        Sample(array(2, dtype=np.float32)),
        Sample(array(2, dtype=np.complex128)),
    ],
)
def copy(a: Any) -> Any:
    return np.copy(a)


copy.gradient(lambda g, a, out: g)


@op(
    inputs=("x",),
    saves="",
    numpy=getattr(np, "astype", ()),
    samples=lambda: [
        Sample(array(2, 3, dtype=np.float32), np.float64),
        Sample(array(), "f8"),
        Sample(array(0), np.complex128),
        Sample(array(2, dtype=np.float32), np.complex64),
        Sample(array(2, dtype=np.complex64), np.complex128),
        Sample(array(2), np.int64),
    ],
)
def astype(x: Any, dtype: Any, copy: bool = True) -> Any:
    return np.asarray(x).astype(dtype, copy=copy)


# The engine casts the gradient back, and takes its real part for a real input.
astype.gradient(lambda g, x, out: g)


# --- several arrays as one -------------------------------------------------------------------------------------------


@op(
    inputs="*arrays",
    saves="",
    numpy=np.concatenate,
    samples=lambda: [
        Sample([array(2, 3), array(1, 3)]),
        Sample([array(2, 1), array(2, 3), array(2, 0)], axis=-1),
        Sample((array(2, 2), array(3)), axis=None),
        Sample([array(4)]),
        Sample([array(2, dtype=np.float32), array(1)]),
        Sample([array(2, dtype=np.float32), array(1, dtype=np.float32)]),
        Sample([array(2, dtype=np.complex128), array(1)]),
        Sample([array(2), np.arange(3)]),
    ],
)
def concatenate(arrays: Any, axis: int | None = 0, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    return np.concatenate(arrays, axis, dtype=dtype, casting=casting)


@concatenate.gradient()
def _concatenate(op: Any, g: Any) -> list[Any]:
    axis = op.attributes["axis"]
    results: list[Any] = []
    start = 0
    for i, x in enumerate(op.inputs):
        stop = start + (x.size if axis is None else x.shape[axis])
        result = None
        if op.needs_gradient(i):
            result = g[along((axis or 0) % g.ndim, slice(start, stop))]
            if axis is None:
                result = mnp.reshape(result, x.shape)
        results.append(result)
        start = stop
    return results


@op(
    inputs="*arrays",
    saves="",
    numpy=np.stack,
    samples=lambda: [
        Sample([array(3), array(3)]),
        Sample([array(2, 3), array(2, 3)], axis=1),
        Sample((array(2, 3), array(2, 3), array(2, 3)), axis=-1),
        Sample([array(), array()]),
        Sample([array(0), array(0)], 1),
        Sample([array(2, dtype=np.float32), array(2, dtype=np.float32)]),
        Sample([array(2, dtype=np.complex128), array(2)]),
    ],
)
def stack(arrays: Any, axis: int = 0, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    return np.stack(arrays, axis, dtype=dtype, casting=casting)


@stack.gradient()
def _stack(op: Any, g: Any) -> list[Any]:
    axis = op.attributes["axis"] % g.ndim
    return [g[along(axis, i)] if op.needs_gradient(i) else None for i in range(len(op.inputs))]


@implements(np.vstack)
def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    return mnp.concatenate([atleast_2d(a) for a in tup], 0, dtype=dtype, casting=casting)


@implements(np.hstack)
def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    arrays = [atleast_1d(a) for a in tup]
    return mnp.concatenate(arrays, 0 if arrays and arrays[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@implements(np.dstack)
def dstack(tup: Sequence[Any]) -> Any:
    return mnp.concatenate([atleast_3d(a) for a in tup], 2)


@implements(np.column_stack)
def column_stack(tup: Sequence[Any]) -> Any:
    return mnp.concatenate([a if np.ndim(a) >= 2 else mnp.reshape(a, (-1, 1)) for a in tup], 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    return mnp.concatenate([arr, values], axis)


@implements(np.array)
def make(object: Any, dtype: Any = None, *, ndmin: int = 0, **options: Any) -> Any:
    """``mixgrad.numpy.array``: Arrays may stand anywhere in the nested lists."""
    if not _holds_array(object):
        return np.array(object, dtype, ndmin=ndmin, **options)
    result = mnp.copy(object) if isinstance(object, Array) else _join(object)
    if dtype is not None and result.dtype != dtype:
        result = mnp.astype(result, dtype)
    return mnp.expand_dims(result, tuple(range(ndmin - result.ndim))) if ndmin > result.ndim else result


@implements(np.asarray, np.asanyarray, np.ascontiguousarray)
def as_array(a: Any, dtype: Any = None, **options: Any) -> Any:
    """``mixgrad.numpy.asarray``: an Array stays what it is."""
    if isinstance(a, Array) and (dtype is None or a.dtype == dtype):
        return a
    return make(a, dtype) if _holds_array(a) else np.asarray(a, dtype, **options)


def _holds_array(value: Any) -> bool:
    return isinstance(value, Array) or (_is_list(value) and any(_holds_array(item) for item in value))


def _join(value: Any) -> Any:
    return mnp.stack([_join(item) for item in value]) if _is_list(value) and _holds_array(value) else value


@implements(np.full)
def full(shape: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Any:
    if not isinstance(fill_value, Array):
        return np.full(shape, fill_value, dtype, **options)
    return mnp.broadcast_to(as_array(fill_value, dtype), shape)


@implements(np.full_like)
def full_like(a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None) -> Any:
    return full(np.shape(a) if shape is None else shape, fill_value, np.result_type(a) if dtype is None else dtype)


# --- one array as several --------------------------------------------------------------------------------------------


@op(
    inputs=("ary",),
    saves="",
    multiple=True,
    samples=lambda: [
        Sample(array(6), 3),
        Sample(array(2, 4), 2, axis=1),
        Sample(array(5, 2), [1, 3]),
        Sample(array(2, 5), (2, 2, 4), axis=-1),
        Sample(array(5), [-2]),
        Sample(array(4), [3, 1]),
        Sample(array(4), [2, 9]),
        Sample(array(0, 2), 1),
        Sample(array(4, dtype=np.float32), 2),
        Sample(array(4, dtype=np.complex128), 2),
    ],
)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> tuple[Any, ...]:
    return tuple(np.split(ary, indices_or_sections, axis))


@op(
    inputs=("ary",),
    saves="",
    multiple=True,
    samples=lambda: [
        Sample(array(7), 3),
        Sample(array(2, 5), 2, axis=1),
        Sample(array(5, 2), [1, 3]),
        Sample(array(2), 4),
        Sample(array(4, dtype=np.float32), 3),
        Sample(array(4, dtype=np.complex128), 3),
    ],
)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> tuple[Any, ...]:
    return tuple(np.array_split(ary, indices_or_sections, axis))


def _split_gradient(op: Any, g: tuple[Any, ...]) -> Any:
    (ary,) = op.inputs
    axis = op.attributes["axis"] % ary.ndim
    sections = op.attributes["indices_or_sections"]
    if np.ndim(sections) == 0 or _is_sorted(list(sections), ary.shape[axis]):
        return mnp.concatenate(g, axis)
    # Some elements are in several pieces, or in none.
    bounds = [0, *sections, ary.shape[axis]]
    slices = [along(axis, slice(*ends)) for ends in pairwise(bounds)]
    return sum(index_add(piece, index, ary.shape) for piece, index in zip(g, slices, strict=True))


def _is_sorted(indices: list[int], n: int) -> bool:
    places = [max(0, i + n if i < 0 else i) for i in indices]
    return places == sorted(places)


split.gradient()(_split_gradient)
array_split.gradient()(_split_gradient)


@implements(np.split)
def split_to_list(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    return list(split(ary, indices_or_sections, axis))


@implements(np.array_split)
def array_split_to_list(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    return list(array_split(ary, indices_or_sections, axis))


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> Any:
    return _split_at(ary, indices_or_sections, "vsplit", 2, 0)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> Any:
    return _split_at(ary, indices_or_sections, "hsplit", 1, 1 if ary.ndim > 1 else 0)


@implements(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> Any:
    return _split_at(ary, indices_or_sections, "dsplit", 3, 2)


def _split_at(ary: Any, indices_or_sections: Any, name: str, ndim: int, axis: int) -> Any:
    if ary.ndim < ndim:
        msg = f"{name} only works on arrays of {ndim} or more dimensions"
        raise ValueError(msg)
    return mnp.split(ary, indices_or_sections, axis)


@implements(*[getattr(np, name) for name in ("unstack",) if hasattr(np, name)])
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    return tuple(moveaxis(x, axis, 0))


# --- other places for the elements -----------------------------------------------------------------------------------


@op(
    saves="",
    numpy=np.flip,
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array(2, 3), 0),
        Sample(array(2, 3, 2), axis=(-1, 0)),
        Sample(array()),
        Sample(array(0, 2), 1),
        Sample(array(3, dtype=np.float32)),
        Sample(array(3, dtype=np.complex128)),
    ],
)
def flip(m: Any, axis: Any = None) -> Any:
    return np.flip(m, axis)


flip.gradient(lambda g, m, out, axis: mnp.flip(g, axis))


@implements(np.fliplr)
def fliplr(m: Any) -> Any:
    return mnp.flip(m, 1)


@implements(np.flipud)
def flipud(m: Any) -> Any:
    return mnp.flip(m, 0)


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    first, second = (axis % m.ndim for axis in axes)
    # NumPy's own function refuses axes that do not fit.
    np.rot90(np.broadcast_to(0, m.shape), k, axes)
    if k % 4 == 0:
        return mnp.copy(m)
    if k % 4 == 2:
        return mnp.flip(m, (first, second))
    if k % 4 == 1:
        return swapaxes(mnp.flip(m, second), first, second)
    return mnp.flip(swapaxes(m, first, second), second)


@op(
    inputs=("a",),
    saves="",
    numpy=np.roll,
    samples=lambda: [
        Sample(array(5), 2),
        Sample(array(2, 3), -1),
        Sample(array(2, 3), 1, axis=1),
        Sample(array(2, 3), shift=(1, -2), axis=(0, 1)),
        Sample(array(2, 3), (1, 2), 0),
        Sample(array(0), 1),
        Sample(array(3, dtype=np.float32), 7),
        Sample(array(3, dtype=np.complex128), 1),
    ],
)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    return np.roll(a, shift, axis)


@roll.gradient(argument=0)
def _roll_a(g: Any, a: Any, out: Any, shift: Any, axis: Any) -> Any:
    return mnp.roll(g, tuple(-s for s in shift) if np.ndim(shift) else -shift, axis)


@op(
    inputs=("A",),
    saves="",
    numpy=np.tile,
    samples=lambda: [
        Sample(array(3), 2),
        Sample(array(2, 3), reps=(2, 1, 3)),
        Sample(array(2, 3), (2,)),
        Sample(array(2, 1, 2), (1, 3)),
        Sample(array(), 3),
        Sample(array(3), 0),
        Sample(array(0, 2), (2, 2)),
        Sample(array(3, dtype=np.float32), 2),
        Sample(array(3, dtype=np.complex128), 2),
    ],
)
def tile(A: Any, reps: Any) -> Any:
    return np.tile(A, reps)


@tile.gradient(argument=0)
def _tile_a(g: Any, A: Any, out: Any, reps: Any) -> Any:
    ndim = g.ndim
    times = np.ones(ndim, int)
    # An empty `reps` has nothing to say.
    if np.size(reps):
        times[ndim - np.size(reps) :] = reps
    lengths = (1,) * (ndim - A.ndim) + A.shape
    pairs = [length for pair in zip(times.tolist(), lengths, strict=True) for length in pair]
    return mnp.reshape(mnp.sum(mnp.reshape(g, pairs), axis=tuple(range(0, 2 * ndim, 2))), A.shape)


@op(
    inputs=("a",),
    saves="",
    numpy=np.repeat,
    samples=lambda: [
        Sample(array(3), 2),
        Sample(array(2, 3), 2),
        Sample(array(2, 3), 3, axis=0),
        Sample(array(2, 3), repeats=[1, 0, 2], axis=-1),
        Sample(array(2, 2), np.array([1, 0, 3, 1])),
        Sample(array(2, 3), [2], 1),
        Sample(array(3), 0),
        Sample(array(0, 2), 2, 1),
        Sample(array(), 3),
        Sample(array(3, dtype=np.float32), 2),
        Sample(array(3, dtype=np.complex128), [2, 1, 0]),
    ],
)
def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    return np.repeat(a, repeats, axis)


@repeat.gradient(argument=0)
def _repeat_a(g: Any, a: Any, out: Any, repeats: Any, axis: int | None) -> Any:
    shape: tuple[int, ...] = (a.size,) if axis is None or a.ndim == 0 else a.shape
    axis = 0 if axis is None else axis % len(shape)
    if np.size(repeats) == 1:
        times = int(np.reshape(repeats, ()))
        g = mnp.sum(mnp.reshape(g, (*shape[: axis + 1], times, *shape[axis + 1 :])), axis=axis + 1)
    else:
        g = index_add(g, along(axis, np.repeat(np.arange(shape[axis]), repeats)), shape)
    return mnp.reshape(g, a.shape)


@op(
    inputs=("array",),
    saves="",
    numpy=np.pad,
    samples=lambda: [
        Sample(array(3), 2),
        Sample(array(2, 3), ((1, 0), (2, 3)), constant_values=4.0),
        Sample(array(2, 3), ((1, 2),), "edge"),
        Sample(array(2, 3), ((5, 1), (0, 7)), mode="reflect"),
        Sample(array(4), (2, 3), mode="reflect", reflect_type="odd"),
        Sample(array(2, 3), 4, mode="symmetric"),
        Sample(array(3), (2, 4), mode="symmetric", reflect_type="odd"),
        Sample(array(2, 3), ((1, 4), (2, 2)), mode="wrap"),
        Sample(array(2, 3), ((1, 2), (3, 1)), mode="mean", stat_length=2),
        Sample(array(2, 3), ((1, 2), (3, 1)), mode="linear_ramp", end_values=5.0),
        Sample(array(0), (1, 1)),
        Sample(array(3, dtype=np.float32), 1),
        Sample(array(3, dtype=np.float32), 1, "edge"),
        Sample(array(3, dtype=np.complex128), 1, "wrap"),
    ],
)
def pad(
    array: Any,
    pad_width: Any,
    mode: Any = "constant",
    *,
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
) -> Any:
    return np.pad(array, pad_width, mode, **_pad_options(mode, constant_values, end_values, stat_length, reflect_type))


def _pad_options(
    mode: Any, constant_values: Any, end_values: Any, stat_length: Any, reflect_type: str
) -> dict[str, Any]:
    """The options that go with a mode: NumPy refuses others."""
    if mode == "constant":
        return {"constant_values": constant_values}
    if mode == "linear_ramp":
        return {"end_values": end_values}
    if mode in ("maximum", "mean", "median", "minimum"):
        return {"stat_length": stat_length}
    return {"reflect_type": reflect_type} if mode in ("reflect", "symmetric") else {}


@pad.gradient(argument=0)
def _pad_array(g: Any, array: Any, out: Any, pad_width: Any, mode: Any, stat_length: Any, reflect_type: str) -> Any:
    shape = array.shape
    if not shape:
        return g
    if isinstance(pad_width, dict):
        by_axis = {axis % len(shape): np.broadcast_to(width, 2) for axis, width in pad_width.items()}
        pad_width = [by_axis.get(axis, (0, 0)) for axis in range(len(shape))]
    widths: Any = np.broadcast_to(pad_width, (len(shape), 2)).tolist()
    if mode in ("constant", "empty"):
        return g[tuple(slice(before, before + n) for (before, _), n in zip(widths, shape, strict=True))]
    if mode in ("edge", "wrap") or (mode in ("reflect", "symmetric") and reflect_type == "even"):
        # Each element is one of the array's: padding their numbers tells which.
        places = np.pad(np.arange(array.size).reshape(shape), widths, mode)
        return mnp.reshape(index_add(g, places, (array.size,)), shape)
    if mode not in ("linear_ramp", "mean", "reflect", "symmetric"):
        raise UnsupportedError(
            f"pad with mode={mode!r} has no gradient in mixgrad; the modes constant, edge, empty, linear_ramp, mean, reflect, symmetric "
            "and wrap have one"
        )
    # Linear along each axis in turn: what it does to unit vectors is its matrix.
    for axis, (width, n) in enumerate(zip(widths, shape, strict=True)):
        lengths = None if stat_length is None else [np.broadcast_to(stat_length, (len(shape), 2))[axis], (1, 1)]
        options = _pad_options(mode, 0, 0, lengths, reflect_type)
        matrix = np.pad(np.eye(n, dtype=g.real.dtype), (width, (0, 0)), mode, **options)
        g = moveaxis(mnp.tensordot(g, matrix, (axis, 0)), -1, axis)
    return g


# --- diagonals and triangles -----------------------------------------------------------------------------------------


@op(
    saves="",
    numpy=np.diagonal,
    samples=lambda: [
        Sample(array(3, 3)),
        Sample(array(2, 4), 1),
        Sample(array(4, 2), offset=-2),
        Sample(array(2, 3, 4), 0, 0, 2),
        Sample(array(2, 3, 4), 1, axis1=-1, axis2=1),
        Sample(array(2, 2), 5),
        Sample(array(0, 2)),
        Sample(array(2, 2, dtype=np.float32)),
        Sample(array(2, 2, dtype=np.complex128)),
    ],
)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return np.diagonal(a, offset, axis1, axis2)


@diagonal.gradient(argument=0)
def _diagonal_a(g: Any, a: Any, out: Any, offset: int, axis1: int, axis2: int) -> Any:
    places = np.diagonal(np.arange(a.size).reshape(a.shape), offset, axis1, axis2)
    return mnp.reshape(index_add(g, places, (a.size,)), a.shape)


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return mnp.sum(mnp.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@implements(np.linalg.diagonal)
def matrix_diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return mnp.diagonal(x, offset, -2, -1)


@implements(np.linalg.trace)
def matrix_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return trace(x, offset, -2, -1, dtype)


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    if v.ndim != 1:
        # NumPy's own function refuses what is neither a vector nor a matrix.
        np.diag(np.broadcast_to(0, v.shape), k)
        return mnp.diagonal(v, k)
    n = v.size + abs(k)
    places = np.arange(v.size)
    return index_add(v, (places + max(-k, 0), places + max(k, 0)), (n, n))


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    return diag(ravel(as_array(v)), k)


@op(
    saves="",
    broadcasts=True,
    numpy=np.tril,
    samples=lambda: [
        Sample(array(3, 3)),
        Sample(array(2, 4), 1),
        Sample(array(2, 3, 2), k=-1),
        Sample(array(3)),
        Sample(array(0, 2)),
        Sample(array(2, 2, dtype=np.float32)),
        Sample(array(2, 2, dtype=np.complex128)),
    ],
)
def tril(m: Any, k: int = 0) -> Any:
    return np.tril(m, k)


tril.gradient(lambda g, m, out, k: mnp.tril(g, k))


@op(
    saves="",
    broadcasts=True,
    numpy=np.triu,
    samples=lambda: [
        Sample(array(3, 3)),
        Sample(array(2, 4), 1),
        Sample(array(2, 3, 2), k=-1),
        Sample(array(3)),
        Sample(array(0, 2)),
        Sample(array(2, 2, dtype=np.float32)),
        Sample(array(2, 2, dtype=np.complex128)),
    ],
)
def triu(m: Any, k: int = 0) -> Any:
    return np.triu(m, k)


triu.gradient(lambda g, m, out, k: mnp.triu(g, k))
