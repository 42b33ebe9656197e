# SPDX-License-Identifier: Apache-2.0
"""Products of arrays, norms and determinants."""

from __future__ import annotations

from itertools import chain
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import numpy as np

import mixgrad.numpy as mnp
from mixgrad.errors import UnsupportedError
from mixgrad.ops._axes import sum_to
from mixgrad.ops._samples import array
from mixgrad.ops.index import index_add
from mixgrad.protocol import implements
from mixgrad.registry import Sample, op

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- products --------------------------------------------------------------------------------------------------------

matmul = op(
    np.matmul,
    saves=["y", "x"],
    broadcasts=False,
    numpy=np.linalg.matmul,
    samples=lambda: [
        Sample(array(2, 3), array(3, 4)),
        Sample(array(3), array(3)),
        Sample(array(2, 3), array(3)),
        Sample(array(3), array(3, 2)),
        Sample(array(5, 2, 3), array(5, 3, 2)),
        Sample(array(5, 2, 3), array(3, 2)),
        Sample(array(2, 3), array(4, 3, 2)),
        Sample(array(4, 1, 2, 3), array(5, 3, 2)),
        Sample(array(5, 2, 3), array(3)),
        Sample(array(3), array(4, 2, 3, 2)),
        Sample(array(2, 1), array(1, 3)),
        Sample(array(2, 0), array(0, 3)),
        Sample(array(0, 2), array(2, 3)),
        Sample(array(2, 3, dtype=np.float32), array(3, 2, dtype=np.float32)),
        Sample(array(2, 3, dtype=np.float32), array(3, 2)),
        Sample(array(2, 3, dtype=np.complex128), array(3, 2, dtype=np.complex128)),
        Sample(array(2, 3, dtype=np.complex64), array(3)),
        Sample(array(2, 3), np.arange(6).reshape(3, 2)),
    ],
)


@matmul.gradient(argument=0)
def _matmul_x(g: Any, x: Any, y: Any, out: Any) -> Any:
    if y.ndim == 1:
        return g[..., None] * y
    if x.ndim == 1:
        return sum_to(mnp.matmul(y, g[..., None])[..., 0], x.shape)
    return sum_to(mnp.matmul(g, mnp.swapaxes(y, -1, -2)), x.shape)


@matmul.gradient(argument=1)
def _matmul_y(g: Any, x: Any, y: Any, out: Any) -> Any:
    if x.ndim == 1:
        return x[:, None] * g[..., None, :] if y.ndim > 1 else g * x
    if y.ndim == 1:
        return sum_to(mnp.matmul(mnp.swapaxes(x, -1, -2), g[..., None])[..., 0], y.shape)
    return sum_to(mnp.matmul(mnp.swapaxes(x, -1, -2), g), y.shape)


def _contract(g: Any, other: Any, first: bool, axes: Sequence[int], other_axes: Sequence[int], ndim: int) -> Any:
    """Gradient of a tensordot for one of its arrays, of `ndim` axes, contracted over `axes` with `other` over `other_axes`."""
    free = [i for i in range(ndim) if i not in axes]
    other_free = [i for i in range(other.ndim) if i not in other_axes]
    # The other array's axes that remain are the contracted ones, in its order.
    remaining = [axes[other_axes.index(i)] for i in sorted(other_axes)]
    if first:
        result, dims = mnp.tensordot(g, other, (list(range(len(free), g.ndim)), other_free)), free + remaining
    else:
        result, dims = mnp.tensordot(other, g, (other_free, list(range(len(other_free))))), remaining + free
    return result if dims == sorted(dims) else mnp.transpose(result, tuple(int(i) for i in np.argsort(dims)))


@op(
    saves=["b", "a"],
    numpy=np.dot,
    samples=lambda: [
        Sample(array(2, 3), array(3, 4)),
        Sample(array(3), array(3)),
        Sample(array(2, 3), array(3)),
        Sample(array(3), array(3, 2)),
        Sample(array(2, 4, 3), array(5, 3, 2)),
        Sample(array(2, 4, 3), array(3)),
        Sample(array(), array(2, 3)),
        Sample(array(2, 3), array()),
        Sample(array(), array()),
        Sample(array(2, 0), array(0, 3)),
        Sample(array(2, 3, dtype=np.float32), array(3, 2, dtype=np.float32)),
        Sample(array(2, 3, dtype=np.complex128), array(3, 2)),
    ],
)
def dot(a: Any, b: Any) -> Any:
    return np.dot(a, b)


