# SPDX-License-Identifier: Apache-2.0
"""Ops that pick elements: indexing, take, sort and kin; and the scatter that undoes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import mixgrad.numpy as mnp
from mixgrad.ops._axes import along, sum_to
from mixgrad.ops._samples import array
from mixgrad.protocol import implements
from mixgrad.registry import Sample, op


@op(
    inputs=("a",),
    saves="",
    samples=lambda: [
        Sample(array(4), 1),
        Sample(array(4), slice(None, None, -2)),
        Sample(array(3, 4), (slice(1, None), -1)),
        Sample(array(3, 4), (..., None, slice(0, 0))),
        Sample(array(2, 3), ()),
        Sample(array(), ...),
        Sample(array(5), [0, 3, 3, -1, 3]),
        Sample(array(3, 4), np.array([[0, 2], [2, 2]])),
        Sample(array(3, 4), (np.array([0, 0, 2]), np.array([1, 1, 3]))),
        Sample(array(3, 4, 2), (np.array([[0], [2]]), slice(None, None, 2), np.array([1, 1, 0]))),
        Sample(array(3, 4, 2), (0, slice(None), [1, 0, 1])),
        Sample(array(3, 4), (None, [1, 1], slice(1, 3))),
        Sample(array(3, 2), np.array([True, False, True])),
        Sample(array(2, 3), np.array([[True, False, True], [False, True, True]])),
        Sample(array(2, 3), (np.array([False, True]), [2, 2, 0])),
        Sample(array(3), np.array([], int)),
        Sample(array(0, 2), np.zeros(0, bool)),
        Sample(array(2), True),
        Sample(array(5, dtype=np.float32), [1, 1]),
        Sample(array(2, 3, dtype=np.complex128), (1, [2, 2])),
        Sample(array(4, dtype=np.complex64), slice(1, 3)),
    ],
)
def getitem(a: Any, index: Any) -> Any:
    """``a[index]``, with every kind of index that NumPy has."""
    return a[index]


@op(
    inputs=("values",),
    saves="",
    samples=lambda: [
        Sample(array(3), [0, 2, 2], (4,)),
        Sample(array(3), slice(1, 4), (5,)),
        Sample(array(), 1, (3,)),
        Sample(array(2, 3), (slice(None), np.array([0, 1, 1])), (2, 2)),
        Sample(array(2, 2), np.array([[0, 1], [1, 1]]), shape=(3,)),
        Sample(array(2), np.array([True, False, True]), (3,)),
        Sample(array(0), np.array([], int), (3,)),
        Sample(array(3, dtype=np.float32), [1, 1, 0], (2,)),
        Sample(array(3, dtype=np.complex128), [1, 1, 0], (2,)),
    ],
)
def index_add(values: Any, index: Any, shape: Any) -> Any:
    """Zeros of this shape, to which `values` are added at `index`; where an element is named twice, both count."""
    values = np.asarray(values)
    out = np.zeros(shape, values.dtype)
    if _names_each_once(index):
        out[index] = values
    else:
        np.add.at(out, index, values)
    return out


getitem.gradient(lambda g, a, out, index: index_add(g, index, a.shape))
index_add.gradient(lambda g, values, out, index: sum_to(g[index], values.shape))


def _names_each_once(index: Any) -> bool:
    """Whether no element can be named twice: by slices, integers and boolean arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is ...
        or isinstance(part, (int, slice, np.integer))
        or (isinstance(part, np.ndarray) and part.dtype == bool)
        for part in parts
    )


# --- picking along an axis -------------------------------------------------------------------------------------------


@op(
    inputs=("a",),
    saves="",
    numpy=np.take,
    samples=lambda: [
        Sample(array(3), [2, 2, 0]),
        Sample(array(2, 3), np.array([[5, 0], [-1, 5]])),
        Sample(array(2, 3), [0, 2, 2], axis=1),
        Sample(array(2, 3, 2), np.array([[0, 1], [2, 0]]), -2),
        Sample(array(2, 3), 1, 0),
        Sample(array(3), [4, -1, 7], mode="wrap"),
        Sample(array(2, 3), [9, -5, 1], axis=1, mode="clip"),
        Sample(array(3), np.array([], int)),
        Sample(array(0, 2), [1, 1, 0], axis=1),
        Sample(array(3, dtype=np.float32), [1, 1]),
        Sample(array(3, dtype=np.complex128), [1, 1]),
    ],
)
def take(a: Any, indices: Any, axis: int | None = None, *, mode: Any = "raise") -> Any:
    return np.take(a, indices, axis, mode=mode)


