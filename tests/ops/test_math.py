# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops beyond what their samples check: closed forms, kinks, infinities, complex numbers, HIPS autograd."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.ops.math import sinc_derivative
from mixgrad.testing import check_gradient

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.array
INF, NAN = math.inf, math.nan


def gradients(f: Callable[..., Any], *args: Any, g: Any = None, language: Any = "python") -> tuple[Any, ...]:
    """The gradients of all arguments, with `g` (ones) arriving at the output."""
    with mixgrad.prefer(language):
        value, pull = mixgrad.vjp(f, *args)
        found = pull(np.ones(np.shape(value), np.asarray(value).dtype) if g is None else g)
    return found if len(args) > 1 else (found,)


def gradients_are(f: Callable[..., Any], args: Any, wants: Any, *, g: Any = None, rtol: float = 1e-14) -> None:
    """In both languages: the values, and each argument's shape and dtype."""
    for language in ("python", "native"):
        found = gradients(f, *args, g=g, language=language)
        for number, (one, arg, want) in enumerate(zip(found, args, wants, strict=True)):
            np.testing.assert_allclose(one, want, rtol=rtol, atol=0, err_msg=f"{language}, argument {number}")
            assert np.shape(one) == np.shape(arg)
            assert np.asarray(one).dtype == np.asarray(arg).dtype


def hessian_is(f: Callable[..., Any], x: Any, want: Any, rtol: float = 1e-13) -> None:
    for language in ("python", "native"):
        with mixgrad.prefer(language):
            np.testing.assert_allclose(mixgrad.hessian(f)(A(x)), want, rtol=rtol, atol=1e-15, err_msg=language)


# --- closed forms ----------------------------------------------------------------------------------------------------

BOTH = A([-1.7, -0.4, 0.3, 2.2])
POSITIVE = A([1e-3, 0.4, 1.0, 30.0])
UNIT = A([-0.999, -0.4, 0.0, 0.7])

FORMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "negative": (BOTH, lambda x: -np.ones_like(x)),
    "positive": (BOTH, np.ones_like),
    "absolute": (BOTH, np.sign),
    "fabs": (BOTH, np.sign),
    "square": (BOTH, lambda x: 2 * x),
    "sqrt": (POSITIVE, lambda x: 0.5 * x**-0.5),
    "cbrt": (BOTH, lambda x: np.abs(x) ** (-2 / 3) / 3),
    "reciprocal": (BOTH, lambda x: -(x**-2)),
    "exp": (BOTH, np.exp),
    "exp2": (BOTH, lambda x: np.log(2) * 2**x),
    "expm1": (A([-40.0, -1e-9, 0.0, 2.0]), np.exp),
    "log": (POSITIVE, lambda x: 1 / x),
    "log2": (POSITIVE, lambda x: 1 / (x * np.log(2))),
    "log10": (POSITIVE, lambda x: 1 / (x * np.log(10))),
    "log1p": (A([-0.9, 0.0, 1e-9, 5.0]), lambda x: 1 / (1 + x)),
    "sin": (BOTH, np.cos),
    "cos": (BOTH, lambda x: -np.sin(x)),
    "tan": (BOTH, lambda x: np.cos(x) ** -2),
    "arcsin": (UNIT, lambda x: ((1 - x) * (1 + x)) ** -0.5),
    "arccos": (UNIT, lambda x: -(((1 - x) * (1 + x)) ** -0.5)),
    "arctan": (BOTH, lambda x: 1 / (1 + x**2)),
    "sinh": (BOTH, np.cosh),
    "cosh": (BOTH, np.sinh),
    "tanh": (BOTH, lambda x: np.cosh(x) ** -2),
    "arcsinh": (BOTH, lambda x: (x**2 + 1) ** -0.5),
    "arccosh": (A([1.001, 2.0]), lambda x: ((x - 1) * (x + 1)) ** -0.5),
    "arctanh": (UNIT, lambda x: 1 / ((1 - x) * (1 + x))),
    "deg2rad": (BOTH, lambda x: np.full_like(x, np.pi / 180)),
    "radians": (BOTH, lambda x: np.full_like(x, np.pi / 180)),
    "rad2deg": (BOTH, lambda x: np.full_like(x, 180 / np.pi)),
    "degrees": (BOTH, lambda x: np.full_like(x, 180 / np.pi)),
    "sinc": (BOTH, lambda x: (np.cos(np.pi * x) - np.sinc(x)) / x),
}


