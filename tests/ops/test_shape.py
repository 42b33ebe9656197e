# SPDX-License-Identifier: Apache-2.0
"""Shape ops beyond what their samples check: compositions, values worked out by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import check_gradient

A = np.array
W = A([[1.0, 10.0, 100.0], [1000.0, 1e4, 1e5]])
X = np.arange(6.0).reshape(2, 3)
VECTOR = A([0.5, -1.5, 2.5])
CUBE = np.arange(24.0).reshape(2, 3, 4)

COMPOSITIONS: dict[str, tuple[Any, ...]] = {
    "append": (lambda x: np.append(x, [[7.0, 8.0, 9.0]], axis=0), X),
    "append, flat": (lambda x: np.append(x, 3.0), X),
    "atleast_1d": (np.atleast_1d, A(2.0)),
    "atleast_2d": (np.atleast_2d, VECTOR),
    "atleast_1d of several": (lambda x: np.atleast_1d(x, [1.0, 2.0], 3.0), VECTOR),
    "atleast_3d, 1-d": (np.atleast_3d, VECTOR),
    "atleast_3d, 2-d": (np.atleast_3d, X),
    "broadcast_arrays": (lambda x, y: np.broadcast_arrays(x, y, 1.0), X, VECTOR),
    "column_stack": (lambda x, y: np.column_stack([x, y]), X, A([1.0, 2.0])),
    "diag of a vector": (lambda x: np.diag(x, -1), VECTOR),
    "diag of a matrix": (lambda x: np.diag(x, 1), X),
    "diagflat": (lambda x: np.diagflat(x, 2), X),
    "dsplit": (lambda x: np.dsplit(x, 2), CUBE),
    "dstack": (lambda x, y: np.dstack([x, y]), X, 2 * X),
    "fliplr": (np.fliplr, X),
    "flipud": (np.flipud, X),
    "hsplit": (lambda x: np.hsplit(x, [1]), X),
    "hsplit of a vector": (lambda x: np.hsplit(x, 3), VECTOR),
    "hstack": (lambda x, y: np.hstack([x, y]), X, 2 * X),
    "hstack of scalars": (lambda x, y: np.hstack([x, y]), A(1.0), A(2.0)),
    "linalg.diagonal": (lambda x: np.linalg.diagonal(x, offset=1), CUBE),
    "linalg.trace": (np.linalg.trace, CUBE),
    "matrix_transpose": (np.matrix_transpose, CUBE),
    "moveaxis": (lambda x: np.moveaxis(x, [0, -1], [1, 0]), CUBE),
    "ravel": (np.ravel, X),
    "ravel, F": (lambda x: np.ravel(x, "F"), X),
    "rollaxis": (lambda x: np.rollaxis(x, 2, 1), CUBE),
    "rot90": (lambda x: [np.rot90(x, k) for k in range(-1, 5)], X),
    "rot90, axes": (lambda x: np.rot90(x, axes=(-1, 0)), CUBE),
    "swapaxes": (lambda x: np.swapaxes(x, 0, -1), CUBE),
    "trace": (lambda x: np.trace(x, 1, 0, 2), CUBE),
    "vsplit": (lambda x: np.vsplit(x, 2), X),
    "vstack": (lambda x, y: np.vstack([x, y]), X, VECTOR),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions(name: str) -> None:
    f, *arrays = COMPOSITIONS[name]
    values = mixgrad.vjp(f, *arrays)[0]
    expected = f(*arrays)
    for value, want in zip(listed(values), listed(expected), strict=True):
        np.testing.assert_array_equal(value, want, strict=True)
    check_gradient(f, *arrays, order=2)


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.skipif(not hasattr(np, "unstack"), reason="NumPy 2.0 has none")
def test_unstack() -> None:
    check_gradient(lambda x: np.unstack(x, axis=1), X)


def test_reshape_in_fortran_order() -> None:
    # x = [[0, 1, 2], [3, 4, 5]] is read by columns: 0 3 1 4 2 5.
    weights = A([[1.0, 1000.0], [10.0, 1e4], [100.0, 1e5]])
    g = mixgrad.grad(lambda x: mnp.sum(mnp.reshape(x, (3, 2), order="F") * weights))(X)
    np.testing.assert_array_equal(g, [[1.0, 100.0, 1e4], [10.0, 1000.0, 1e5]])


def test_order_by_memory_layout_is_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match="laid out; choose 'C' or 'F'"):
        mixgrad.grad(lambda x: np.ravel(x, order="K").sum())(X)
    with pytest.raises(errors.UnsupportedError, match="laid out; choose 'C' or 'F'"):
        mixgrad.grad(lambda x: np.reshape(x, 6, order="A").sum())(X)


def test_concatenate_gives_each_its_own_part() -> None:
    f: Any = lambda x, y: mnp.sum(mnp.concatenate([x, y, x]) * A([1.0, 2.0, 4.0, 8.0, 16.0]))
    gx, gy = mixgrad.grad(f, (0, 1))(A([1.0, 1.0]), A([1.0]))
    np.testing.assert_array_equal(gx, [9.0, 18.0])
    np.testing.assert_array_equal(gy, [4.0])


def test_concatenate_of_a_matrix_is_of_its_rows() -> None:
    np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(mnp.concatenate(x) * W.ravel()))(X), W)


def test_concatenate_keeps_each_dtype() -> None:
    g32, g64 = mixgrad.grad(lambda x, y: mnp.sum(mnp.concatenate([x, y])), (0, 1))(np.ones(2, np.float32), np.ones(3))
    assert (g32.dtype, g64.dtype) == (np.float32, np.float64)


def test_split_with_unused_pieces() -> None:
    np.testing.assert_array_equal(
        mixgrad.grad(lambda x: mnp.sum(mnp.split(x, 3, axis=1)[1] ** 2))(X), [[0, 2, 0], [0, 8, 0]]
    )


def test_split_with_pieces_that_overlap() -> None:
    # [3, 1] of 4 gives x[:3], x[3:1] and x[1:].
    g = mixgrad.grad(
        lambda x: sum(k * mnp.sum(piece) for k, piece in zip((1.0, 10.0, 100.0), mnp.split(x, [3, 1]), strict=True))
    )(np.ones(4))
    np.testing.assert_array_equal(g, [1.0, 101.0, 101.0, 100.0])


def test_repeat_adds_up() -> None:
    g = mixgrad.grad(lambda x: mnp.sum(mnp.repeat(x, [0, 2, 3]) * A([1.0, 2.0, 4.0, 8.0, 16.0])))(VECTOR)
    np.testing.assert_array_equal(g, [0.0, 3.0, 28.0])


def test_tile_adds_up() -> None:
    g = mixgrad.grad(lambda x: mnp.sum(mnp.tile(x, (2, 3)) * W))(A([1.0]))
    np.testing.assert_array_equal(g, [W.sum()])
    g = mixgrad.grad(lambda x: mnp.sum(mnp.tile(x, 2) * A([1.0, 2.0, 4.0, 8.0])))(A([1.0, 1.0]))
    np.testing.assert_array_equal(g, [5.0, 10.0])


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("constant", [4.0, 8.0, 16.0]),
        ("edge", [7.0, 8.0, 112.0]),
        ("reflect", [4.0 + 64.0, 2.0 + 8.0 + 32.0, 1.0 + 16.0]),
        ("symmetric", [2.0 + 4.0, 1.0 + 8.0 + 64.0, 16.0 + 32.0]),
        ("wrap", [4.0 + 32.0, 1.0 + 8.0 + 64.0, 2.0 + 16.0]),
    ],
)
def test_pad(mode: Any, want: list[float]) -> None:
    g = mixgrad.grad(lambda x: mnp.sum(mnp.pad(x, 2, mode) * 2.0 ** np.arange(7)))(VECTOR)
    np.testing.assert_array_equal(g, want)


def test_pad_by_axes() -> None:
    if np.lib.NumpyVersion(np.__version__) >= "2.3.0":
        check_gradient(lambda x: np.pad(x, {-1: (1, 2)}, "edge"), X)
    check_gradient(lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=((1.0, 2.0), (3.0, 4.0))), X)
    check_gradient(lambda x: np.pad(x, 2, "mean", stat_length=((1, 2), (2, 3))), X)


def test_pad_without_a_gradient_is_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"mode='median' has no gradient.*constant, edge"):
        mixgrad.grad(lambda x: mnp.pad(x, 1, "median").sum())(X)


def test_pad_with_an_array_as_the_constant_is_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match="constant_values"):
        mixgrad.grad(lambda x: mnp.pad(x, 1, constant_values=x[0]).sum())(VECTOR)


def test_triangles_of_a_vector_make_a_matrix() -> None:
    np.testing.assert_array_equal(mixgrad.grad(lambda x: np.tril(x).sum())(VECTOR), [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(mixgrad.grad(lambda x: np.triu(x, 1).sum())(VECTOR), [0.0, 1.0, 2.0])


def test_trace_of_a_square() -> None:
    x = np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(mixgrad.grad(lambda x: np.trace(x @ x))(x), 2 * x.T)


def test_copy_is_an_identity() -> None:
    np.testing.assert_array_equal(mixgrad.grad(lambda x: (x.copy() * np.copy(x)).sum())(VECTOR), 2 * VECTOR)


class TestAstype:
    def test_the_gradient_comes_back_in_the_sources_dtype(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(x.astype(np.float64) ** 2))(np.ones(2, np.float32))
        assert g.dtype == np.float32
        np.testing.assert_array_equal(g, [2.0, 2.0])

    def test_to_single_precision(self) -> None:
        value, pull = mixgrad.vjp(lambda x: x.astype(np.float32), A([1 / 3, 2.0]))
        assert value.dtype == np.float32
        (g,) = [pull(np.full(2, 0.5, np.float32))]
        assert np.asarray(g).dtype == np.float64
        np.testing.assert_array_equal(np.ravel(g), [0.5, 0.5])

    def test_to_complex_and_back(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(mnp.real((2 + 3j) * x.astype(complex))))(np.ones(2))
        np.testing.assert_array_equal(g, [2.0, 2.0])

    def test_to_integers_is_a_constant(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(x * x.astype(int)))(A([1.5, -2.5]))
        np.testing.assert_array_equal(g, [1.0, -2.0])

    def test_casting_rule(self) -> None:
        with pytest.raises(TypeError, match="Cannot cast Array"):
            mixgrad.grad(lambda x: x.astype(np.float32, casting="safe").sum())(np.ones(2))


class TestMaking:
    """mixgrad.numpy.array and kin: Arrays inside lists, which NumPy's own would turn into numbers."""

    def test_array_of_arrays_and_numbers(self) -> None:
        f: Any = lambda x, y: mnp.sum(mnp.array([[x, y * y, 1.0], [2.0, x * y, y]]) * W)
        gx, gy = mixgrad.grad(f, (0, 1))(3.0, 2.0)
        assert (gx, gy) == (1.0 + 2e4, 40.0 + 3e4 + 1e5)

    def test_options(self) -> None:
        value, g = mixgrad.value_and_grad(lambda x: mnp.sum(mnp.array([x, x], dtype=np.float32, ndmin=3)))(
            A([1.0, 2.0])
        )
        assert value.dtype == np.float32
        np.testing.assert_array_equal(g, [2.0, 2.0])
        assert mixgrad.vjp(lambda x: mnp.array(x, ndmin=2), A([1.0, 2.0]))[0].shape == (1, 2)

    def test_asarray_keeps_an_array(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(mnp.asarray(x) ** 2))(VECTOR), 2 * VECTOR)

    def test_full(self) -> None:
        assert mixgrad.grad(lambda x: mnp.full((2, 3), x).sum())(2.0) == 6.0

    def test_of_plain_values_they_are_numpys(self) -> None:
        for made in (mnp.array([1, 2], ndmin=2), mnp.asarray([[1, 2]]), mnp.full((1, 2), [1, 2])):
            assert type(made) is np.ndarray
            np.testing.assert_array_equal(made, [[1, 2]], strict=True)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.vsplit(x[0], 2),
        lambda x: np.dsplit(x, 2),
        lambda x: np.split(x, 4, axis=1),
        lambda x: np.reshape(x, (4, 2)),
        lambda x: np.transpose(x, (0, 0)),
        lambda x: np.swapaxes(x, 0, 2),
        lambda x: np.moveaxis(x, 0, 5),
        lambda x: np.rot90(x[0]),
        lambda x: np.squeeze(x, 0),
        lambda x: np.concatenate([x, x[0]]),
        lambda x: np.stack([x, x[0]]),
        lambda x: np.broadcast_to(x, (2, 2)),
        lambda x: np.diag(x[None]),
        lambda x: np.tile(x, -1),
    ],
)
def test_bad_calls_raise_what_numpy_raises(f: Any) -> None:
    with pytest.raises(Exception) as numpys:
        f(X)
    with pytest.raises(type(numpys.value)):
        mixgrad.vjp(f, X)