@dot.gradient(argument=0)
def _dot_a(g: Any, a: Any, b: Any, out: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return sum_to(g * b, a.shape)
    return _contract(g, b, True, [a.ndim - 1], [max(b.ndim - 2, 0)], a.ndim)


@dot.gradient(argument=1)
def _dot_b(g: Any, a: Any, b: Any, out: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return sum_to(g * a, b.shape)
    return _contract(g, a, False, [max(b.ndim - 2, 0)], [a.ndim - 1], b.ndim)


@op(
    saves=["b", "a"],
    numpy=np.inner,
    samples=lambda: [
        Sample(array(3), array(3)),
        Sample(array(2, 3), array(4, 3)),
        Sample(array(2, 4, 3), array(3)),
        Sample(array(3), array(2, 2, 3)),
        Sample(array(2, 3), array()),
        Sample(array(), array(2)),
        Sample(array(2, 0), array(3, 0)),
        Sample(array(2, 3, dtype=np.float32), array(3, dtype=np.float32)),
        Sample(array(2, 3, dtype=np.complex128), array(3)),
    ],
)
def inner(a: Any, b: Any) -> Any:
    return np.inner(a, b)


@inner.gradient(argument=0)
def _inner_a(g: Any, a: Any, b: Any, out: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return sum_to(g * b, a.shape)
    return _contract(g, b, True, [a.ndim - 1], [b.ndim - 1], a.ndim)


@inner.gradient(argument=1)
def _inner_b(g: Any, a: Any, b: Any, out: Any) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return sum_to(g * a, b.shape)
    return _contract(g, a, False, [b.ndim - 1], [a.ndim - 1], b.ndim)


@op(
    saves=["b", "a"],
    numpy=(np.tensordot, np.linalg.tensordot),
    samples=lambda: [
        Sample(array(2, 3, 4), array(3, 4, 5)),
        Sample(array(2, 3), array(3, 2), 1),
        Sample(array(2, 3), array(4), 0),
        Sample(array(2, 3, 4), array(4, 3), axes=([1, 2], [1, 0])),
        Sample(array(2, 3, 4), array(5, 4, 2), axes=[[-1, 0], [1, 2]]),
        Sample(array(3, 2), array(2, 2), axes=[[-1], [0]]),
        Sample(array(3, 2), array(4, 3), axes=(0, 1)),
        Sample(array(3, 2), array(2, 3), axes=([0, 1], [1, 0])),
        Sample(array(), array(2), 0),
        Sample(array(2, 0), array(0, 3), 1),
        Sample(array(2, 3, dtype=np.float32), array(3, 2, dtype=np.float32), 1),
        Sample(array(2, 3, dtype=np.complex128), array(3, 2), 1),
    ],
)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    return np.tensordot(a, b, axes)


def _paired(axes: Any, a_ndim: int, b_ndim: int) -> tuple[list[int], list[int]]:
    """The contracted axes of both arrays, counted from the front."""
    if not np.iterable(axes):
        return list(range(a_ndim - axes, a_ndim)), list(range(axes))
    first, second = (np.atleast_1d(np.asarray(ends, int)).tolist() for ends in axes)
    return [i % a_ndim for i in first], [i % b_ndim for i in second]


@tensordot.gradient(argument=0)
def _tensordot_a(g: Any, a: Any, b: Any, out: Any, axes: Any) -> Any:
    first, second = _paired(axes, a.ndim, b.ndim)
    return _contract(g, b, True, first, second, a.ndim)


@tensordot.gradient(argument=1)
def _tensordot_b(g: Any, a: Any, b: Any, out: Any, axes: Any) -> Any:
    first, second = _paired(axes, a.ndim, b.ndim)
    return _contract(g, a, False, second, first, b.ndim)


@op(
    saves=["b", "a"],
    numpy=(np.outer, np.linalg.outer),
    samples=lambda: [
        Sample(array(3), array(2)),
        Sample(array(2, 2), array(3, 1)),
        Sample(array(), array(2)),
        Sample(array(0), array(2)),
        Sample(array(3, dtype=np.float32), array(2, dtype=np.float32)),
        Sample(array(3, dtype=np.complex128), array(2)),
    ],
)
def outer(a: Any, b: Any) -> Any:
    return np.outer(a, b)


outer.gradient(
    lambda g, a, b, out: mnp.reshape(mnp.dot(g, mnp.ravel(b)), a.shape),
    lambda g, a, b, out: mnp.reshape(mnp.dot(mnp.ravel(a), g), b.shape),
)


@op(
    saves=["b", "a"],
    numpy=np.vdot,
    samples=lambda: [
        Sample(array(3), array(3)),
        Sample(array(2, 3), array(3, 2)),
        Sample(array(), array()),
        Sample(array(0), array(0)),
        Sample(array(3, dtype=np.float32), array(3, dtype=np.float32)),
        Sample(array(3, dtype=np.complex128), array(3, dtype=np.complex128)),
        Sample(array(3, dtype=np.complex128), array(3)),
    ],
)
def vdot(a: Any, b: Any) -> Any:
    return np.vdot(a, b)


vdot.gradient(
    lambda g, a, b, out: mnp.reshape(mnp.conj(g * b), a.shape),
    lambda g, a, b, out: mnp.reshape(g * mnp.conj(a), b.shape),
)


@op(
    saves=["b", "a"],
    numpy=np.kron,
    samples=lambda: [
        Sample(array(2), array(3)),
        Sample(array(2, 3), array(3, 2)),
        Sample(array(2, 3), array(2)),
        Sample(array(2), array(2, 1, 3)),
        Sample(array(), array(2, 2)),
        Sample(array(), array()),
        Sample(array(0), array(2)),
        Sample(array(2, 2, dtype=np.float32), array(2, 2, dtype=np.float32)),
        Sample(array(2, 2, dtype=np.complex128), array(2)),
    ],
)
def kron(a: Any, b: Any) -> Any:
    return np.kron(a, b)


@kron.gradient(argument=0)
def _kron_a(g: Any, a: Any, b: Any, out: Any) -> Any:
    g, _, b_shape = _blocks(g, a.shape, b.shape)
    return mnp.reshape(mnp.tensordot(g, mnp.reshape(b, b_shape), (range(1, g.ndim, 2), range(len(b_shape)))), a.shape)


@kron.gradient(argument=1)
def _kron_b(g: Any, a: Any, b: Any, out: Any) -> Any:
    g, a_shape, _ = _blocks(g, a.shape, b.shape)
    return mnp.reshape(mnp.tensordot(g, mnp.reshape(a, a_shape), (range(0, g.ndim, 2), range(len(a_shape)))), b.shape)


def _blocks(g: Any, *shapes: tuple[int, ...]) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """`g` with each axis cut into that of the first array and that of the second, and both shapes filled up to its ndim."""
    first, second = ((1,) * (g.ndim - len(shape)) + shape for shape in shapes)
    return mnp.reshape(g, tuple(chain.from_iterable(zip(first, second, strict=True)))), first, second


# --- einsum ----------------------------------------------------------------------------------------------------------


@op(
    name="einsum",
    inputs="*operands",
    saves="inputs",
    samples=lambda: [
        Sample([array(2, 3), array(3, 4)], "ij,jk->ik"),
        Sample([array(2, 3), array(3, 4)], "ij,jk"),
        Sample([array(2, 3)], "ji"),
        Sample([array(2, 3)], "ij->"),
        Sample([array(2, 3)], "ij->j"),
        Sample([array(3, 3)], "ii"),
        Sample([array(3, 3)], "ii->i"),
        Sample([array(3, 2, 3)], "iji->j"),
        Sample([array(2, 2, 2)], "iii->i"),
        Sample([array(3, 3), array(3)], "ii,i->i"),
        Sample([array(2, 3), array(3)], "ij,k->i"),
        Sample([array(2), array(1)], "i,i"),
        Sample([array(1, 3), array(2, 3)], "ij,ij->i"),
        Sample([array(2, 1), array(1, 3), array(2, 3)], "ab, ab, ab -> b"),
        Sample([array(4, 2, 3), array(3, 2)], "...ij,jk->...ik"),
        Sample([array(4, 1, 2), array(5, 2)], "...i,...i"),
        Sample([array(2, 3, 4)], "i...->..."),
        Sample([array(2, 3), array(3, 2), array(2, 2)], "ij,jk,kl->il", optimize=True),
        Sample([array(), array(2)], ",i->i"),
        Sample([array(2, 0), array(0, 3)], "ij,jk->ik"),
        Sample([array(2, 3, dtype=np.float32), array(3, dtype=np.float32)], "ij,j->i"),
        Sample([array(2, 3, dtype=np.complex128), array(3)], "ij,j->i"),
    ],
)
def contract(operands: Any, subscripts: str, optimize: Any = False) -> Any:
    """`numpy.einsum` with the operands first, in one list."""
    return np.einsum(subscripts, *operands, optimize=optimize)


@contract.gradient()
def _einsum(op: Any, g: Any) -> list[Any]:
    operands = op.inputs
    terms, out = _terms(op.attributes["subscripts"], [x.ndim for x in operands])
    optimize = bool(op.attributes["optimize"])
    results: list[Any] = []
    for i, (x, term) in enumerate(zip(operands, terms, strict=True)):
        if not op.needs_gradient(i):
            results.append(None)
            continue
        others = [j for j in range(len(operands)) if j != i]
        sizes: dict[str, int] = {}
        for letter, n in zip(term, x.shape, strict=True):
            sizes[letter] = max(n, sizes.get(letter, 0)) if n != 0 else 0
        # An axis of length 1 that met a longer one was repeated, so it is summed; one that met nothing is not there yet.
        present = set(out).union(*(terms[j] for j in others))
        kept = "".join(letter for letter in sizes if letter in present and sizes[letter] != 1)
        result = mnp.einsum(
            f"{','.join([out, *(terms[j] for j in others)])}->{kept}",
            g,
            *(operands[j] for j in others),
            optimize=optimize,
        )
        lengths = iter(result.shape)
        result = mnp.reshape(result, tuple(next(lengths) if letter in kept else 1 for letter in sizes))
        result = mnp.broadcast_to(result, tuple(sizes.values()))
        if len(sizes) != len(term):
            mesh = dict(zip(sizes, np.ix_(*(np.arange(n) for n in sizes.values())), strict=True))
            result = index_add(result, tuple(mesh[letter] for letter in term), x.shape)
        results.append(result)
    return results


def _terms(subscripts: str, ndims: list[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the output: ellipses replaced by letters of their own, the output written out.

    >>> _terms("...i,ij", [3, 2])
    (['YZi', 'ij'], 'YZj')
    """
    inputs, arrow, out = subscripts.replace(" ", "").partition("->")
    free = "".join(letter for letter in ascii_letters[::-1] if letter not in subscripts)
    terms, longest = [], ""
    for term, ndim in zip(inputs.split(","), ndims, strict=True):
        n = ndim - len(term.replace("...", ""))
        letters = free[:n][::-1]
        longest = max(longest, letters, key=len)
        terms.append(term.replace("...", letters))
    if arrow:
        return terms, out.replace("...", longest)
    named = inputs.replace(",", "").replace("...", "")
    return terms, longest + "".join(letter for letter in sorted(set(named)) if named.count(letter) == 1)


@implements(np.einsum)
def einsum(*operands: Any, optimize: Any = False, **options: Any) -> Any:
    if options:
        option = next(iter(options))
        raise UnsupportedError(
            f"np.einsum: {option}= cannot be used with an Array; convert the operands first, with .astype(...)"
        )
    if isinstance(operands[0], str):
        return contract(operands[1:], operands[0], optimize)
    # The other form: operand, its axes, operand, its axes, ..., and the output's axes.
    lists = list(operands[1::2]) + ([operands[-1]] if len(operands) % 2 else [])
    names = sorted({axis for axes in lists for axis in axes if axis is not ...})
    letters = {axis: ascii_letters[i] for i, axis in enumerate(names)} | {...: "..."}
    terms = ["".join(letters[axis] for axis in axes) for axes in lists]
    n = len(operands) // 2
    return contract(operands[: 2 * n : 2], ",".join(terms[:n]) + "".join(f"->{term}" for term in terms[n:]), optimize)


# --- norms and determinants ------------------------------------------------------------------------------------------


@op(
    name="norm",
    inputs=("x",),
    saves="x output",
    samples=lambda: [
        Sample(array(3)),
        Sample(array(2, 3)),
        Sample(array(2, 3), 1),
        Sample(array(2, 3, 2), (0, -1)),
        Sample(array(2, 3), axis=0, keepdims=True),
        Sample(array(2, 3, 2), keepdims=True),
        Sample(array(0, 3), 0),
        Sample(array(3, dtype=np.float32)),
        Sample(array(3, dtype=np.complex128)),
    ],
)
def length(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The square root of the sum of the squares: `numpy.linalg.norm` of the default order. Its gradient at 0 is 0."""
    return np.linalg.norm(x, None, axis, keepdims)


@length.gradient(argument=0)
def _length_x(g: Any, x: Any, out: Any, axis: Any, keepdims: bool) -> Any:
    divisor = mnp.where(out == 0, 1, out)
    ratio = g / divisor
    if not keepdims:
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
        ratio = mnp.expand_dims(ratio, tuple(int(i) for i in axes))
    return ratio * mnp.conj(x)


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    axes = tuple(range(x.ndim)) if axis is None else tuple(int(i) % x.ndim for i in np.atleast_1d(axis))
    if ord is None or (ord == 2 and len(axes) == 1) or (ord in ("fro", "f") and len(axes) == 2):
        return length(x, axis, keepdims)
    if len(axes) == 1 and not isinstance(ord, str):
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) == 2 and ord in (1, -1, np.inf, -np.inf):
        row, column = axes if abs(ord) == 1 else axes[::-1]
        sums = mnp.sum(mnp.abs(x), axis=row, keepdims=True)
        result = _extreme(sums, ord, column, keepdims=True)
        return result if keepdims else mnp.squeeze(result, axes)
    # NumPy's own function refuses what it does not know.
    np.linalg.norm(np.ones(x.shape, x.dtype), ord, axis)
    raise UnsupportedError(
        f"np.linalg.norm of an Array with ord={ord!r} over {len(axes)} axes needs singular values, whose gradient mixgrad does not have; "
        "the orders None, 'fro', 1, -1, inf and -inf have one, and over one axis all numbers"
    )


def _extreme(sizes: Any, ord: float, axis: int, keepdims: bool) -> Any:
    """The largest for a positive order, of no elements 0; the smallest for a negative one."""
    if ord < 0:
        return mnp.min(sizes, axis=axis, keepdims=keepdims)
    return mnp.max(sizes, axis=axis, keepdims=keepdims, initial=None if sizes.size else 0.0)


def _vector_norm(x: Any, ord: float, axis: int, keepdims: bool) -> Any:
    sizes = mnp.abs(x)
    if ord in (np.inf, -np.inf):
        return _extreme(sizes, ord, axis, keepdims)
    if ord == 0:
        return mnp.sum((sizes != 0).astype(sizes.dtype), axis=axis, keepdims=keepdims)
    if ord == 1:
        return mnp.sum(sizes, axis=axis, keepdims=keepdims)
    total = mnp.sum(sizes**ord, axis=axis, keepdims=keepdims)
    # A root of 0 has no slope: there the gradient is 0, as of the other norms.
    safe = mnp.where(total == 0, 1, total)
    return mnp.where(total == 0, 0, safe ** (1 / ord))


@op(
    inputs=("a",),
    saves="a",
    numpy=np.linalg.det,
    samples=lambda: [
        Sample(array(1, 1)),
        Sample(array(2, 2)),
        Sample(array(4, 4)),
        Sample(array(3, 2, 2)),
        Sample(np.zeros((3, 3))),
        Sample(np.diag([2.0, 0.0, 3.0])),
        Sample(array(0, 2, 2)),
        Sample(array(3, 3, dtype=np.float32)),
        Sample(array(3, 3, dtype=np.complex128)),
    ],
)
def det(a: Any) -> Any:
    return np.linalg.det(a)


@op(
    inputs=("a",),
    saves="a",
    samples=lambda: [
        Sample(array(1, 1)),
        Sample(array(3, 3)),
        Sample(array(2, 2, 2)),
        Sample(np.diag([2.0, 0.0, 3.0])),
        Sample(np.zeros((3, 3))),
        Sample(array(3, 3, dtype=np.float32)),
        Sample(array(3, 3, dtype=np.complex128)),
    ],
)
def cofactors(a: Any) -> Any:
    """The derivatives of det(a) by the elements of `a`, also where `a` has no inverse."""
    a = np.asarray(a)
    u, s, vh = np.linalg.svd(a)
    n = a.shape[-1]
    # Products of all singular values but one.
    others = np.where(np.eye(n, dtype=bool), 1, s[..., None, :]).prod(axis=-1)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return (sign[..., None, None] * ((u.conj() * others[..., None, :]) @ vh.conj())).astype(a.dtype, copy=False)


det.gradient(lambda g, a, out: g[..., None, None] * cofactors(a))


@cofactors.gradient(argument=0)
def _cofactors_a(g: Any, a: Any, out: Any) -> Any:
    # By minors, which are polynomials: right where `a` has no inverse. Only second derivatives come here.
    n = a.shape[-1]
    if n < 2:
        return np.zeros(a.shape, a.dtype)
    signs = (1 - 2 * (np.add.outer(np.arange(n), np.arange(n)) % 2)).astype(a.dtype)
    rest = np.array([[k for k in range(n) if k != i] for i in range(n)])
    rows, columns = rest[:, None, :, None], rest[None, :, None, :]
    minors = cofactors(a[..., rows, columns])
    return index_add((g * signs)[..., None, None] * minors, (..., rows, columns), a.shape)