@pytest.mark.parametrize("name", FORMS)
def test_closed_forms(name: str) -> None:
    x, form = FORMS[name]
    gradients_are(getattr(mnp, name), (x,), (form(x),), rtol=1e-13)
    gradients_are(getattr(np, name), (x,), (3 * form(x),), g=np.full(x.shape, 3.0), rtol=1e-13)
    single = x.astype(np.float32)
    gradients_are(getattr(mnp, name), (single,), (form(single.astype(float)),), rtol=1e-5)


UNARY_OF_HIPS = [
    "absolute", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "conj", "cos", "cosh",
    "exp", "exp2", "expm1", "imag", "log", "log10", "log1p", "log2", "negative", "real", "reciprocal", "sin",
    "sinh", "sqrt", "square", "tan", "tanh",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY_OF_HIPS)
@pytest.mark.parametrize("z", [0.3 + 0.4j, -1.2 + 0.7j, -0.6 - 1.4j, 1.7 - 0.2j])
def test_complex_convention_is_that_of_hips(name: str, z: complex) -> None:
    # Only derivatives with respect to a real target are compared: the parts of f, separately.
    if name == "arccosh":
        # HIPS takes the root of the other branch in the left half-plane.
        z = complex(abs(z.real), z.imag)
    for part in (anp.real, anp.imag):
        want = autograd.grad(lambda z, part=part: part(getattr(anp, name)(z)))(z)
        mine = getattr(mnp, part.__name__)
        found = mixgrad.grad(lambda z, mine=mine: mine(getattr(mnp, name)(z)))(z)
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14)


BINARY_OF_HIPS = [
    "add", "arctan2", "divide", "fmax", "fmin", "logaddexp", "logaddexp2", "maximum", "minimum", "multiply",
    "power", "subtract",
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY_OF_HIPS)
def test_binary_ops_against_hips(name: str, rng: np.random.Generator) -> None:
    x, y, g = rng.uniform(0.5, 2, (3, 1)), rng.uniform(-2, 2, 4), rng.standard_normal((3, 4))
    wants = tuple(autograd.grad(lambda x, y: anp.sum(getattr(anp, name)(x, y) * g), i)(x, y) for i in (0, 1))
    gradients_are(getattr(mnp, name), (x, y), wants, g=g, rtol=1e-11)


@pytest.mark.parametrize(
    ("f", "x", "want"),
    [
        (mnp.square, 0.0, 2.0),
        (mnp.absolute, -2.0, 0.0),
        (mnp.sqrt, 4.0, -1 / 32),
        (mnp.cbrt, 8.0, -2 / 9 / 32),
        (mnp.reciprocal, 2.0, 0.25),
        (mnp.exp2, 3.0, 8 * math.log(2) ** 2),
        (mnp.log10, 2.0, -0.25 / math.log(10)),
        (mnp.tan, 0.5, 2 * math.tan(0.5) / math.cos(0.5) ** 2),
        (mnp.tanh, 0.5, -2 * math.tanh(0.5) / math.cosh(0.5) ** 2),
        (mnp.arcsin, 0.5, 0.5 / 0.75**1.5),
        (mnp.arctan, 1.0, -0.5),
        (mnp.arcsinh, 1.0, -(2**-1.5)),
        (mnp.arccosh, 2.0, -2 / 3**1.5),
        (mnp.arctanh, 0.5, 1 / 0.75**2),
        (lambda x: mnp.hypot(x, 4.0), 3.0, 16 / 125),
        (lambda x: mnp.arctan2(x, 4.0), 3.0, -24 / 625),
        (lambda x: mnp.arctan2(3.0, x), 4.0, 24 / 625),
        (lambda x: mnp.logaddexp(x, 0.0), 0.0, 0.25),
        (lambda x: mnp.logaddexp2(x, 0.0), 0.0, math.log(2) / 4),
        (lambda x: 1.0 / x, -2.0, -0.25),
        (lambda x: x**3, -2.0, -12.0),
        (lambda x: 2.0**x, 3.0, 8 * math.log(2) ** 2),
        (lambda x: x**x, 1.0, 2.0),
        (lambda x: mnp.fmod(5.0, x) * x, 2.0, -4.0),
        (mnp.floor, 2.5, 0.0),
    ],
)
def test_second_derivatives(f: Any, x: float, want: float) -> None:
    hessian_is(f, x, want)


