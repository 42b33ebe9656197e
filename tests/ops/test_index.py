# SPDX-License-Identifier: Apache-2.0
"""Indexing and its kin: repeated indices, every kind of index, order, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import ops
from mixgrad.testing import check_gradient

A = np.array
VECTOR = A([0.5, -1.5, 2.5, 1.0])
CUBE = np.arange(24.0).reshape(2, 3, 4)


class TestGetitem:
    def test_repeated_indices_add_up(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(x[[0, 2, 2, -1, 0, 0]] * A([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])))(VECTOR)
        np.testing.assert_array_equal(g, [49.0, 0.0, 6.0, 8.0])

    def test_repeated_pairs_add_up(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(x[[0, 0, 1], [1, 1, 0]] * A([1.0, 2.0, 4.0])))(np.ones((2, 2)))
        np.testing.assert_array_equal(g, [[0.0, 3.0], [4.0, 0.0]])

    def test_negative_steps(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(x[::-2] * A([1.0, 10.0])))(VECTOR)
        np.testing.assert_array_equal(g, [0.0, 10.0, 0.0, 1.0])

    @pytest.mark.parametrize(
        "index",
        [
            (0, ..., [1, 1]),
            ([1, 0], slice(None), [3, 3]),
            (slice(None), [[0, 1], [1, 2]], [1, 3]),
            (..., A([True, False, True, True])),
            (A([[True, False, True], [False, False, True]]),),
            (A([True, False]), None, [2, 2]),
            (None, 1, slice(None, None, -1), -1),
            (np.int64(1), np.uint8(2)),
            (A(1), A(2)),
            (slice(5, 1), 0),
            True,
            False,
            A(True),
            [True, False],
            [],
            (slice(None), A([], int)),
        ],
        ids=repr,
    )
    def test_every_kind_of_index(self, index: Any) -> None:
        value, _ = mixgrad.vjp(lambda x: x[index], CUBE)
        np.testing.assert_array_equal(value, CUBE[index])
        weights = np.random.default_rng(0).normal(size=CUBE[index].shape)
        want = np.zeros(CUBE.shape)
        np.add.at(want, index, weights)
        np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(x[index] * weights))(CUBE), want)

    def test_iteration_and_unpacking(self) -> None:
        def f(x: Any) -> Any:
            a, b, c, d = x
            return a * b + sum(c * y for y in x) + d

        check_gradient(f, VECTOR, order=2)

    def test_second_order_through_repeated_indices(self) -> None:
        h = mixgrad.hessian(lambda x: mnp.sum(x[[0, 0, 1]] ** 3))(A([2.0, 3.0]))
        np.testing.assert_array_equal(h, [[24.0, 0.0], [0.0, 18.0]])

    def test_out_of_range(self) -> None:
        with pytest.raises(IndexError):
            mixgrad.grad(lambda x: x[4])(VECTOR)

    def test_an_array_of_floats_is_no_index(self) -> None:
        with pytest.raises(IndexError, match="integers"):
            mixgrad.grad(lambda x: x[x].sum())(VECTOR)

    def test_a_comparison_is_an_index(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(x[x > 0] ** 2))(VECTOR), [1.0, 0.0, 5.0, 2.0])

    def test_an_index_that_changes_after_recording(self) -> None:
        """The gradient goes to where the values came from, or the change is noticed."""
        for n in (3, 5000):
            index = np.zeros(n, int)
            with mixgrad.Tape() as tape:
                x = tape.watch(VECTOR)
                y = mnp.sum(x[index])
            index[:] = 1
            try:
                g = tape.gradient(y, x)
            except mixgrad.errors.MutatedInputError:
                continue
            np.testing.assert_array_equal(g, [n, 0.0, 0.0, 0.0])


class TestIndexAdd:
    def test_values(self) -> None:
        np.testing.assert_array_equal(ops.index_add(A([1.0, 2.0, 4.0]), [1, 1, 0], (3,)), [4.0, 3.0, 0.0])
        np.testing.assert_array_equal(ops.index_add(A([1.0, 2.0]), A([True, False, True]), (3,)), [1.0, 0.0, 2.0])

    def test_broadcast_values(self) -> None:
        check_gradient(lambda x: ops.index_add(x, [0, 2, 2], (3,)), A(2.0), order=2)


class TestTake:
    def test_repeated(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(mnp.take(x, [2, 2, 0]) * A([1.0, 10.0, 100.0])))(VECTOR)
        np.testing.assert_array_equal(g, [100.0, 0.0, 11.0, 0.0])

    @pytest.mark.parametrize(("mode", "want"), [("wrap", [2.0, 1.0, 0.0, 4.0]), ("clip", [4.0, 0.0, 0.0, 3.0])])
    def test_modes(self, mode: str, want: list[float]) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(mnp.take(x, [5, 4, -1], mode=mode) * A([1.0, 2.0, 4.0])))(VECTOR)
        np.testing.assert_array_equal(g, want)

    def test_boolean_indices_are_numbers(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(np.take(x, [True, False, True]) * A([1.0, 2.0, 4.0])))(VECTOR)
        np.testing.assert_array_equal(g, [2.0, 5.0, 0.0, 0.0])

    def test_method(self) -> None:
        np.testing.assert_array_equal(
            mixgrad.grad(lambda x: x.take([1, 1], axis=0).sum())(np.ones((2, 2))), [[0, 0], [2, 2]]
        )

    def test_along_axis(self) -> None:
        x = A([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
        largest = np.argmax(x, axis=1, keepdims=True)
        g = mixgrad.grad(lambda x: mnp.sum(np.take_along_axis(x, largest, axis=1) * A([[2.0], [3.0]])))(x)
        np.testing.assert_array_equal(g, [[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.compress([True, False, True], x, axis=1),
        lambda x: np.compress([False, True], x),
        lambda x: x.compress([True, True, False], axis=1),
        lambda x: np.extract(x > 7.5, x),
        lambda x: np.delete(x, [0, 2], axis=-1),
        lambda x: np.delete(x, 5),
        lambda x: np.delete(x, slice(None, None, 2), 2),
    ],
)
def test_compositions(f: Any) -> None:
    np.testing.assert_array_equal(mixgrad.vjp(f, CUBE)[0], f(CUBE), strict=True)
    check_gradient(f, CUBE, order=2, signs=False)


class TestOrder:
    def test_sort_2d(self) -> None:
        x = A([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
        w = A([[1.0, 10.0, 100.0], [1.0, 10.0, 100.0]])
        g = mixgrad.grad(lambda x: mnp.sum(w * mnp.sort(x, axis=1)))(x)
        np.testing.assert_array_equal(g, [[100.0, 1.0, 10.0], [1.0, 100.0, 10.0]])
        g = mixgrad.grad(lambda x: mnp.sum(w * mnp.sort(x, axis=0)))(x)
        np.testing.assert_array_equal(g, w)
        g = mixgrad.grad(lambda x: mnp.sum(2.0 ** np.arange(6) * mnp.sort(x, axis=None)))(x)
        np.testing.assert_array_equal(g, [[4.0, 1.0, 2.0], [8.0, 32.0, 16.0]])

    def test_ties_share_nothing_and_lose_nothing(self) -> None:
        g = mixgrad.grad(lambda x: mnp.sum(A([1.0, 10.0, 100.0, 1000.0]) * mnp.sort(x)))(A([2.0, 1.0, 2.0, 1.0]))
        assert sorted(g) == [1.0, 10.0, 100.0, 1000.0]
        assert set(g[[1, 3]]) == {1.0, 10.0}

    @pytest.mark.parametrize("seed", range(3))
    def test_partition_of_many(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 40, (3, 300)).astype(float)
        weights = rng.normal(size=x.shape)
        value, pull = mixgrad.vjp(lambda x: np.partition(x, 150), x)
        g = pull(weights)
        # Whatever went where: equal values got, together, what arrived at them.
        for row, out, got, arrived in zip(x, np.asarray(value), np.asarray(g), weights, strict=True):
            for level in np.unique(row):
                np.testing.assert_allclose(got[row == level].sum(), arrived[out == level].sum(), rtol=0, atol=1e-12)

    def test_second_order(self) -> None:
        h = mixgrad.hessian(lambda x: mnp.sum(A([1.0, 2.0, 3.0, 4.0]) * mnp.sort(x) ** 2))(VECTOR)
        np.testing.assert_array_equal(h, np.diag([4.0, 2.0, 8.0, 6.0]))

    def test_argsort_is_plain(self) -> None:
        def f(x: Any) -> Any:
            order = x.argsort()
            assert type(order) is np.ndarray
            return mnp.sum(x[order] * A([1.0, 2.0, 3.0, 4.0]))

        np.testing.assert_array_equal(mixgrad.grad(f)(VECTOR), [2.0, 1.0, 4.0, 3.0])
