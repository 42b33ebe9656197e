# SPDX-License-Identifier: Apache-2.0
"""Reductions and cumulative ops beyond what their samples check: closed forms, ties, zeros, masks and empty arrays."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad.testing import check_gradient

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.array
X = A([[1.0, -2.0, 4.0], [0.5, 3.0, -1.5]])
MASK = A([[True, False, True], [False, True, True]])


def gradient_is(f: Callable[..., Any], x: Any, want: Any, *, g: Any = None, rtol: float = 1e-13) -> None:
    """In both languages: the values, and the argument's shape and dtype; with `g` (ones) arriving at the output."""
    for language in ("python", "native"):
        with mixgrad.prefer(language):
            value, pull = mixgrad.vjp(f, x)
            found = pull(np.ones(np.shape(value), np.asarray(value).dtype) if g is None else g)
        np.testing.assert_allclose(found, want, rtol=rtol, atol=1e-15, err_msg=language)
        assert np.shape(found) == np.shape(x)
        assert np.asarray(found).dtype == np.asarray(x).dtype


def hessian_is(f: Callable[..., Any], x: Any, want: Any, rtol: float = 1e-12) -> None:
    for language in ("python", "native"):
        with mixgrad.prefer(language):
            np.testing.assert_allclose(mixgrad.hessian(f)(A(x)), want, rtol=rtol, atol=1e-14, err_msg=language)


# --- sums and means --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "keepdims", "g", "want"),
    [
        (None, False, 2.0, np.full((2, 3), 2.0)),
        (None, True, A([[2.0]]), np.full((2, 3), 2.0)),
        (0, False, A([1.0, 10.0, 100.0]), [[1, 10, 100], [1, 10, 100]]),
        (-1, False, A([1.0, 10.0]), [[1, 1, 1], [10, 10, 10]]),
        (1, True, A([[1.0], [10.0]]), [[1, 1, 1], [10, 10, 10]]),
        ((1, 0), False, 3.0, np.full((2, 3), 3.0)),
        ((-2,), False, A([1.0, 10.0, 100.0]), [[1, 10, 100], [1, 10, 100]]),
        ((), False, X, X),
        (np.int64(1), False, A([1.0, 10.0]), [[1, 1, 1], [10, 10, 10]]),
    ],
)
def test_what_arrives_is_spread_over_the_axes(axis: Any, keepdims: bool, g: Any, want: Any) -> None:
    gradient_is(lambda x: mnp.sum(x, axis=axis, keepdims=keepdims), X, want, g=g)
    gradient_is(lambda x: x.sum(axis, keepdims=keepdims), X, want, g=g)
    n = X.size / X.sum(axis=axis).size
    gradient_is(lambda x: mnp.mean(x, axis=axis, keepdims=keepdims), X, A(want) / n, g=g)
    gradient_is(lambda x: x.mean(axis, keepdims=keepdims), X, A(want) / n, g=g)


def test_masks() -> None:
    gradient_is(lambda x: mnp.sum(x, where=MASK), X, MASK)
    gradient_is(lambda x: mnp.sum(x, axis=1, where=MASK), X, MASK * [[1.0], [10.0]], g=A([1.0, 10.0]))
    gradient_is(lambda x: mnp.mean(x, axis=0, where=MASK), X, MASK / [1.0, 1.0, 2.0])
    gradient_is(lambda x: mnp.mean(x, where=A([True, False, True])), X, A([0.25, 0, 0.25]) * np.ones((2, 1)))
    gradient_is(lambda x: mnp.prod(x, axis=1, where=MASK), X, [[4, 0, 1], [0, -1.5, 3]])
    gradient_is(lambda x: mnp.max(x, axis=1, where=MASK, initial=-9.0), X, [[0, 0, 1], [0, 1, 0]])
    gradient_is(lambda x: mnp.var(x, axis=1, where=MASK), X, [[-1.5, 0, 1.5], [0, 2.25, -2.25]])
    # What is masked may be anything.
    x = A([np.nan, 2.0, np.inf])
    gradient_is(lambda x: mnp.sum(x, where=np.isfinite(x)) ** 2, x, [0, 4, 0])
    for f in (mnp.mean, mnp.var, mnp.std, mnp.prod):
        found = mixgrad.grad(lambda x, f=f: f(x, where=A([False, True, False])))(x)
        assert np.isfinite(found).all()


