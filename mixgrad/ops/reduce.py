# SPDX-License-Identifier: Apache-2.0
"""Ops that reduce axes, and the cumulative ones, under NumPy's names.

`axis`, `keepdims`, `where` and `initial` are NumPy's. An `initial` of None is one that was not given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mixgrad.numpy as mnp
from mixgrad._core import Array
from mixgrad.ops._axes import along
from mixgrad.ops._samples import array
from mixgrad.protocol import implements
from mixgrad.registry import Sample, op


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes that are reduced, counted from the front."""
    if axis is None or ndim == 0:
        return tuple(range(ndim))
    return tuple(i % ndim for i in (axis if isinstance(axis, tuple) else (axis,)))


def _kept(shape: tuple[int, ...], axis: Any) -> tuple[int, ...]:
    """The shape with ``keepdims=True``."""
    axes = _axes(axis, len(shape))
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _count(shape: tuple[int, ...], axis: Any, where: Any) -> Any:
    """How many elements become one; 1 where there are none, so that it can divide."""
    if where is True:
        return math.prod(shape[i] for i in _axes(axis, len(shape))) or 1
    return np.maximum(np.sum(np.broadcast_to(where, shape), axis=axis, keepdims=True), 1)


def _spread(g: Any, shape: tuple[int, ...], axis: Any, where: Any = True) -> Any:
    """What arrives at each result, for all elements that it is made of."""
    g = mnp.broadcast_to(mnp.reshape(g, _kept(shape, axis)), shape)
    return g if where is True else mnp.where(where, g, 0)


def _given(initial: Any) -> dict[str, Any]:
    # None does not mean the same to NumPy as no argument, nor does 0: it turns -0.0 into 0.0.
    return {} if initial is None else {"initial": initial}


_MASK = np.array([[True, False, True], [False, True, True]])


def _samples(**attributes: Any) -> list[Sample]:
    """Samples that every reduction takes."""
    return [
        Sample(array(3), **attributes),
        Sample(array(2, 3), **attributes),
        Sample(array(2, 3), 0, **attributes),
        Sample(array(2, 3, 2), axis=(0, -1), **attributes),
        Sample(array(2, 3, 2), axis=-2, keepdims=True, **attributes),
        Sample(array(2, 3), keepdims=True, **attributes),
        Sample(array(2, 3).T[::-1], 1, **attributes),
        Sample(array(2, 3), axis=(), **attributes),
        Sample(array(), **attributes),
        Sample(array(2, 3, dtype=np.float32), 1, **attributes),
    ]


# --- sums ------------------------------------------------------------------------------------------------------------


@op(
    aliases=("reduce_sum",),
    inputs=("a",),
    saves="",
    numpy=np.sum,
    samples=lambda: [
        *_samples(),
        Sample(array(0)),
        Sample(array(2, 0), axis=1),
        Sample(array(2, 3), axis=1, where=_MASK),
        Sample(array(2, 3), where=np.array([True, False, True]), initial=2.0),
        Sample(array(3, dtype=np.float32), dtype=np.float64),
        Sample(array(2, 2, dtype=np.complex128), 0),
        Sample(array(3, dtype=np.complex64)),
        Sample(array(3), dtype=np.complex128),
    ],
)
def sum(
    a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    return np.sum(a, axis, dtype, keepdims=keepdims, where=where, **_given(initial))


sum.gradient(lambda g, a, out, axis, where: _spread(g, a.shape, axis, where))


@op(
    aliases=("reduce_mean",),
    inputs=("a",),
    saves="",
    numpy=np.mean,
    samples=lambda: [
        *_samples(),
        Sample(array(0, 2), axis=1),
        Sample(array(2, 3), axis=1, where=_MASK),
        Sample(array(2, 3), keepdims=True, where=np.array([True, False, True])),
        Sample(array(3, dtype=np.float32), dtype=np.float64),
        Sample(array(2, 2, dtype=np.complex128), 0),
        Sample(array(3, dtype=np.complex64)),
    ],
)
def mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, where: Any = True) -> Any:
    return np.mean(a, axis, dtype, keepdims=keepdims, where=where)