@take.gradient(argument=0)
def _take_a(g: Any, a: Any, out: Any, indices: Any, axis: int | None, mode: str) -> Any:
    n = a.size if axis is None else a.shape[axis]
    places = np.asarray(indices).astype(np.intp)
    if mode == "wrap":
        places %= n
    elif mode == "clip":
        places = places.clip(0, n - 1)
    if axis is None:
        return mnp.reshape(index_add(g, places, (n,)), a.shape)
    return index_add(g, along(axis % a.ndim, places), a.shape)


@op(
    inputs=("arr",),
    saves="",
    numpy=np.take_along_axis,
    samples=lambda: [
        Sample(array(2, 3), np.array([[0, 2, 2, 1], [1, 1, 0, -1]]), 1),
        Sample(array(2, 3), np.array([[1, 0, 1]]), axis=0),
        Sample(array(2, 3), np.array([[2]]), -1),
        Sample(array(1, 3), np.array([[0], [2], [2]]), axis=1),
        Sample(array(2, 3), np.array([5, 5, 0]), axis=None),
        Sample(array(2, 3), np.zeros((2, 0), int), 1),
        Sample(array(2, 3, dtype=np.float32), np.array([[1], [1]]), 1),
        Sample(array(2, 3, dtype=np.complex128), np.array([[1], [1]]), 1),
    ],
)
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    return np.take_along_axis(arr, indices, axis)


@take_along_axis.gradient(argument=0)
def _take_along_axis_arr(g: Any, arr: Any, out: Any, indices: Any, axis: int | None) -> Any:
    if axis is None:
        return mnp.reshape(index_add(g, indices, (arr.size,)), arr.shape)
    mesh: list[Any] = list(np.ix_(*(np.arange(n) for n in arr.shape)))
    mesh[axis] = indices
    return index_add(g, tuple(mesh), arr.shape)


@implements(np.compress)
def compress(condition: Any, a: Any, axis: int | None = None) -> Any:
    return mnp.take(a, np.flatnonzero(condition), axis)


@implements(np.extract)
def extract(condition: Any, arr: Any) -> Any:
    return mnp.take(arr, np.flatnonzero(condition))


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    return mnp.take(arr, np.delete(np.arange(arr.size if axis is None else arr.shape[axis]), obj), axis)


# --- in order --------------------------------------------------------------------------------------------------------


@op(
    inputs=("a",),
    saves="a",
    numpy=np.sort,
    samples=lambda: [
        Sample(array(5)),
        Sample(array(2, 3)),
        Sample(array(3, 2), axis=0),
        Sample(array(2, 3), None),
        Sample(array(0)),
        Sample(array(2, 0)),
        Sample(array(4, dtype=np.float32), kind="stable"),
        Sample(array(4, dtype=np.complex128)),
    ],
)
def sort(a: Any, axis: int | None = -1, kind: Any = None) -> Any:
    return np.sort(a, axis, kind)


@sort.gradient(argument=0)
def _sort_a(g: Any, a: Any, out: Any, axis: int | None) -> Any:
    order = np.argsort(a, axis, kind="stable")
    return _brought_back(g, a.shape, np.argsort(order, axis), axis)


@op(
    inputs=("a",),
    saves="a output",
    numpy=np.partition,
    samples=lambda: [
        Sample(array(5), 2),
        Sample(array(2, 6), (1, 3)),
        Sample(array(3, 2), 0, axis=0),
        Sample(array(2, 3), 1, None),
        Sample(array(4, dtype=np.float32), 1),
        Sample(array(4, dtype=np.complex128), 1),
    ],
)
def partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = "introselect") -> Any:
    return np.partition(a, kth, axis, kind)


@partition.gradient(argument=0)
def _partition_a(g: Any, a: Any, out: Any, axis: int | None) -> Any:
    # np.argpartition may settle ties and the rest otherwise than np.partition did: match the values, in order.
    before, after = (np.argsort(x, axis, kind="stable") for x in (a, out))
    went = np.empty_like(before)
    np.put_along_axis(went, before, after, axis)
    return _brought_back(g, a.shape, went, axis)


def _brought_back(g: Any, shape: tuple[int, ...], went: Any, axis: int | None) -> Any:
    """`g` in the order of the input, whose elements went to these places."""
    return mnp.reshape(mnp.take(g, went), shape) if axis is None else mnp.take_along_axis(g, went, axis)