# --- powers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "y"), [(2.0, 3.0), (2.0, 0.0), (0.5, -1.5), (3.0, 1.0)])
@pytest.mark.parametrize("power", [mnp.power, mnp.float_power])
def test_mixed_second_derivative_of_a_power(power: Any, x: float, y: float) -> None:
    log = math.log(x)
    mixed = x ** (y - 1) * (1 + y * log)
    want = [[y * (y - 1) * x ** (y - 2), mixed], [mixed, x**y * log**2]]
    hessian_is(lambda v: power(v[0], v[1]), [x, y], want)


def test_powers_where_the_base_is_0() -> None:
    x, y = np.zeros(5), A([0.0, 0.5, 1.0, 2.0, 3.0])
    with np.errstate(divide="ignore"):
        gradients_are(mnp.power, (x, y), ([0, INF, 1, 0, 0], np.zeros(5)))
    gradients_are(mnp.power, (A([0j, 0j]), A([0j, 2 + 0j])), ([0, 0], [0, 0]))


def test_powers_of_infinity() -> None:
    gradients_are(lambda x: mnp.power(x, A([0.0, -1.0])), (A([INF, INF]),), ([0.0, 0.0],))


def test_a_negative_base_to_a_complex_power() -> None:
    # exp(y (log 2 + i pi)), whose logarithm is that of the complex number -2.
    z = 1.5 + 0.5j
    want = (-2 + 0j) ** z * (np.log(2) + 1j * np.pi)
    value, pull = mixgrad.vjp(lambda y: mnp.power(-2.0, y), z)
    np.testing.assert_allclose(value, (-2 + 0j) ** z, rtol=1e-14)
    np.testing.assert_allclose(pull(1 + 0j), want, rtol=1e-13)
    check_gradient(mnp.power, A([-2.0, 1.5]), A([z, z]), order=2)


def test_integer_bases_and_exponents_are_constants() -> None:
    gradients_are(lambda x: x ** A([2, 3, 0]), (A([3.0, -2.0, 0.0]),), ([6.0, 12.0, 0.0],))
    gradients_are(lambda y: A([2, 3]) ** y, (A([3.0, 2.0]),), ([8 * math.log(2), 9 * math.log(3)],))
    gradients_are(lambda x: x**2, (A([3.0], np.float32),), ([6.0],))


def test_float_power_of_single_precision_is_computed_in_double() -> None:
    x = A([1.1], np.float32)
    value, pull = mixgrad.vjp(lambda x: mnp.float_power(x, 3.0), x)
    assert value.dtype == np.float64
    found = pull(np.ones(1))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (3 * np.float64(x) ** 2).astype(np.float32))


# --- quotients and remainders ----------------------------------------------------------------------------------------


def test_all_second_derivatives_of_a_quotient() -> None:
    hessian_is(lambda v: v[0] / v[1], [3.0, 2.0], [[0, -0.25], [-0.25, 0.75]])