def test_a_mask_of_the_gradients_own_dtype_costs_nothing() -> None:
    x = X.astype(np.float32)
    gradient_is(lambda x: mnp.mean(x, axis=1, where=MASK), x, MASK / [[2.0], [2.0]], rtol=1e-6)


def test_initial_values() -> None:
    gradient_is(lambda x: mnp.sum(x, initial=5.0), X, np.ones((2, 3)))
    gradient_is(lambda x: mnp.prod(x, initial=5.0), A([2.0, 3.0]), [15, 10])
    gradient_is(lambda x: mnp.max(x, initial=3.5), A([2.0, 3.0]), [0, 0])
    gradient_is(lambda x: mnp.max(x, initial=2.5), A([2.0, 3.0]), [0, 1])
    # A constant that ties takes its share.
    gradient_is(lambda x: mnp.max(x, initial=3.0), A([2.0, 3.0]), [0, 0.5])
    gradient_is(lambda x: mnp.min(x, initial=2.0), A([2.0, 2.0, 3.0]), [1 / 3, 1 / 3, 0])
    assert np.signbit(mixgrad.vjp(mnp.sum, A([[-0.0]]))[0]) == np.signbit(np.sum(A([[-0.0]])))


def test_dtypes() -> None:
    x = A([1.0, 2.0], np.float32)
    for f in (mnp.sum, mnp.mean, mnp.prod, mnp.var, mnp.std, mnp.cumsum, mnp.cumprod):
        value, pull = mixgrad.vjp(lambda x, f=f: f(x, dtype=np.float64), x)
        assert value.dtype == np.float64
        assert pull(np.ones(np.shape(value))).dtype == np.float32
    with pytest.raises(TypeError):
        mixgrad.grad(lambda x: mnp.sum(x, dtype=int) * 1.0)("no array")


@pytest.mark.parametrize(
    "f", [mnp.sum, mnp.mean, mnp.prod, mnp.max, mnp.min, mnp.var, mnp.std, mnp.cumsum, mnp.cumprod, np.ptp]
)
def test_a_single_number(f: Any) -> None:
    want = 0.0 if f in (mnp.var, mnp.std, np.ptp) else 1.0
    gradient_is(lambda x: mnp.sum(f(x)), A(3.0), want)
    gradient_is(lambda x: mnp.sum(f(x)), np.float64(3.0), want)
    gradient_is(lambda x: mnp.sum(f(x, axis=0)), A([3.0]), [want])


def test_numpys_own_errors() -> None:
    with pytest.raises(np.exceptions.AxisError):
        mixgrad.grad(lambda x: mnp.sum(x, axis=2))(X)
    with pytest.raises(ValueError, match="duplicate"):
        mixgrad.grad(lambda x: mnp.sum(x, axis=(0, 0)))(X)
    with pytest.raises(ValueError, match="zero-size"):
        mixgrad.grad(mnp.max)(np.ones(0))


def test_of_nothing() -> None:
    empty = np.ones((0, 3))
    for f in (mnp.sum, mnp.prod, lambda x: mnp.sum(mnp.max(x, axis=1)), lambda x: mnp.sum(mnp.cumprod(x))):
        gradient_is(f, empty, empty)
    gradient_is(lambda x: mnp.sum(mnp.prod(x, axis=0)), empty, empty)
    gradient_is(lambda x: mnp.max(x, initial=2.0), empty, empty)
    for f in (mnp.mean, mnp.var, mnp.std):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = mixgrad.grad(f)(empty)
        assert found.shape == (0, 3)
        assert any("empty slice" in str(w.message) or "Degrees of freedom" in str(w.message) for w in caught)