@mean.gradient(argument=0)
def _mean_a(g: Any, a: Any, out: Any, axis: Any, where: Any) -> Any:
    share = mnp.reshape(g, _kept(a.shape, axis)) / _count(a.shape, axis, where)
    return _spread(share, a.shape, axis, where)


# --- spread ----------------------------------------------------------------------------------------------------------


def _deviations(a: Any, axis: Any, where: Any) -> Any:
    """Of which the gradient is a multiple. That the mean moves too does not count: they sum to zero."""
    centred = mnp.conjugate(a - mnp.mean(a, axis=axis, keepdims=True, where=where))
    return centred if where is True else mnp.where(where, centred, 0)


def _freedom(shape: tuple[int, ...], axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    return _count(shape, axis, where) - (ddof if correction is None else correction)


def _corrected(correction: Any) -> dict[str, Any]:
    return {} if correction is None else {"correction": correction}


def _spread_samples() -> list[Sample]:
    return [
        *_samples(),
        Sample(array(4), ddof=1),
        Sample(array(4, 2), axis=0, correction=1),
        Sample(array(3, 2), axis=1, ddof=0.5, keepdims=True),
        Sample(array(2, 3), axis=1, where=_MASK),
        Sample(array(2, 0), axis=0),
        Sample(np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]), axis=1),
        Sample(array(3, dtype=np.float32), dtype=np.float64),
        Sample(array(2, 3, dtype=np.complex128), 1),
        Sample(array(3, dtype=np.complex64), ddof=1),
    ]


@op(aliases=("reduce_variance",), inputs=("a",), saves="a", numpy=np.var, samples=_spread_samples)
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = True,
    correction: Any = None,
) -> Any:
    return np.var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, **_corrected(correction))


@var.gradient(argument=0)
def _var_a(g: Any, a: Any, out: Any, axis: Any, ddof: Any, where: Any, correction: Any) -> Any:
    share = mnp.reshape(g, _kept(a.shape, axis)) * 2 / _freedom(a.shape, axis, where, ddof, correction)
    return share * _deviations(a, axis, where)


@op(aliases=("reduce_std",), inputs=("a",), saves="a output", numpy=np.std, samples=_spread_samples)
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = True,
    correction: Any = None,
) -> Any:
    return np.std(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, **_corrected(correction))


@std.gradient(argument=0)
def _std_a(g: Any, a: Any, out: Any, axis: Any, ddof: Any, where: Any, correction: Any) -> Any:
    g, out = (mnp.reshape(value, _kept(a.shape, axis)) for value in (g, out))
    # A constant has the smallest std there is: 0 is among its subgradients.
    still = out == 0
    share = mnp.where(still, 0, g / mnp.where(still, 1, out)) / _freedom(a.shape, axis, where, ddof, correction)
    return share * _deviations(a, axis, where)


# --- largest and smallest --------------------------------------------------------------------------------------------


def _extreme(g: Any, a: Any, out: Any, axis: Any, initial: Any, where: Any) -> Any:
    """What equals the result shares what arrives there; so does an equal `initial`, which has no gradient."""
    g, out = (mnp.reshape(value, _kept(a.shape, axis)) for value in (g, out))
    chosen = (a == out) & where
    ties = np.sum(chosen, axis=axis, keepdims=True)
    if initial is not None:
        ties = ties + (out == initial)
    # No ties at all: the result is nan.
    return mnp.where(chosen, g / np.maximum(ties, 1).astype(g.dtype), 0)


def _extreme_samples() -> list[Sample]:
    return [
        *_samples(),
        Sample(np.array([3.0, 1.0, 3.0])),
        Sample(np.array([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]]), axis=1),
        Sample(array(2, 3), axis=1, initial=0.0),
        Sample(array(2, 3), axis=0, initial=0.5, where=_MASK),
        Sample(array(0), initial=1.0),
        Sample(array(2, 0), axis=0),
        Sample(array(2, 2, dtype=np.complex128), 0),
    ]