@pytest.mark.parametrize(("x", "y"), [(7.3, 2.0), (-7.3, 2.0), (7.3, -2.0), (-7.3, -2.0), (1e15 + 0.5, 3.0)])
def test_remainders(x: float, y: float) -> None:
    gradients_are(mnp.remainder, (x, y), (1.0, -math.floor(x / y)))
    gradients_are(mnp.fmod, (x, y), (1.0, -math.trunc(x / y)))
    gradients_are(lambda x, y: np.divmod(x, y)[1], (x, y), (1.0, -math.floor(x / y)))
    gradients_are(lambda x, y: x % y, (x, y), (1.0, -math.floor(x / y)))


@pytest.mark.parametrize(("x", "y", "times"), [(1.0, 0.1, 9), (6.0, 0.1, 59), (-8.0, 0.8, -9), (4.35, 0.01, 434)])
def test_the_quotient_of_fmod_is_exact(x: float, y: float, times: int) -> None:
    # 1 / 0.1 rounds to 10, but the float 0.1 is a little more than a tenth: it goes into 1 only 9 times.
    gradients_are(mnp.fmod, (x, y), (1.0, -times))


def test_divmod_and_floor_divide_give_plain_quotients() -> None:
    def f(x: Any) -> Any:
        quotient, rest = np.divmod(x, 2.0)
        assert type(quotient) is not mixgrad.Array
        assert type(x // 2.0) is not mixgrad.Array
        return (quotient * rest).sum()

    gradients_are(f, (A([7.0, -3.0]),), ([3.0, -2.0],))


def test_parts_of_numbers() -> None:
    x = A([2.75, -2.75])
    gradients_are(lambda x: np.modf(x)[0], (x,), ([1.0, 1.0],))
    gradients_are(lambda x: np.modf(x)[1], (x,), ([0.0, 0.0],))
    gradients_are(lambda x: np.frexp(x)[0], (x,), ([0.25, 0.25],))
    gradients_are(lambda x: np.ldexp(x, A([3, -1])), (x,), ([8.0, 0.5],))


# --- logarithms of sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [mnp.logaddexp, mnp.logaddexp2])
class TestLogaddexp:
    def test_large_numbers_keep_their_digits(self, f: Any) -> None:
        gradients_are(f, (1e10, 1e10), (0.5, 0.5))
        gradients_are(f, (-1e300, -1e300), (0.5, 0.5))

    def test_far_apart_is_no_overflow(self, f: Any) -> None:
        gradients_are(f, (1e4, -1e4), (1.0, 0.0))
        gradients_are(f, (-1e4, 1e4), (0.0, 1.0))

    def test_infinities(self, f: Any) -> None:
        gradients_are(f, (A([-INF, -INF, 0.0]), A([-INF, 0.0, -INF])), ([0.5, 0, 1], [0.5, 1, 0]))
        gradients_are(f, (A([INF, INF, -INF]), A([INF, 0.0, INF])), ([0.5, 1, 0], [0.5, 0, 1]))

    def test_a_reduction_that_starts_from_nothing(self, f: Any) -> None:
        def chain(x: Any) -> Any:
            total: Any = -INF
            for i in range(3):
                total = f(total, x[i])
            return total

        gradients_are(chain, (A([1.0, 1.0, 1.0]),), (np.full(3, 1 / 3),))
        gradients_are(chain, (A([-INF, 1.0, -INF]),), ([0.0, 1.0, 0.0],))


# --- distances and angles --------------------------------------------------------------------------------------------


def test_hypot_and_arctan2_neither_overflow_nor_underflow() -> None:
    for scale in (1e200, 1.0, 1e-200):
        gradients_are(mnp.hypot, (3 * scale, 4 * scale), (0.6, 0.8))
        gradients_are(mnp.arctan2, (3 * scale, 4 * scale), (0.16 / scale, -0.12 / scale))


def test_hypot_and_arctan2_at_the_origin_and_at_infinity() -> None:
    gradients_are(mnp.hypot, (0.0, 0.0), (0.0, 0.0))
    gradients_are(mnp.arctan2, (0.0, 0.0), (0.0, 0.0))
    gradients_are(mnp.arctan2, (A([1.0, INF, INF]), A([INF, 2.0, -INF])), (np.zeros(3), np.zeros(3)))
    assert mixgrad.grad(mixgrad.grad(lambda x: mnp.hypot(x, 0.0)))(0.0) == 0.0


@pytest.mark.parametrize("order", range(7))
def test_derivatives_of_sinc_against_their_integral(order: int) -> None:
    # sinc(x) is the integral of cos(pi x t) over t from 0 to 1.
    x = A([0.0, 1e-8, 0.3, -0.9, 1.0, 2.4, -6.5, 40.0])
    t, weights = np.polynomial.legendre.leggauss(120)
    t, weights = (t + 1) / 2, weights / 2
    want = (np.pi * t) ** order * np.cos(np.pi * x[:, None] * t + order * np.pi / 2) @ weights
    found = np.sinc(x) if order == 0 else sinc_derivative(x, order)
    np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-12 * np.pi**order)