# --- variance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "n"), [({}, 4), ({"ddof": 1}, 3), ({"correction": 1}, 3), ({"ddof": 1.5}, 2.5)])
def test_variance_and_deviation(options: Any, n: float) -> None:
    x = A([1.0, 2.0, 4.0, 9.0])
    centred = x - x.mean()
    gradient_is(lambda x: mnp.var(x, **options), x, 2 * centred / n)
    gradient_is(lambda x: np.std(x, **options), x, centred / (n * np.std(x, **options)))
    gradient_is(lambda x: np.sum(x.std(**options) ** 2), x, 2 * centred / n)
    hessian_is(lambda x: mnp.var(x, **options), x, 2 * (np.eye(4) - 0.25) / n)


def test_deviation_of_constant_rows_among_others() -> None:
    x = A([[2.0, 2.0, 2.0], [1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    want = np.zeros((3, 3))
    want[1] = (x[1] - 3) / (3 * x[1].std())
    gradient_is(lambda x: mnp.std(x, axis=1), x, want)
    second = mixgrad.hvp(lambda x: mnp.sum(mnp.std(x, axis=1)))(x, np.ones((3, 3)))
    assert np.isfinite(np.asarray(second)).all()


def test_variance_of_complex_numbers() -> None:
    # The mean of |z - m|**2, which is real.
    z = A([1 + 2j, -1j, 3 + 0j, 0.5 + 1j])
    gradient_is(mnp.var, z, 2 * np.conj(z - z.mean()) / 4, g=1.0)
    gradient_is(mnp.std, z, np.conj(z - z.mean()) / (4 * np.std(z)), g=1.0)
    check_gradient(lambda z: mnp.std(z, ddof=1), z, order=2)


def test_of_one_observation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isnan(mixgrad.grad(lambda x: mnp.var(x, ddof=1))(A([3.0]))).all()


# --- largest and smallest --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("f", "sign"), [(mnp.max, 1.0), (mnp.min, -1.0)])
class TestExtremes:
    def test_ties_over_several_axes(self, f: Any, sign: float) -> None:
        x = sign * A([[[3.0, 1.0], [0.0, 3.0]], [[3.0, 3.0], [1.0, 2.0]]])
        want = (x == sign * 3.0) / 4
        gradient_is(f, x, want)
        gradient_is(lambda x: f(x, axis=(0, 2)), x, [[[1 / 3, 0], [0, 1]], [[1 / 3, 1 / 3], [0, 0]]])

    def test_infinities(self, f: Any, sign: float) -> None:
        gradient_is(f, sign * A([1.0, np.inf, np.inf]), [0, 0.5, 0.5])
        gradient_is(f, sign * A([-np.inf, -np.inf]), [0.5, 0.5])

    def test_what_arrives_does_not_leak(self, f: Any, sign: float) -> None:
        gradient_is(lambda x: f(x, axis=0), sign * A([[1.0], [2.0]]), [[0], [np.inf]], g=A([np.inf]))

    def test_nan_takes_nothing(self, f: Any, sign: float) -> None:
        with mixgrad.prefer("python"):
            found = mixgrad.grad(lambda x: mnp.sum(f(x, axis=1)[1:]))(sign * A([[np.nan, 1.0], [2.0, 1.0]]))
        np.testing.assert_array_equal(found, [[0, 0], [1, 0]])

    def test_second_derivatives(self, f: Any, sign: float) -> None:
        hessian_is(lambda x: f(x) ** 2, sign * A([3.0, 1.0]), [[2, 0], [0, 0]])
        hessian_is(lambda x: f(x**2), A([1.0, 1.0]), [[1, 0], [0, 1]])

    def test_complex_numbers_in_numpys_order(self, f: Any, sign: float) -> None:
        gradient_is(f, sign * A([1 + 1j, 1 + 2j, 1 + 2j]), [0, 0.5, 0.5])

    def test_many_ties_in_single_precision(self, f: Any, sign: float) -> None:
        gradient_is(f, np.zeros(1000, np.float32), np.full(1000, 1e-3), rtol=1e-6)


def test_ptp() -> None:
    gradient_is(np.ptp, A([1.0, 5.0, 1.0, 3.0]), [-0.5, 1, -0.5, 0])
    gradient_is(lambda x: np.ptp(x, axis=1, keepdims=True), X, [[0, -1, 1], [0, 1, -1]])
    gradient_is(np.ptp, A([2.0, 2.0]), [0, 0])


# --- products --------------------------------------------------------------------------------------------------------


def test_product_of_several_axes() -> None:
    x = np.arange(1.0, 9.0).reshape(2, 2, 2)
    total = x.prod(axis=(0, 2), keepdims=True)
    gradient_is(lambda x: mnp.prod(x, axis=(0, 2)), x, total / x)
    gradient_is(lambda x: mnp.prod(x, axis=(2, 0), keepdims=True), x, total / x)
    gradient_is(lambda x: x.prod(), x, x.prod() / x)
    gradient_is(lambda x: mnp.prod(x, axis=()), x, np.ones((2, 2, 2)))


@pytest.mark.parametrize("x", [[2.0, 0.0, 3.0, 5.0], [0.0, 0.0, 3.0, 5.0], [0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
def test_all_derivatives_of_a_product_with_zeros(x: list[float]) -> None:
    def without(*places: int) -> float:
        return float(np.prod(np.delete(x, places))) if len(set(places)) == len(places) else 0.0

    every = range(4)
    gradient_is(mnp.prod, A(x), [without(i) for i in every])
    hessian_is(mnp.prod, x, [[without(i, j) for j in every] for i in every])
    third = mixgrad.jacobian(mixgrad.hessian(mnp.prod))(A(x))
    np.testing.assert_allclose(third, [[[without(i, j, k) for k in every] for j in every] for i in every], atol=1e-14)


def test_product_of_numbers_whose_product_underflows() -> None:
    # Divided by a factor, this product would give 0.
    gradient_is(mnp.prod, A([1e-200, 1e-200, 1e150, 1e100]), [1e50, 1e50, 0, 0])


def test_product_of_complex_numbers() -> None:
    z = A([1 + 2j, -1j, 3 + 1j])
    gradient_is(mnp.prod, z, z.prod() / z, g=1 + 0j)
    gradient_is(mnp.prod, A([1 + 2j, 0j]), [0, 1 + 2j], g=1 + 0j)


# --- cumulative ------------------------------------------------------------------------------------------------------


def test_cumulative_sums() -> None:
    g = A([1.0, 10.0, 100.0])
    gradient_is(mnp.cumsum, A([1.0, 2.0, 3.0]), [111, 110, 100], g=g)
    gradient_is(lambda x: x.cumsum(axis=1), X, [[111, 110, 100], [111, 110, 100]], g=A([g, g]))
    gradient_is(lambda x: np.cumsum(x, axis=-2), X, [[11, 20, 30], [10, 10, 10]], g=A([[1.0, 10, 20], [10, 10, 10]]))
    gradient_is(np.cumsum, X, [[6, 5, 4], [3, 2, 1]])


def products(x: Any, g: Any) -> Any:
    """The gradient of cumprod by the definition."""
    n = len(x)
    return [sum(g[k] * np.prod(np.delete(x[: k + 1], i)) for k in range(i, n)) for i in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 33])
@pytest.mark.parametrize("zeros", [(), (0,), (2,), (0, 3), (1, 2, 7)])
def test_cumulative_products(n: int, zeros: tuple[int, ...], rng: np.random.Generator) -> None:
    x, g = rng.uniform(0.5, 1.5, n) * rng.choice([-1, 1], n), rng.standard_normal(n)
    x[[i for i in zeros if i < n]] = 0.0
    gradient_is(mnp.cumprod, x, products(x, g), g=g, rtol=1e-10)
    rows = A([x, np.roll(x, 1)])
    gradient_is(lambda x: x.cumprod(axis=1), rows, [products(row, g) for row in rows], g=A([g, g]), rtol=1e-10)
    gradient_is(
        lambda x: mnp.cumprod(x, axis=0), rows.T, A([products(row, g) for row in rows]).T, g=A([g, g]).T, rtol=1e-10
    )


def test_second_derivatives_of_a_cumulative_product_with_zeros() -> None:
    # a + ab + abc at (0, 0, 3) and (2, 0, 3).
    hessian_is(lambda x: mnp.sum(mnp.cumprod(x)), [0.0, 0.0, 3.0], [[0, 4, 0], [4, 0, 0], [0, 0, 0]])
    hessian_is(lambda x: mnp.sum(mnp.cumprod(x)), [2.0, 0.0, 3.0], [[0, 4, 0], [4, 0, 2], [0, 2, 0]])


# --- averages --------------------------------------------------------------------------------------------------------


class TestAverage:
    W = A([1.0, 2.0, 5.0])

    def test_without_weights(self) -> None:
        gradient_is(np.average, X, np.full((2, 3), 1 / 6))
        (value, total), _ = mixgrad.vjp(lambda x: np.average(x, axis=1, returned=True), X)
        np.testing.assert_array_equal(value, X.mean(axis=1))
        np.testing.assert_array_equal(total, [3, 3])

    def test_of_numbers_and_of_weights(self) -> None:
        x = X[0]
        average = np.average(x, weights=self.W)
        gradient_is(lambda x: np.average(x, weights=self.W), x, self.W / 8)
        gradient_is(lambda w: np.average(x, weights=w), self.W, (x - average) / 8)
        gradient_is(lambda w: np.average(x.tolist(), weights=w), self.W, (x - average) / 8)
        check_gradient(lambda x, w: np.average(x, weights=w), x, self.W, order=2, signs=False)

    def test_along_axes(self) -> None:
        f: Any
        for f in (
            lambda x, w: np.average(x, axis=1, weights=w),
            lambda x, w: np.average(x, axis=-1, weights=w, keepdims=True),
            lambda x, w: np.average(x, axis=(1,), weights=w, returned=True),
        ):
            values, wants = mixgrad.vjp(f, X, self.W)[0], f(X, self.W)
            for value, want in zip(values, wants, strict=True):
                np.testing.assert_allclose(value, want, rtol=1e-15)
            check_gradient(f, X, self.W, order=2, signs=False)
        check_gradient(lambda x, w: np.average(x, axis=0, weights=w), X, np.abs(X), order=2, signs=False)

    def test_errors_are_numpys(self) -> None:
        for weights, axis, error in (
            (A([1.0, -1.0, 0.0]), 1, ZeroDivisionError),
            (self.W, None, TypeError),
            (self.W, 0, ValueError),
        ):
            with pytest.raises(error) as by_numpy:
                np.average(X, axis=axis, weights=weights)
            with pytest.raises(error) as by_us:
                mixgrad.grad(lambda x, axis=axis, weights=weights: mnp.sum(np.average(x, axis=axis, weights=weights)))(
                    X
                )
            assert str(by_us.value) == str(by_numpy.value)


# --- by way of ufuncs, and what is not differentiable ----------------------------------------------------------------


def test_reduce_and_accumulate_of_ufuncs() -> None:
    gradient_is(np.add.reduce, X, np.ones((2, 3)))
    gradient_is(lambda x: np.multiply.reduce(x, axis=1), X, X.prod(axis=1, keepdims=True) / X)
    gradient_is(lambda x: np.maximum.reduce(x, axis=None), X, X == 4)
    gradient_is(lambda x: np.minimum.reduce(x, 1), X, [[0, 1, 0], [0, 0, 1]])
    gradient_is(np.add.accumulate, X, [[2, 2, 2], [1, 1, 1]])
    gradient_is(lambda x: np.multiply.accumulate(x, axis=1), X[:1], [products(X[0], np.ones(3))])


@pytest.mark.parametrize("name", ["any", "all", "argmax", "argmin", "count_nonzero"])
def test_what_is_not_differentiable_gives_plain_values(name: str) -> None:
    f = getattr(np, name)
    with mixgrad.Tape() as tape:
        x = tape.watch(X)
        for options in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}):
            found = f(x, **options)
            assert type(found) is not mixgrad.Array
            np.testing.assert_array_equal(found, f(X, **options), strict=True)
        if name != "count_nonzero":
            np.testing.assert_array_equal(getattr(x, name)(axis=1), getattr(X, name)(axis=1), strict=True)
    assert not mixgrad.registry[name].differentiable