@op(aliases=("amax", "reduce_max"), inputs=("a",), saves="a output", numpy=(np.max, np.amax), samples=_extreme_samples)
def max(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    return np.max(a, axis, keepdims=keepdims, where=where, **_given(initial))


max.gradient(_extreme)


@op(aliases=("amin", "reduce_min"), inputs=("a",), saves="a output", numpy=(np.min, np.amin), samples=_extreme_samples)
def min(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    return np.min(a, axis, keepdims=keepdims, where=where, **_given(initial))


min.gradient(_extreme)


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return mnp.max(a, axis=axis, keepdims=keepdims) - mnp.min(a, axis=axis, keepdims=keepdims)


# --- products --------------------------------------------------------------------------------------------------------


@op(
    aliases=("reduce_prod",),
    inputs=("a",),
    saves="a",
    numpy=np.prod,
    samples=lambda: [
        *_samples(),
        Sample(np.array([[2.0, 0.0, 3.0], [0.0, 5.0, 0.0], [1.0, 2.0, 3.0]]), axis=1),
        Sample(np.array([0.0, 2.0, 3.0])),
        Sample(array(0)),
        Sample(array(2, 0), axis=1),
        Sample(array(2, 3), axis=1, where=_MASK, initial=2.0),
        Sample(array(2, 3), axis=0, initial=-0.5, keepdims=True),
        Sample(array(3, dtype=np.float32), dtype=np.float64),
        Sample(array(2, 3, dtype=np.complex128), 1),
    ],
)
def prod(
    a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    return np.prod(a, axis, dtype, keepdims=keepdims, where=where, **_given(initial))


@prod.gradient(argument=0)
def _prod_a(g: Any, a: Any, out: Any, axis: Any, initial: Any, where: Any) -> Any:
    factors = a if where is True else mnp.where(where, a, 1)
    g = _spread(g if initial is None else g * initial, a.shape, axis, where)
    return g * _others(factors, _axes(axis, a.ndim))


def _others(a: Any, axes: tuple[int, ...]) -> Any:
    """For each element the product of all others along these axes, without a division, which zeros would spoil."""
    rest = tuple(i for i in range(a.ndim) if i not in axes)
    order = rest + axes
    moved = mnp.transpose(a, order)
    rows = mnp.reshape(moved, (*(a.shape[i] for i in rest), math.prod(a.shape[i] for i in axes)))
    before = _before(rows)
    after = _before(rows[..., ::-1])[..., ::-1]
    return mnp.transpose(mnp.reshape(before * after, moved.shape), np.argsort(order))


def _before(rows: Any) -> Any:
    """The product of all elements before each, along the last axis."""
    ones = np.ones((*rows.shape[:-1], 1), rows.dtype)
    return mnp.cumprod(mnp.concatenate([ones, rows[..., :-1]], axis=-1), axis=-1)[..., : rows.shape[-1]]


# --- cumulative ------------------------------------------------------------------------------------------------------


def _cumulative_samples() -> list[Sample]:
    return [
        Sample(array(3)),
        Sample(array(2, 3)),
        Sample(array(2, 5), 1),
        Sample(array(3, 2, 2), axis=-3),
        Sample(array(2, 3).T, 0),
        Sample(array()),
        Sample(array(0)),
        Sample(array(2, 0), axis=0),
        Sample(np.array([2.0, 0.0, 3.0, 0.0, 4.0])),
        Sample(array(4, dtype=np.float32)),
        Sample(array(4, dtype=np.float32), dtype=np.float64),
        Sample(array(2, 3, dtype=np.complex128), 1),
    ]


@op(inputs=("a",), saves="", numpy=np.cumsum, samples=_cumulative_samples)
def cumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return np.cumsum(a, axis, dtype)


@cumsum.gradient(argument=0)
def _cumsum_a(g: Any, a: Any, out: Any, axis: Any) -> Any:
    axis = 0 if axis is None else axis % g.ndim
    turned = along(axis, slice(None, None, -1))
    return mnp.reshape(mnp.cumsum(g[turned], axis=axis)[turned], a.shape)


@op(inputs=("a",), saves="a", numpy=np.cumprod, samples=_cumulative_samples)
def cumprod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return np.cumprod(a, axis, dtype)


@cumprod.gradient(argument=0)
def _cumprod_a(g: Any, a: Any, out: Any, axis: Any) -> Any:
    rows, order = mnp.reshape(a, (-1,)), (0,)
    if axis is not None and a.ndim:
        order = (*(i for i in range(a.ndim) if i != axis % a.ndim), axis % a.ndim)
        rows, g = mnp.transpose(a, order), mnp.transpose(g, order)
    found = mnp.transpose(_before(rows) * _tails(rows, g), np.argsort(order))
    return mnp.reshape(found, a.shape)


def _tails(rows: Any, g: Any) -> Any:
    """tail[i] = g[i] + rows[i + 1] * tail[i + 1] along the last axis; nothing is divided by an element, which might be 0.

    By doubling: after each step a tail covers twice as many elements.
    """
    factors, tails, step = rows[..., 1:], g, 1
    while step < rows.shape[-1]:
        longer = tails[..., :-step] + factors * tails[..., step:]
        tails = mnp.concatenate([longer, tails[..., -step:]], axis=-1)
        factors = factors[..., :-step] * factors[..., step:]
        step *= 2
    return tails


# --- averages --------------------------------------------------------------------------------------------------------


@implements(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    a = a if isinstance(a, Array) else np.asarray(a)
    if weights is None:
        found = mnp.mean(a, axis=axis, keepdims=keepdims)
        total: Any = np.full(found.shape, a.size / found.size if found.size else 0.0, found.dtype)
    else:
        weights = _weights(a, axis, weights)
        total = mnp.sum(weights, axis=axis, keepdims=keepdims)
        if np.any(total == 0):
            raise ZeroDivisionError("Weights sum to zero, can't be normalized")
        found = mnp.sum(a * weights, axis=axis, keepdims=keepdims) / total
    return (found, mnp.broadcast_to(total, found.shape)) if returned else found


def _weights(a: Any, axis: Any, weights: Any) -> Any:
    """Weights in the shape of `a`."""
    shape, given = np.shape(a), np.shape(weights)
    if shape == given:
        return weights
    axes = _axes(axis, len(shape))
    if axis is None:
        raise TypeError("Axis must be specified when shapes of a and weights differ.")
    if given != tuple(shape[i] for i in axes):
        raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
    in_order = mnp.transpose(weights, np.argsort(axes))
    return mnp.reshape(in_order, tuple(n if i in axes else 1 for i, n in enumerate(shape)))


# --- not differentiable: plain NumPy results -------------------------------------------------------------------------


def _truth_samples() -> list[Sample]:
    return [
        Sample(np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 3.0]]), **attributes)
        for attributes in ({}, {"axis": 0}, {"axis": -1, "keepdims": True})
    ] + [
        Sample(array()),
        Sample(array(2, dtype=np.float32)),
        Sample(np.array([True, False]), 0),
        Sample(array(2, dtype=np.complex128)),
    ]


@op(aliases=("reduce_any",), inputs=("a",), differentiable=False, numpy=np.any, samples=_truth_samples)
def any(a: Any, axis: Any = None, keepdims: bool = False, where: Any = True) -> Any:
    return np.any(a, axis, keepdims=keepdims, where=where)


@op(aliases=("reduce_all",), inputs=("a",), differentiable=False, numpy=np.all, samples=_truth_samples)
def all(a: Any, axis: Any = None, keepdims: bool = False, where: Any = True) -> Any:
    return np.all(a, axis, keepdims=keepdims, where=where)


@op(inputs=("a",), differentiable=False, numpy=np.argmax, samples=_truth_samples)
def argmax(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.argmax(a, axis, keepdims=keepdims)


@op(inputs=("a",), differentiable=False, numpy=np.argmin, samples=_truth_samples)
def argmin(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.argmin(a, axis, keepdims=keepdims)


@op(inputs=("a",), differentiable=False, numpy=np.count_nonzero, samples=_truth_samples)
def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.count_nonzero(a, axis, keepdims=keepdims)