# --- sizes and signs -------------------------------------------------------------------------------------------------


def test_signs() -> None:
    x, y = A([-2.0, 0.0, 3.0]), A([1.0, -1.0, -1.0])
    gradients_are(mnp.copysign, (x, y), ([-1.0, 0.0, -1.0], np.zeros(3)))
    gradients_are(mnp.heaviside, (x, y), (np.zeros(3), [0.0, 1.0, 0.0]))
    gradients_are(mnp.nextafter, (x, y), (np.ones(3), np.zeros(3)))


STEPS = [
    mnp.floor, mnp.ceil, mnp.trunc, mnp.rint, mnp.round, mnp.around, np.fix, mnp.sign, mnp.spacing, lambda x: mnp.round(x, 1),
]  # fmt: skip


@pytest.mark.parametrize("f", STEPS)
def test_steps_have_a_gradient_of_zero(f: Any) -> None:
    x = A([-1.3, 0.0, 2.5])
    gradients_are(f, (x,), (np.zeros(3),))
    with mixgrad.Tape() as tape:
        source = tape.watch(x)
        target = f(source).sum()
    np.testing.assert_array_equal(tape.gradient(target, source, unconnected="zero"), np.zeros(3))


# --- choices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("f", "sign"), [(mnp.maximum, 1), (mnp.fmax, 1), (mnp.minimum, -1), (mnp.fmin, -1)])
def test_shares_of_ties(f: Any, sign: int) -> None:
    x, y = sign * A([1.0, 2.0, 2.0, INF, -INF]), sign * A([2.0, 1.0, 2.0, INF, 0.0])
    gradients_are(f, (x, y), ([0, 1, 0.5, 0.5, 0], [1, 0, 0.5, 0.5, 1]))
    # Nothing of what arrives leaks to the other side, not even an infinity.
    gradients_are(f, (x[:2], y[:2]), ([0, INF], [-INF, 0]), g=A([-INF, INF]))
    hessian_is(lambda v: f(v[0], v[1]), [1.0, 1.0], np.zeros((2, 2)))


@pytest.mark.parametrize("f", [mnp.fmax, mnp.fmin])
def test_fmax_and_fmin_pass_over_nan(f: Any) -> None:
    gradients_are(f, (A([NAN, 1.0, NAN]), A([1.0, NAN, NAN])), ([0, 1, 1], [1, 0, 0]))


@pytest.mark.parametrize("f", [mnp.maximum, mnp.minimum])
def test_nan_takes_no_gradient(f: Any) -> None:
    gradients_are(f, (A([NAN, 1.0]), A([1.0, NAN])), ([0, 0], [0, 0]))


