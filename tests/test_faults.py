# SPDX-License-Identifier: Apache-2.0
"""Faults that differentiation libraries have had, as small inputs with their right answers, and others of each kind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import check_gradient

if TYPE_CHECKING:
    from collections.abc import Callable


def gradient_is(f: Callable[..., Any], x: Any, want: Any, order: int = 1, rtol: float = 1e-12) -> None:
    """In both languages: the right values, and the argument's shape and dtype."""
    for language in ("native", "python"):
        with mixgrad.prefer(language), np.errstate(all="ignore"):
            g = f
            for _ in range(order - 1):
                g = mixgrad.elementwise_grad(g)
            found = mixgrad.grad(g)(x)
        np.testing.assert_allclose(found, want, rtol=rtol, atol=1e-14, err_msg=language)
        assert np.shape(found) == np.shape(x)
        assert np.asarray(found).dtype == np.asarray(x).dtype


class TestPower:
    """JAX #14397, TensorFlow #35011, JuliaDiff and others: nan at a zero base or a zero exponent."""

    def test_exponents_zero_one_two_at_zero(self) -> None:
        gradient_is(lambda x: mnp.sum(x ** np.array([0.0, 1.0, 2.0])), 0.0, 1.0)

    @pytest.mark.parametrize("exponent", [0, 0.0, 1, 1.0, 2, 2.0, 3, 4.0, np.array(2.0), np.array([1.0, 3.0])])
    def test_every_order_at_zero(self, exponent: Any) -> None:
        n = np.max(exponent)
        coefficient = 1.0
        for order in range(1, 6):
            coefficient *= n - order + 1
            want = (coefficient if order == n else 0.0) if np.size(exponent) == 1 else {1: 1.0, 3: 6.0}.get(order, 0.0)
            gradient_is(lambda x: mnp.sum(x**exponent), 0.0, want, order)

    def test_to_the_power_of_a_source(self) -> None:
        gradient_is(lambda y: mnp.power(0.0, y), 2.0, 0.0)
        gradient_is(lambda y: mnp.power(np.array([0.0, 2.0]), y).sum(), 3.0, 8 * np.log(2.0))
        gradient_is(lambda y: mnp.sum(mnp.power(0.0, y)), np.array([0.0, 1.0]), [0.0, 0.0])

    def test_negative_base(self) -> None:
        gradient_is(lambda x: x**3, -2.0, 12.0)
        gradient_is(lambda x: mnp.power(x, 2.0), -3.0, -6.0)
        gradient_is(lambda x: mnp.power(x, -1.0), -2.0, -0.25)

    def test_float_power(self) -> None:
        gradient_is(lambda x: mnp.float_power(x, 0.0), 0.0, 0.0)
        gradient_is(lambda x: mnp.float_power(x, 1.0), 0.0, 1.0)

    def test_square_and_reciprocal_agree(self) -> None:
        gradient_is(mnp.square, 0.0, 0.0)
        gradient_is(mnp.square, 0.0, 2.0, order=2)
        gradient_is(lambda x: x**-1, 2.0, -0.25)


class TestZero:
    """HIPS #570, #151, PyTorch #4320: square roots and what is made of them at 0."""

    def test_sqrt_has_its_one_sided_derivative(self) -> None:
        gradient_is(mnp.sqrt, 0.0, np.inf)
        gradient_is(mnp.cbrt, 0.0, np.inf)

    @pytest.mark.parametrize("f", [mnp.std, lambda x: mnp.std(x, ddof=1), lambda x: mnp.std(x, axis=0)])
    def test_std_of_a_constant(self, f: Any) -> None:
        gradient_is(f, np.array([1.0, 1.0, 1.0]), np.zeros(3))

    def test_abs_and_hypot(self) -> None:
        gradient_is(mnp.abs, 0.0, 0.0)
        gradient_is(mnp.abs, 0j, 0j)
        gradient_is(lambda x: mnp.hypot(x, 0.0), 0.0, 0.0)
        gradient_is(lambda x: mnp.hypot(x[0], x[1]), np.zeros(2), np.zeros(2))

    def test_var_of_a_constant(self) -> None:
        gradient_is(mnp.var, np.full(3, 2.0), np.zeros(3))

    def test_norm(self) -> None:
        found = mixgrad.grad(mnp.linalg.norm)(np.zeros(3))
        assert np.linalg.norm(found) <= 1

    @pytest.mark.parametrize(("order", "want"), [(1, 0.0), (2, -(np.pi**2) / 3), (3, 0.0), (4, np.pi**4 / 5)])
    def test_sinc(self, order: int, want: float) -> None:
        f: Any = mnp.sinc
        for _ in range(order):
            f = mixgrad.grad(f)
        np.testing.assert_allclose(f(0.0), want, rtol=1e-9, atol=1e-12)