class TestClip:
    def test_bounds_take_over(self) -> None:
        a, low, high = A([-3.0, 0.5, 3.0]), A([-1.0, -1.0, -1.0]), A([1.0, 1.0, 1.0])
        gradients_are(np.clip, (a, low, high), ([0, 1, 0], [1, 0, 0], [0, 0, 1]))

    def test_shares_add_up_to_one(self) -> None:
        gradients_are(np.clip, (-1.0, -1.0, 1.0), (0.5, 0.5, 0.0))
        gradients_are(np.clip, (1.0, -1.0, 1.0), (0.5, 0.0, 0.5))
        for f in (lambda x: np.clip(x, x, 9.0), lambda x: np.clip(x, -9.0, x), lambda x: np.clip(x, x, x)):
            gradients_are(f, (A([2.0, -2.0]),), ([1.0, 1.0],))

    def test_of_crossed_bounds_the_upper_one_wins(self) -> None:
        gradients_are(np.clip, (0.0, 1.0, -1.0), (0.0, 0.0, 1.0))

    def test_infinite_bounds(self) -> None:
        gradients_are(lambda x: np.clip(x, -INF, INF), (A([2.0, -2.0]),), ([1.0, 1.0],))

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: np.clip(x, 0.0, None), lambda x: np.clip(x, a_min=0.0, a_max=None), lambda x: x.clip(0.0),
            lambda x: mnp.clip(x, 0, None), lambda x: mnp.clip(x, None, 0) + mnp.clip(x, 0, 9) - mnp.minimum(x, 0),
        ],
    )  # fmt: skip
    def test_one_bound(self, f: Any) -> None:
        x = A([-2.0, 3.0], np.float32)
        np.testing.assert_array_equal(mixgrad.vjp(f, x)[0], A([0, 3], np.float32), strict=True)
        gradients_are(f, (x,), ([0, 1],))

    def test_other_ways_to_give_the_bounds(self) -> None:
        x = A([-2.0, 0.5, 3.0])
        gradients_are(lambda x: np.clip(x, None, None), (x,), ([1, 1, 1],))
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            gradients_are(lambda x: np.clip(x, min=0.0, max=1.0), (x,), ([0, 1, 0],))
        gradients_are(lambda x: mnp.clip(x, 0.0, [1.0, 0.2, 1.0]), (x,), ([0, 0, 0],))
        gradients_are(lambda low: np.clip(x, low, 9.0), (0.0,), (1.0,))
        with pytest.raises(ValueError, match="the bounds are given twice"):
            mixgrad.grad(lambda x: mixgrad.ops.math.clip(x, 0.0, min=1.0).sum())(x)


class TestWhere:
    C = A([True, False])

    def test_branches(self) -> None:
        gradients_are(lambda x, y: mnp.where(self.C, x, y), (A([1.0, 2.0]), 3.0), ([1, 0], 1))
        gradients_are(lambda x, y: np.where(self.C, x, y), (A([1.0, 2.0]), A([[3.0], [4.0]])), ([2, 0], [[1], [1]]))

    def test_what_arrives_does_not_leak(self) -> None:
        gradients_are(lambda x, y: mnp.where(self.C, x, y), (0.0, 0.0), (INF, -INF), g=A([INF, -INF]))

    def test_python_numbers_keep_the_dtype(self) -> None:
        x = A([1.0, 2.0], np.float32)
        value, _ = mixgrad.vjp(lambda x: mnp.where(self.C, x, 0.5), x)
        assert value.dtype == np.float32
        gradients_are(lambda x: mnp.where(x > 1.5, 2.0, 3 * x), (x,), ([3, 0],))

    def test_a_condition_has_no_gradient(self) -> None:
        c = A([2.0, 0.0])
        gradients_are(lambda c: mnp.where(c, c, 1.0), (c,), ([1, 0],))
        gradients_are(lambda c: mnp.where(c, 3.0, 1.0), (c,), ([0, 0],))

    def test_in_second_order(self) -> None:
        hessian_is(lambda x: mnp.sum(mnp.where(x > 0, x**3, x)), [2.0, -2.0], [[12, 0], [0, 0]])


def test_nan_to_num_and_kin() -> None:
    x = A([NAN, INF, -INF, 2.0])
    gradients_are(np.nan_to_num, (x,), ([0, 0, 0, 1],))
    gradients_are(lambda x: np.nan_to_num(x, nan=3.0, posinf=1.0, neginf=0.0) ** 2, (x,), ([0, 0, 0, 4],))
    z = A([complex(NAN, 2.0), complex(3.0, INF)])
    gradients_are(np.nan_to_num, (z,), ([1j, 1],), g=A([1 + 1j, 1 + 1j]))
    check_gradient(np.nan_to_num, A([1 + 2j, -1j]), order=2)


# --- complex numbers -------------------------------------------------------------------------------------------------


def test_the_gradient_of_a_real_target_is_the_conjugate_of_the_steepest_ascent() -> None:
    # |z|**2: df/dx - i df/dy = 2x - 2iy.
    z = A([3 + 4j, -1j, 0j])
    for f in (
        lambda z: mnp.sum(mnp.abs(z) ** 2),
        lambda z: mnp.sum(mnp.real(z * mnp.conj(z))),
        lambda z: mnp.sum(z.real**2 + z.imag**2),
    ):
        np.testing.assert_allclose(mixgrad.grad(f)(z), 2 * np.conj(z), atol=1e-15)


def test_size_and_angle() -> None:
    z = A([3 + 4j, -2 + 0j, 0j])
    gradients_are(mnp.absolute, (z,), ([0.6 - 0.8j, -1, 0],), g=np.ones(3))
    gradients_are(mnp.angle, (z,), ([-1j / (3 + 4j), 0.5j, 0],), g=np.ones(3))
    gradients_are(lambda z: mnp.angle(z, deg=True), (z,), (np.rad2deg(1) * A([-1j / (3 + 4j), 0.5j, 0]),), g=np.ones(3))
    gradients_are(mnp.angle, (A([3.0, -2.0, 0.0]),), ([0, 0, 0],))
    assert mixgrad.grad(lambda x: mnp.real(mixgrad.grad(mnp.abs)(x + 0j)))(0.0) == 0.0


def test_real_numbers_under_complex_functions() -> None:
    x = A([3.0, -2.0], np.float32)
    gradients_are(mnp.real, (x,), ([1, 1],))
    gradients_are(mnp.imag, (x,), ([0, 0],))
    gradients_are(mnp.conj, (x,), ([1, 1],))
    gradients_are(lambda x: mnp.abs(x * (3 + 4j)), (x,), ([5, -5],), rtol=1e-6)


def test_sign_of_complex_numbers() -> None:
    # A step along z changes nothing, a step across it turns the sign by the step's length over |z|.
    z = 3 + 4j
    sign = z / abs(z)
    _, push = mixgrad.vjp(mnp.sign, z)
    for step, want in ((z, 0), (1j * z, 1j * sign)):
        change = [(push(g) * step).real for g in (1 + 0j, -1j)]
        np.testing.assert_allclose(complex(change[0], change[1]), want, atol=1e-15)
    check_gradient(mnp.sign, A([z, -1j, 2 + 0.5j]), order=2)
    assert mixgrad.vjp(mnp.sign, 0j)[1](1 + 0j) == 0


def test_arccosh_lies_on_numpys_branch() -> None:
    for z in (-1.2 + 0.7j, -2 - 0.1j, 0.5j, -0.3 - 2j):
        numerical = (np.arccosh(z + 1e-6) - np.arccosh(z - 1e-6)) / 2e-6
        np.testing.assert_allclose(mixgrad.vjp(mnp.arccosh, z)[1](1 + 0j), numerical, rtol=1e-8)