class TestWhere:
    """JAX #1052: a nan in the branch that is not taken."""

    def test_the_double_guard(self) -> None:
        def f(x: Any) -> Any:
            safe = mnp.where(x > 0, x, 1.0)
            return mnp.sum(mnp.where(x > 0, mnp.sqrt(safe), 0.0))

        gradient_is(f, np.array([0.0, 4.0]), [0.0, 0.25])

    def test_the_branch_not_taken_gets_exactly_nothing(self) -> None:
        x = np.array([np.nan, 4.0, np.inf])
        gradient_is(lambda x: mnp.sum(mnp.where(np.array([False, True, False]), x, 0.0)), x, [0.0, 1.0, 0.0])

    def test_a_condition_computed_from_the_source(self) -> None:
        gradient_is(lambda x: mnp.sum(mnp.where(x > 0, 2.0 * x, -x)), np.array([1.0, -1.0]), [2.0, -1.0])

    def test_clip_outside(self) -> None:
        gradient_is(lambda x: mnp.sum(mnp.clip(x, -1.0, 1.0)), np.array([-2.0, 0.5, 2.0]), [0.0, 1.0, 0.0])


class TestProducts:
    """burn #5533, HIPS #378, #257, TensorFlow #3862: zeros in a product."""

    def test_prod_along_an_axis(self) -> None:
        x = np.array([[2.0, 0.0, 3.0], [0.0, 5.0, 0.0], [1.0, 2.0, 3.0]])
        gradient_is(lambda x: mnp.sum(mnp.prod(x, axis=1)), x, [[0.0, 6.0, 0.0], [0.0, 0.0, 0.0], [6.0, 3.0, 2.0]])

    def test_prod_of_all(self) -> None:
        gradient_is(mnp.prod, np.array([2.0, 0.0, 3.0]), [0.0, 6.0, 0.0])
        gradient_is(mnp.prod, np.array([0.0, 0.0, 3.0]), [0.0, 0.0, 0.0])
        gradient_is(mnp.prod, np.ones(0), np.ones(0))

    def test_prod_in_second_order(self) -> None:
        hessian = mixgrad.hessian(mnp.prod)(np.array([0.0, 0.0, 3.0]))
        np.testing.assert_allclose(hessian, [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    @pytest.mark.parametrize(
        ("x", "want"),
        [([2.0, 0.0, 3.0], [1.0, 8.0, 0.0]), ([0.0, 2.0, 0.0], [3.0, 0.0, 0.0]), ([0.0, 0.0], [1.0, 0.0])],
    )
    def test_cumprod(self, x: list[float], want: list[float]) -> None:
        gradient_is(lambda x: mnp.sum(mnp.cumprod(x)), np.array(x), want)


class TestTies:
    """HIPS #212, PyTorch PR #43519, onnxruntime #7217, keras #23616: what is equal shares."""

    def test_logaddexp(self) -> None:
        gradient_is(lambda x: mnp.logaddexp(x[0], x[1]), np.array([3.0, 3.0]), [0.5, 0.5])
        gradient_is(lambda x: mnp.logaddexp2(x[0], x[1]), np.array([3.0, 3.0]), [0.5, 0.5])
        gradient_is(lambda x: mnp.logaddexp(x[0], x[1]), np.array([1000.0, -1000.0]), [1.0, 0.0])
        gradient_is(lambda x: mnp.logaddexp(x[0], x[1]), np.array([-np.inf, 0.0]), [0.0, 1.0])

    @pytest.mark.parametrize("f", [mnp.maximum, mnp.minimum, mnp.fmax, mnp.fmin])
    def test_of_a_value_with_itself(self, f: Any) -> None:
        gradient_is(lambda x: f(x, x), 1.0, 1.0)
        gradient_is(lambda x: f(x, x * 1.0), 1.0, 1.0)

    @pytest.mark.parametrize("f", [mnp.maximum, mnp.minimum, mnp.fmax, mnp.fmin])
    def test_of_two_sources(self, f: Any) -> None:
        assert sum(mixgrad.grad(f, (0, 1))(2.0, 2.0)) == 1.0

    @pytest.mark.parametrize(("f", "sign"), [(mnp.max, 1.0), (mnp.min, -1.0), (mnp.amax, 1.0), (mnp.amin, -1.0)])
    def test_reductions(self, f: Any, sign: float) -> None:
        gradient_is(f, sign * np.array([3.0, 1.0, 3.0]), [0.5, 0.0, 0.5])
        x = sign * np.array([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
        gradient_is(lambda x: mnp.sum(f(x, axis=1)), x, [[0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])
        gradient_is(
            lambda x: mnp.sum(f(x, axis=0, keepdims=True)),
            x,
            [[0, 0, 0], [1, 1, 1]],
        )

    def test_float32_keeps_its_dtype(self) -> None:
        x = np.array([[1, 2], [4, 3]], np.float32)
        gradient_is(lambda x: mnp.sum(mnp.max(x, axis=1)), x, [[0.0, 1.0], [1.0, 0.0]])

    def test_the_same_input_twice(self) -> None:
        gradient_is(lambda x: x * x, 3.0, 6.0)
        gradient_is(lambda x: x + x, 3.0, 2.0)
        gradient_is(lambda x: x - x, 3.0, 0.0)
        gradient_is(lambda x: x / x, 3.0, 0.0)
        gradient_is(lambda m: mnp.sum(m @ m), np.array([[1.0, 2.0], [3.0, 4.0]]), [[7.0, 11.0], [9.0, 13.0]])
        gradient_is(lambda x: mnp.sum(mnp.concatenate([x, x])), np.ones(2), [2.0, 2.0])


class TestBroadcasting:
    """PyTorch #1787, #15223, MyGrad #373, TensorFlow's first multiplication gradient."""

    W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

    def test_axes_of_size_1_on_both_sides(self) -> None:
        a, b = np.array([[1.0], [2.0]]), np.array([[3.0, 4.0, 5.0]])
        gradient_is(lambda a: mnp.sum(a * b * self.W), a, [[26.0], [62.0]])
        gradient_is(lambda b: mnp.sum(a * b * self.W), b, [[9.0, 12.0, 15.0]])

    def test_a_scalar(self) -> None:
        gradient_is(lambda s: mnp.sum(s * np.array([1.0, 2.0, 4.0])), np.array(2.0), 7.0)
        gradient_is(lambda s: mnp.sum(s * np.array([1.0, 2.0, 4.0])), 2.0, 7.0)

    def test_size_0_against_size_1(self) -> None:
        gradient_is(lambda b: mnp.sum(np.zeros((4, 0)) + b), np.ones((4, 1)), np.zeros((4, 1)))
        gradient_is(lambda b: mnp.sum(np.zeros((0, 3)) * b), np.ones(3), np.zeros(3))
        gradient_is(lambda b: mnp.sum(np.zeros((4, 0)) + b), np.ones((4, 0)), np.zeros((4, 0)))

    def test_a_numpy_scalar_on_the_left(self) -> None:
        plain = np.ones(2, np.float32)
        with mixgrad.Tape() as tape:
            x = tape.watch(plain)
            functions: list[Any] = [
                lambda x: np.float64(2.0) * x,
                lambda x: np.float32(2.0) + x,
                lambda x: np.float64(2.0) ** x,
            ]
            for f in functions:
                assert type(f(x)) is mixgrad.Array
                assert f(x).dtype == f(plain).dtype
        gradient_is(lambda x: mnp.sum(np.float64(2.0) * x), np.ones(2), [2.0, 2.0])
        gradient_is(lambda x: mnp.sum(np.ones(2) / x), np.full(2, 2.0), [-0.25, -0.25])

    def test_where_and_matmul_broadcast_too(self) -> None:
        gradient_is(lambda s: mnp.sum(mnp.where(self.W > 3, s, 0.0)), 1.0, 3.0)
        gradient_is(lambda m: mnp.sum(np.ones((5, 2, 3)) @ m), np.ones((3, 2)), np.full((3, 2), 10.0))
        gradient_is(lambda m: mnp.sum(m @ np.ones((5, 3, 2))), np.ones((1, 2, 3)), np.full((1, 2, 3), 10.0))

    def test_broadcast_to(self) -> None:
        gradient_is(lambda x: mnp.sum(mnp.broadcast_to(x, (4, 3, 2)) * 2.0), np.ones((3, 1)), np.full((3, 1), 16.0))


class TestSizeZero:
    """PyTorch #45201."""

    def test_repeat_no_times(self) -> None:
        gradient_is(lambda x: mnp.sum(mnp.repeat(x, 0)), np.ones(3), np.zeros(3))
        gradient_is(lambda x: mnp.sum(mnp.repeat(x, [0, 2, 0])), np.ones(3), [0.0, 2.0, 0.0])
        gradient_is(lambda x: mnp.sum(mnp.tile(x, 0)), np.ones(3), np.zeros(3))

    @pytest.mark.parametrize(
        "f",
        [
            mnp.sum, lambda x: mnp.sum(mnp.sin(x) * x), lambda x: mnp.sum(mnp.sum(x, axis=0)), lambda x: mnp.sum(x[1:]),
            lambda x: mnp.sum(mnp.reshape(x, (0, 3))), lambda x: mnp.sum(mnp.concatenate([x, np.ones(2)])),
            lambda x: mnp.sum(mnp.cumsum(x)), lambda x: mnp.sum(mnp.outer(x, np.ones(2))), lambda x: x @ x,
            lambda x: mnp.sum(x[np.array([], int)]), lambda x: mnp.sum(mnp.where(x > 0, x, 1.0)),
        ],
    )  # fmt: skip
    def test_of_an_empty_source(self, f: Any) -> None:
        gradient_is(f, np.ones(0), np.ones(0))


class TestUnconnected:
    """TensorFlow #43043: a constant result has a gradient of the source's shape and dtype."""

    def test_of_a_matrix(self) -> None:
        gradient_is(lambda x: mnp.sum(np.ones(3)), np.ones((2, 2), np.float32), np.zeros((2, 2)))

    def test_an_unused_argument(self) -> None:
        _of_x, of_y = mixgrad.grad(lambda x, y: x * 2.0, (0, 1))(1.0, np.ones(3, np.complex64))
        np.testing.assert_array_equal(of_y, np.zeros(3))
        assert of_y.dtype == np.complex64

    def test_ops_without_a_slope(self) -> None:
        for f in (mnp.floor, mnp.ceil, mnp.rint, mnp.trunc, mnp.round, mnp.sign):
            gradient_is(f, 1.25, 0.0)


class TestIndexing:
    """HIPS #109 and its kind: repeated indices add up, negative steps turn round."""

    def test_take(self) -> None:
        w = np.array([1.0, 10.0, 100.0])
        x = np.array([1.0, 2.0, 3.0])
        gradient_is(lambda x: mnp.sum(mnp.take(x, np.array([2, 2, 0])) * w), x, [100.0, 0.0, 11.0])
        gradient_is(lambda x: mnp.sum(x[np.array([2, 2, 0])] * w), x, [100.0, 0.0, 11.0])
        gradient_is(lambda x: mnp.sum(x[[-1, 2, 0]] * w), x, [100.0, 0.0, 11.0])

    def test_slices(self) -> None:
        x = np.arange(5.0)
        gradient_is(lambda x: mnp.sum(x[::-2] * np.array([1.0, 10.0, 100.0])), x, [100.0, 0.0, 10.0, 0.0, 1.0])
        gradient_is(lambda x: mnp.sum(x[-2:]), x, [0.0, 0.0, 0.0, 1.0, 1.0])
        gradient_is(lambda x: x[2] + x[-1], x, [0.0, 0.0, 1.0, 0.0, 1.0])

    def test_masks_and_mixtures(self) -> None:
        x = np.arange(6.0).reshape(2, 3)
        gradient_is(lambda x: mnp.sum(x[x > 2]), x, [[0, 0, 0], [1, 1, 1]])
        gradient_is(lambda x: mnp.sum(x[:, [0, 0, 2]]), x, [[2, 0, 1], [2, 0, 1]])
        gradient_is(lambda x: mnp.sum(x[1, ..., None]), x, [[0, 0, 0], [1, 1, 1]])
        gradient_is(lambda x: mnp.sum(x[np.array([0, 0])[:, None], np.array([1, 2])]), x, [[0, 2, 2], [0, 0, 0]])


class TestContractions:
    """HIPS #98, #115, #376."""

    A = np.array([[1.0, 2.0], [3.0, 4.0]])

    def test_tensordot_with_negative_axes(self) -> None:
        gradient_is(
            lambda a: mnp.sum(mnp.tensordot(a, self.A, axes=[[-1], [0]])), np.ones((3, 2)), np.tile([3.0, 7.0], (3, 1))
        )
        gradient_is(
            lambda b: mnp.sum(mnp.tensordot(self.A, b, axes=[[-2], [-1]])), np.ones((3, 2)), np.tile([3.0, 7.0], (3, 1))
        )
        gradient_is(lambda a: mnp.tensordot(a, self.A, axes=2), np.ones((2, 2)), self.A)
        gradient_is(lambda a: mnp.sum(mnp.tensordot(a, self.A, axes=0)), np.ones(2), [10.0, 10.0])

    def test_einsum_trace(self) -> None:
        gradient_is(lambda m: mnp.einsum("ii->", m), self.A, np.eye(2))
        gradient_is(lambda m: mnp.sum(mnp.einsum("ii->i", m) * np.array([1.0, 10.0])), self.A, np.diag([1.0, 10.0]))

    def test_einsum_stretches_axes_of_size_1(self) -> None:
        x = np.array([3.0, 4.0])
        gradient_is(lambda x: mnp.einsum("i,i", x, np.array([2.0])), x, [2.0, 2.0])
        gradient_is(lambda y: mnp.einsum("i,i", x, y), np.array([2.0]), [7.0])

    def test_einsum_sums_what_is_in_one_operand_only(self) -> None:
        gradient_is(
            lambda m: mnp.sum(mnp.einsum("ij->j", m) * np.array([1.0, 10.0])), self.A, [[1.0, 10.0], [1.0, 10.0]]
        )
        gradient_is(lambda m: mnp.einsum("ij,k->", m, np.array([1.0, 2.0])), self.A, np.full((2, 2), 3.0))

    def test_matmul_with_vectors(self) -> None:
        v = np.array([1.0, 10.0])
        gradient_is(lambda v: mnp.sum(self.A @ v), v, [4.0, 6.0])
        gradient_is(lambda v: mnp.sum(v @ self.A), v, [3.0, 7.0])
        gradient_is(lambda v: v @ v, v, 2 * v)
        gradient_is(lambda m: mnp.sum(m @ v), self.A, [[1.0, 10.0], [1.0, 10.0]])
        gradient_is(lambda m: mnp.sum(mnp.dot(np.ones((3, 2)), m)), self.A, np.full((2, 2), 3.0))


class TestDtypes:
    """HIPS #229, #482, #361, TensorFlow #26143."""

    @pytest.mark.parametrize("x", [3, np.array([3, 4]), np.int64(3), True, np.array([True])])
    def test_integers_are_refused(self, x: Any) -> None:
        with pytest.raises(TypeError):
            mixgrad.grad(lambda x: mnp.sum(x * 0.5))(x)

    def test_integers_beside_a_source(self) -> None:
        gradient_is(lambda x: mnp.sum(x * np.array([1, 2])), np.ones(2), [1.0, 2.0])
        gradient_is(lambda x: mnp.sum(np.array([1, 2]) // 1 * x), np.ones(2, np.float32) * 2, [1.0, 2.0])

    def test_a_complex_result_is_refused(self) -> None:
        with pytest.raises(TypeError):
            mixgrad.grad(lambda x: x)(1.0j)
        with pytest.raises(TypeError):
            mixgrad.grad(lambda x: x * 1j)(1.0)

    def test_float32_stays(self) -> None:
        x = np.array([1.0, 2.0], np.float32)
        for f in (
            lambda x: mnp.sum(x * 2.0),
            lambda x: mnp.sum(x**2.0),
            lambda x: mnp.mean(2.0 * x / 3.0),
            lambda x: mnp.sum(mnp.where(x > 0, x, 0.0)),
        ):
            assert mixgrad.grad(f)(x).dtype == np.float32

    def test_mixed_precision_casts_back(self) -> None:
        gradient_is(lambda x: mnp.sum(x * np.array([1.0, 2.0])), np.ones(2, np.float32), [1.0, 2.0])
        gradient_is(lambda x: mnp.real(mnp.sum(x * np.array([1.0 + 2.0j, 3.0]))), np.ones(2), [1.0, 3.0])


class TestMemoryIsNotShared:
    """PyTorch #46168, PR #119334, #839, MyGrad #93, Warp #1350, PyTorch #9391."""

    def test_gradients_among_each_other(self) -> None:
        a, b = np.ones(3), np.ones(3)
        of_a, of_b = mixgrad.grad(lambda a, b: mnp.sum(a + b), (0, 1))(a, b)
        of_a *= 100.0
        np.testing.assert_array_equal(of_b, np.ones(3))
        np.testing.assert_array_equal(b, np.ones(3))

    def test_a_gradient_with_the_values_it_came_from(self) -> None:
        x, w = np.ones(1000), np.ones(1000)
        gradient = mixgrad.grad(lambda x: mnp.sum(x * w))(x)
        assert not np.shares_memory(gradient, w)
        value, gradient = mixgrad.value_and_grad(lambda x: x)(np.array(3.0))
        assert value == 3.0
        out, pull = mixgrad.vjp(lambda x: x, x)
        assert not np.shares_memory(out, x)
        g = np.ones(1000)
        assert not np.shares_memory(pull(g), g)
        assert not np.shares_memory(mixgrad.vjp(lambda x: x.reshape(10, 100), x)[0], x)

    def test_writeable(self) -> None:
        for f in (mnp.sum, lambda x: mnp.sum(x * x), lambda x: mnp.sum(x.T), lambda x: mnp.sum(x[::-1]), lambda x: 1.0):
            assert mixgrad.grad(f)(np.ones((3, 3))).flags.writeable

    def test_a_change_between_recording_and_gradient(self) -> None:
        x = np.array([3.0])
        _, pull = mixgrad.vjp(lambda x: x * x, x)
        x[0] = 5.0
        np.testing.assert_array_equal(pull(np.ones(1)), [6.0])
        big = np.full(100_000, 3.0)
        _, pull = mixgrad.vjp(lambda x: x * x, big)
        big += 2.0
        with pytest.raises(errors.MutatedInputError):
            pull(np.ones(100_000))

    def test_augmented_assignment_spares_the_caller(self) -> None:
        x = np.array([1.0, 2.0])

        def f(v: Any) -> Any:
            y = v
            y += v
            y *= 3.0
            return mnp.sum(y * y)

        gradient_is(f, x, [72.0, 144.0])
        np.testing.assert_array_equal(x, [1.0, 2.0])

    def test_an_ndarray_does_not_swallow_an_array(self) -> None:
        def f(v: Any) -> Any:
            y = np.zeros(2)
            y += v
            return mnp.sum(y)

        with pytest.raises(TypeError):
            mixgrad.grad(f)(np.ones(2))


class TestNesting:
    """JuliaDiff/ForwardDiff #83."""

    def test_closures_over_a_variable(self) -> None:
        assert mixgrad.grad(lambda x: x * mixgrad.grad(lambda y: x + y)(1.0))(1.0) == 1.0
        assert mixgrad.grad(lambda x: mixgrad.grad(lambda y: x * y)(x))(3.0) == 1.0
        assert mixgrad.grad(lambda x: mixgrad.grad(lambda y: x * y * y)(x))(3.0) == 12.0

    def test_forward_in_forward(self) -> None:
        inner: Any = lambda x: mixgrad.jvp(lambda y: x + y, (1.0,), (1.0,))[1]
        assert mixgrad.jvp(lambda x: x * inner(x), (1.0,), (1.0,))[1] == 1.0


class TestThreads:
    """HIPS PR #659, PyTorch #1868."""

    def test_second_derivatives_in_eight_threads(self) -> None:
        g = mixgrad.grad(mixgrad.grad(lambda x: mnp.sin(x) * x))
        wrong: list[Any] = []

        def work(k: int) -> None:
            for i in range(150):
                x = 0.01 * (i + k)
                try:
                    found = g(x)
                    if abs(found - (2 * np.cos(x) - x * np.sin(x))) > 1e-9:
                        wrong.append((x, found))
                except Exception as error:  # noqa: BLE001  any failure is reported by the main thread
                    wrong.append(repr(error))

        old = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(old)
        assert wrong == []


class TestDepth:
    """micrograd PR #90, AutoHOOT #101: recursion, in the walk and in the destructor."""

    def test_a_long_chain(self) -> None:
        def f(x: Any) -> Any:
            y = x
            for _ in range(30_000):
                y = y + 1e-6 * x
            return y

        assert mixgrad.grad(f)(1.0) == pytest.approx(1.03, rel=1e-9)
        _, pull = mixgrad.vjp(f, 1.0)
        del pull


class TestCustomGradients:
    """TensorFlow #97697, #42386."""

    def test_results_are_freed(self) -> None:
        results: list[Any] = []

        def forward(x: Any) -> Any:
            y = np.multiply(x, 2.0)
            results.append(weakref.ref(y))
            return y

        f = mixgrad.register_op("faults_double")(forward)
        f.gradient(lambda g, x, out: 2.0 * g)
        try:
            for _ in range(4):
                np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(f(x)))(np.ones(5)), np.full(5, 2.0))
            gc.collect()
            assert [r() for r in results] == [None] * 4
        finally:
            mixgrad.unregister("faults_double")

    def test_an_error_is_not_swallowed(self) -> None:
        class Oops(Exception):
            pass

        def bad(g: Any, x: Any, out: Any) -> Any:
            raise Oops("in the gradient")

        f = mixgrad.register_op("faults_bad")(lambda x: 2.0 * x)
        f.gradient(bad)
        try:
            for _ in range(3):
                with pytest.raises(Oops, match="in the gradient"):
                    mixgrad.grad(lambda x: mnp.sum(f(x)))(np.ones(2))
        finally:
            mixgrad.unregister("faults_bad")
        np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(x * x))(np.ones(2)), [2.0, 2.0])
        assert mixgrad.grad(mixgrad.grad(lambda x: x * x * x))(2.0) == 12.0


def test_an_output_that_is_also_an_input() -> None:
    def f(x: Any) -> Any:
        y = mnp.exp(x)
        return mnp.sum(y * y + y)

    check_gradient(f, np.array([0.1, -0.5]), order=2)