def test_real_if_close() -> None:
    f = np.real_if_close
    value, _ = mixgrad.vjp(f, A([1 + 1e-17j]))
    assert value.dtype == np.float64
    gradients_are(f, (A([2 + 0j, 3 + 0j]),), ([1, 1],), g=np.ones(2))
    gradients_are(f, (A([2 + 1j]),), ([1],))


def test_complex_ties_are_numpys_lexicographic_order() -> None:
    x, y = A([1 + 1j, 1 + 2j, 1 + 1j]), A([1 + 2j, 1 + 1j, 1 + 1j])
    gradients_are(mnp.maximum, (x, y), ([0, 1, 0.5], [1, 0, 0.5]))
    gradients_are(mnp.minimum, (x, y), ([1, 0, 0.5], [0, 1, 0.5]))


# --- not differentiable ----------------------------------------------------------------------------------------------

PREDICATES = [
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "isfinite", "isinf", "isnan", "signbit", "floor_divide",
]  # fmt: skip


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_give_plain_arrays(name: str) -> None:
    x = A([1.0, -2.0, 0.5])
    f = getattr(np, name)
    args = (x, x[::-1].copy()) if f.nin == 2 else (x,)
    with mixgrad.Tape() as tape:
        watched = [tape.watch(arg) for arg in args]
        found = f(*watched)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, f(*args), strict=True)
    assert not mixgrad.registry[name].differentiable


def test_bits_of_integers_are_numpys() -> None:
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "gcd", "lcm"):
        np.testing.assert_array_equal(
            mixgrad.registry[name](A([6, 1]), 2), getattr(np, name)(A([6, 1]), 2), strict=True
        )
    for name in ("invert", "bitwise_count"):
        np.testing.assert_array_equal(mixgrad.registry[name](A([6, -1])), getattr(np, name)(A([6, -1])), strict=True)
    with pytest.raises(TypeError):
        mixgrad.grad(lambda x: np.bitwise_and(x, 1).sum())(A([1.0]))


# --- names and dtypes ------------------------------------------------------------------------------------------------

ALIASES = {
    "mul": "multiply", "sub": "subtract", "div": "divide", "true_divide": "divide", "neg": "negative", "pow": "power",
    "mod": "remainder", "floordiv": "floor_divide", "abs": "absolute", "conj": "conjugate", "asin": "arcsin",
    "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "clip_by_value": "clip", "reduce_sum": "sum", "reduce_mean": "mean", "reduce_prod": "prod", "reduce_max": "max",
    "reduce_min": "min", "amax": "max", "amin": "min", "reduce_std": "std", "reduce_variance": "var", "reduce_any": "any",
    "reduce_all": "all",
}  # fmt: skip


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases(alias: str) -> None:
    assert mixgrad.registry[alias] is mixgrad.registry[ALIASES[alias]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("f", [mnp.multiply, mnp.divide, mnp.power, mnp.maximum, mnp.add])
def test_python_numbers_on_either_side_keep_the_dtype(f: Any, dtype: Any) -> None:
    x = A([1.5, 2.5], dtype)
    for call in (lambda x: f(x, 2.0), lambda x: f(2, x), lambda x: f(x, np.True_) if f is mnp.multiply else f(x, 2)):
        value, pull = mixgrad.vjp(call, x)
        assert value.dtype == dtype
        assert pull(np.ones(2, dtype)).dtype == dtype


def test_mixed_precision_comes_back_in_each_inputs_own() -> None:
    x, y = A([1.5, 2.5], np.float32), A([0.5, -0.5])
    gradients_are(mnp.multiply, (x, y), (y, x))
    gradients_are(mnp.multiply, (x, y * 1j), (np.zeros(2), x))


def test_out_and_where_of_ufuncs_are_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match="where"):
        mixgrad.grad(lambda x: np.add(x, 1.0, where=A([True, False])).sum())(A([1.0, 2.0]))
    with pytest.raises(errors.UnsupportedError, match="out="):
        mixgrad.grad(lambda x: np.add(x, 1.0, out=np.empty(2)).sum())(A([1.0, 2.0]))
