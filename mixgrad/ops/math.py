# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops, under NumPy's names.

Gradients are plain holomorphic derivatives, nothing is conjugated. At a kink they are a subgradient: ties share equally,
and what has a smallest subgradient (the absolute value at 0) takes that. No condition asks about `g`, in which every
gradient is linear.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mixgrad.numpy as mnp
from mixgrad import _core
from mixgrad.ops._samples import array, between, pairs, unary
from mixgrad.protocol import implements
from mixgrad.registry import Sample, op

_LN2 = math.log(2)
_LN10 = math.log(10)
_DEGREE = math.pi / 180


def _ratio(a: Any, b: Any) -> Any:
    """a / b, and 0 where b is 0, in every order of derivatives."""
    zero = b == 0
    return mnp.where(zero, 0, a / mnp.where(zero, 1, b))


def _to_larger(g: Any, x: Any, y: Any) -> Any:
    """The share of `g` that belongs to x where the larger of x and y is taken."""
    return mnp.where(x > y, g, mnp.where(x == y, g / 2, 0))


# --- arithmetic ------------------------------------------------------------------------------------------------------

add = op(np.add, saves="", samples=pairs(complex=True))
add.gradient(lambda g, x, y, out: g, lambda g, x, y, out: g)

subtract = op(np.subtract, aliases=("sub",), saves="", samples=pairs(complex=True))
subtract.gradient(lambda g, x, y, out: g, lambda g, x, y, out: -g)

multiply = op(np.multiply, aliases=("mul",), saves=["y", "x"], samples=pairs(complex=True, at=[(0, 0), (0, 2)]))
multiply.gradient(lambda g, x, y, out: g * y, lambda g, x, y, out: g * x)

divide = op(
    np.divide,
    aliases=("div", "true_divide", "truediv"),
    saves=["y", "y output"],
    samples=pairs(complex=True, at=[(0, 2), (0, -1)]),
)
divide.gradient(lambda g, x, y, out: g / y, lambda g, x, y, out: -g * out / y)

negative = op(np.negative, aliases=("neg",), saves="", samples=unary(complex=True))
negative.gradient(lambda g, x, out: -g)

positive = op(np.positive, saves="", samples=unary(complex=True))
positive.gradient(lambda g, x, out: g)

reciprocal = op(np.reciprocal, saves="output", samples=unary(complex=True))
reciprocal.gradient(lambda g, x, out: -g * out * out)

remainder = op(np.remainder, aliases=("mod", "floormod"), saves=["", "inputs"], samples=pairs(scalar=0.7))
remainder.gradient(lambda g, x, y, out: g, lambda g, x, y, out: -g * mnp.floor_divide(x, y))

fmod = op(np.fmod, aliases=("truncatemod",), saves=["", "inputs output"], samples=pairs(scalar=0.7))
# The quotient is a whole number: rounding it mends what the division spoiled.
fmod.gradient(lambda g, x, y, out: g, lambda g, x, y, out: -g * mnp.rint((x - out) / y))


@implements(np.divmod)
def divmod(x: Any, y: Any) -> tuple[Any, Any]:
    return mnp.floor_divide(x, y), mnp.remainder(x, y)


modf = op(np.modf, multiple=True, saves="", samples=unary())
modf.gradient(lambda g, x, out: g[0])


# --- powers ----------------------------------------------------------------------------------------------------------


def _power_x(g: Any, x: Any, y: Any, power: Any) -> Any:
    # x**0 is 1 everywhere: at 0 the exponent -1 must not meet it.
    return g * (y * power(x, mnp.where((x == 0) & (y == 0), 0, y - 1)))


def _power_y(g: Any, x: Any, out: Any) -> Any:
    # 0**y is 0. The one has the result's dtype: a negative number to a complex power needs a complex logarithm.
    return g * (out * mnp.log(mnp.where(x == 0, out.dtype.type(1), x)))


_AT_ZERO = [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (3, 1)]

power = op(
    np.power,
    aliases=("pow",),
    saves=["inputs", "x output"],
    samples=lambda: [
        *pairs((0.3, 2.0), complex=True, at=_AT_ZERO)(),
        *(Sample(array(2, 3), exponent) for exponent in (-2, -1.0, 0, 1.0, 2, 3.0)),
        Sample(array(3), np.array([0, 2, 3])),
        Sample(np.array([0.0, -1.0, 2.0]), 2),
        Sample(np.array([0.0, -1.0, 2.0]), 0.0),
        Sample(array(3, dtype=np.float32), 2),
        Sample(array(3, dtype=np.complex128), 3),
    ],
)
power.gradient(
    lambda g, x, y, out: _power_x(g, x, y, mnp.power),
    lambda g, x, y, out: _power_y(g, x, out),
)

float_power = op(
    np.float_power,
    saves=["inputs", "x output"],
    samples=lambda: [*pairs((0.3, 2.0), complex=True, at=_AT_ZERO)(), Sample(array(3), 3), Sample(array(3), 0)],
)
float_power.gradient(
    lambda g, x, y, out: _power_x(g, x, y, mnp.float_power),
    lambda g, x, y, out: _power_y(g, x, out),
)

square = op(np.square, saves="x", samples=unary(complex=True, at=[0.0, -2.0]))
square.gradient(lambda g, x, out: g * (2 * x))

sqrt = op(np.sqrt, saves="output", samples=unary(0.3, 2.5, complex=True))
sqrt.gradient(lambda g, x, out: g / (2 * out))

cbrt = op(np.cbrt, saves="output", samples=unary())
cbrt.gradient(lambda g, x, out: g / (3 * out * out))


# --- exponentials and logarithms -------------------------------------------------------------------------------------

exp = op(np.exp, saves="output", samples=unary(complex=True, at=[0.0, -800.0, 5.0]))
exp.gradient(lambda g, x, out: g * out)

exp2 = op(np.exp2, saves="output", samples=unary(complex=True))
exp2.gradient(lambda g, x, out: g * (out * _LN2))

expm1 = op(np.expm1, saves="x", samples=unary(complex=True, at=[0.0, 1e-9, -40.0]))
expm1.gradient(lambda g, x, out: g * mnp.exp(x))

log = op(np.log, saves="x", samples=unary(0.3, 3.0, complex=True))
log.gradient(lambda g, x, out: g / x)

log2 = op(np.log2, saves="x", samples=unary(0.3, 3.0, complex=True))
log2.gradient(lambda g, x, out: g / (x * _LN2))

log10 = op(np.log10, saves="x", samples=unary(0.3, 3.0, complex=True))
log10.gradient(lambda g, x, out: g / (x * _LN10))

log1p = op(np.log1p, saves="x", samples=unary(-0.7, 2.0, complex=True, at=[0.0, 1e-9]))
log1p.gradient(lambda g, x, out: g / (1 + x))


def _excess(x: Any, y: Any) -> Any:
    """y - x, and 0 where both are the same infinity."""
    same = mnp.isinf(x) & (x == y)
    return mnp.where(same, 0, y) - mnp.where(same, 0, x)


# 1 / (1 + exp(y - x)) without overflow; exp(x - out) would lose digits where x and y are large.
logaddexp = op(np.logaddexp, saves="inputs", samples=pairs(at=[(3, 3), (1000, -1000), (-30, 5)]))
logaddexp.gradient(
    lambda g, x, y, out: g * mnp.exp(-mnp.logaddexp(0, _excess(x, y))),
    lambda g, x, y, out: g * mnp.exp(-mnp.logaddexp(0, _excess(y, x))),
)

logaddexp2 = op(np.logaddexp2, saves="inputs", samples=pairs(at=[(3, 3), (1000, -1000), (-30, 5)]))
logaddexp2.gradient(
    lambda g, x, y, out: g * mnp.exp2(-mnp.logaddexp2(0, _excess(x, y))),
    lambda g, x, y, out: g * mnp.exp2(-mnp.logaddexp2(0, _excess(y, x))),
)


@op(
    inputs=("x",),
    saves="",
    broadcasts=True,
    numpy=np.ldexp,
    samples=lambda: [
        Sample(array(3), np.array([0, -2, 3])),
        Sample(array(2, 1), np.array([1, 2])),
        Sample(array(), 2),
        Sample(array(0), 2),
        Sample(array(3, dtype=np.float32), np.array([0, -2, 3])),
    ],
)
def ldexp(x: Any, y: Any) -> Any:
    return np.ldexp(x, y)


ldexp.gradient(lambda g, x, out, y: ldexp(g, y))

frexp = op(np.frexp, multiple=True, saves="output", samples=unary(at=[0.0, -5.0]))
frexp.gradient(lambda g, x, out: g[0] * mnp.exp2(-out[1]))


# --- trigonometric and hyperbolic functions --------------------------------------------------------------------------

sin = op(np.sin, saves="x", samples=unary(complex=True, at=[0.0, 100.0]))
sin.gradient(lambda g, x, out: g * mnp.cos(x))

cos = op(np.cos, saves="x", samples=unary(complex=True, at=[0.0, 100.0]))
cos.gradient(lambda g, x, out: -g * mnp.sin(x))

tan = op(np.tan, saves="output", samples=unary(-1.2, 1.2, complex=True))
tan.gradient(lambda g, x, out: g * (1 + out * out))

# (1 - x)(1 + x) keeps the digits that 1 - x*x loses near 1.
arcsin = op(np.arcsin, aliases=("asin",), saves="x", samples=unary(-0.9, 0.9, complex=True))
arcsin.gradient(lambda g, x, out: g / mnp.sqrt((1 - x) * (1 + x)))

arccos = op(np.arccos, aliases=("acos",), saves="x", samples=unary(-0.9, 0.9, complex=True))
arccos.gradient(lambda g, x, out: -g / mnp.sqrt((1 - x) * (1 + x)))

arctan = op(np.arctan, aliases=("atan",), saves="x", samples=unary(complex=True))
arctan.gradient(lambda g, x, out: g / (1 + x * x))

sinh = op(np.sinh, saves="x", samples=unary(complex=True))
sinh.gradient(lambda g, x, out: g * mnp.cosh(x))

cosh = op(np.cosh, saves="x", samples=unary(complex=True))
cosh.gradient(lambda g, x, out: g * mnp.sinh(x))

tanh = op(np.tanh, saves="output", samples=unary(complex=True, at=[0.0, 50.0]))
tanh.gradient(lambda g, x, out: g * (1 - out * out))

arcsinh = op(np.arcsinh, aliases=("asinh",), saves="x", samples=unary(complex=True))
arcsinh.gradient(lambda g, x, out: g / mnp.sqrt(1 + x * x))

# Two square roots: the root of the product lies on the other branch in the left half-plane.
arccosh = op(np.arccosh, aliases=("acosh",), saves="x", samples=unary(1.2, 3.0, complex=True))
arccosh.gradient(lambda g, x, out: g / (mnp.sqrt(x - 1) * mnp.sqrt(x + 1)))

arctanh = op(np.arctanh, aliases=("atanh",), saves="x", samples=unary(-0.9, 0.9, complex=True))
arctanh.gradient(lambda g, x, out: g / ((1 - x) * (1 + x)))


def _over_square(a: Any, x: Any, y: Any) -> Any:
    """a / (x**2 + y**2), and 0 at the origin and at infinity. The square would overflow before the distance does."""
    distance = mnp.hypot(x, y)
    outside = (distance == 0) | mnp.isinf(distance)
    distance = mnp.where(outside, 1, distance)
    return mnp.where(outside, 0, a / distance / distance)


arctan2 = op(np.arctan2, aliases=("atan2",), saves="inputs", samples=pairs(at=[(0, 0), (0, 1), (-2, 0), (3, 4)]))
arctan2.gradient(
    lambda g, x, y, out: g * _over_square(y, x, y),
    lambda g, x, y, out: -g * _over_square(x, x, y),
)

hypot = op(np.hypot, saves=["x output", "y output"], samples=pairs(at=[(0, 0), (0, 1), (-2, 0), (3, 4)]))
hypot.gradient(lambda g, x, y, out: g * _ratio(x, out), lambda g, x, y, out: g * _ratio(y, out))

deg2rad = op(np.deg2rad, saves="", samples=unary())
deg2rad.gradient(lambda g, x, out: g * _DEGREE)

radians = op(np.radians, saves="", samples=unary())
radians.gradient(lambda g, x, out: g * _DEGREE)

rad2deg = op(np.rad2deg, saves="", samples=unary())
rad2deg.gradient(lambda g, x, out: g / _DEGREE)

degrees = op(np.degrees, saves="", samples=unary())
degrees.gradient(lambda g, x, out: g / _DEGREE)


@op(saves="x", numpy=np.sinc, samples=unary(complex=True, at=[0.0, 1.0, 1e-3, -2.5]))
def sinc(x: Any) -> Any:
    return np.sinc(x)


@op(
    inputs=("x",),
    saves="x",
    samples=lambda: [
        *(Sample(np.array([0.0, 1e-3, -0.4, 1.0, -2.5, 7.0]), order) for order in (1, 2, 5)),
        Sample(array(), 1),
        Sample(array(0), 2),
        Sample(array(3, dtype=np.float32), order=3),
        Sample(array(3, dtype=np.complex128), 1),
    ],
)
def sinc_derivative(x: Any, order: int) -> Any:
    """The derivative of this order of `numpy.sinc`, which at 0 is no fraction.

    >>> sinc_derivative(np.array([0.0, 0.5]), 2)
    array([-3.28986813, -0.72955956])
    """
    z = np.pi * np.asarray(x)
    near = np.abs(z) < order + 2
    # The integral over t from 0 to 1 of (pi t)**order cos(z t + order pi / 2), term by term.
    small = np.where(near, z, 0)
    term, series = small ** (order % 2), np.zeros_like(small)
    for m in range(order % 2, 24 + 3 * (order + 2), 2):
        series = series + (-1) ** ((m + order) // 2) / (m + order + 1) * term
        term = term * (small * small) / ((m + 1) * (m + 2))
    # Further out: x sinc(x) is sin(pi x) / pi, differentiated by the product rule.
    large = np.where(near, 1, z)
    far = np.sin(large) / large
    for n in range(1, order + 1):
        far = (np.sin(large + n % 4 * (np.pi / 2)) - n * far) / large
    return np.pi**order * np.where(near, series, far)


sinc.gradient(lambda g, x, out: g * sinc_derivative(x, 1))
sinc_derivative.gradient(lambda g, x, out, order: g * sinc_derivative(x, order + 1))


# --- sizes and signs -------------------------------------------------------------------------------------------------


def _direction(x: Any) -> Any:
    """The derivative of |x|: the sign, conjugated where x is complex; 0 at 0."""
    return mnp.conjugate(mnp.sign(x)) if x.dtype.kind == "c" else mnp.sign(x)


absolute = op(np.absolute, aliases=("abs",), saves="x", samples=unary(complex=True, at=[0.0, -1.0]))
absolute.gradient(lambda g, x, out: g * _direction(x))

fabs = op(np.fabs, saves="x", samples=unary(at=[0.0, -1.0]))
fabs.gradient(lambda g, x, out: g * mnp.sign(x))

sign = op(np.sign, saves="inputs output", samples=unary(complex=True))


@sign.gradient(argument=0)
def _sign_x(g: Any, x: Any, out: Any) -> Any:
    if x.dtype.kind != "c":
        return np.zeros(x.shape, x.dtype)
    # Only the part of a step that turns x counts: the part across x, divided by its size.
    return 1j * _ratio(mnp.imag(g * out) * mnp.conjugate(out), mnp.absolute(x))


copysign = op(np.copysign, saves=["inputs", ""], samples=pairs())
copysign.gradient(lambda g, x, y, out: g * (mnp.sign(x) * mnp.copysign(1, y)), None)

heaviside = op(np.heaviside, saves=["", "x"], samples=pairs(at=[(0, 0.5), (0, 2), (1, 3)]))
heaviside.gradient(None, lambda g, x, y, out: mnp.where(x == 0, g, 0))


# --- choices ---------------------------------------------------------------------------------------------------------

_TIES = [(1, 1), (2, -1), (-3, 0)]

maximum = op(np.maximum, saves="inputs", samples=pairs(complex=True, at=_TIES))
maximum.gradient(lambda g, x, y, out: _to_larger(g, x, y), lambda g, x, y, out: _to_larger(g, y, x))

minimum = op(np.minimum, saves="inputs", samples=pairs(complex=True, at=_TIES))
minimum.gradient(lambda g, x, y, out: _to_larger(g, y, x), lambda g, x, y, out: _to_larger(g, x, y))


# fmax and fmin take the other one where one is nan, and x where both are.
def _nan_samples() -> list[Sample]:
    nans = [np.array(row, np.float32) for row in ([math.nan, 2, 1, 2, math.nan], [1, math.nan, 1, 3, math.nan])]
    return [*pairs(complex=True, at=_TIES)(), Sample(*nans)]


fmax = op(np.fmax, saves="inputs", samples=_nan_samples)
fmax.gradient(
    lambda g, x, y, out: mnp.where(mnp.isnan(y), g, _to_larger(g, x, y)),
    lambda g, x, y, out: mnp.where(mnp.isnan(x) & ~mnp.isnan(y), g, _to_larger(g, y, x)),
)

fmin = op(np.fmin, saves="inputs", samples=_nan_samples)
fmin.gradient(
    lambda g, x, y, out: mnp.where(mnp.isnan(y), g, _to_larger(g, y, x)),
    lambda g, x, y, out: mnp.where(mnp.isnan(x) & ~mnp.isnan(y), g, _to_larger(g, x, y)),
)


@op(
    saves=["", "condition", "condition"],
    broadcasts=True,
    numpy=np.where,
    samples=lambda: [
        Sample(np.array([[True, False, True], [False, False, True]]), array(2, 3), array(2, 3)),
        Sample(np.array([True, False]), array(3, 1), array(2)),
        Sample(np.array([[True], [False]]), array(2), 0),
        Sample(np.array([1.0, 0.0, -2.0]), array(3), array()),
        Sample(True, array(2), array(2)),
        Sample(np.array(False), array(), array()),
        Sample(np.zeros((0, 2), bool), array(2), array()),
        Sample(np.array([True, False]), array(2, dtype=np.float32), np.array([np.nan, 1.0], np.float32)),
        Sample(np.array([True, False]), array(2, dtype=np.float32), 2.0),
        Sample(np.array([True, False]), array(2, dtype=np.float32), array(2)),
        Sample(np.array([True, False]), array(2, dtype=np.complex128), array(2)),
        Sample(np.array([True, False]), 1j, array(2, dtype=np.complex64)),
    ],
)
def where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


where.gradient(
    None,
    lambda g, condition, x, y, out: mnp.where(condition, g, 0),
    lambda g, condition, x, y, out: mnp.where(condition, 0, g),
)


@op(
    name="clip",
    aliases=("clip_by_value",),
    saves="inputs",
    broadcasts=True,
    samples=lambda: [
        Sample(array(2, 3), -0.8, 0.9),
        Sample(array(2, 3), array(3), 1.0),
        Sample(array(3, 1), between(-1.0, 0.0, 2), between(0.0, 1.0, 3, 2)),
        Sample(array(), -0.5, array()),
        Sample(np.array([-1.0, 0.0, 1.0, 2.0]), np.array(-1.0), np.array([1.0, 0.0, 1.0, 1.0])),
        Sample(np.array([0.0, 0.5, 2.0]), np.array(1.0), np.array(-1.0)),
        Sample(array(0), -1.0, 1.0),
        Sample(array(4, dtype=np.float32), -0.8, 0.9),
        Sample(array(4, dtype=np.float32), np.float32(-0.8), between(0.3, 0.9)),
        Sample(array(4, dtype=np.complex128), -0.8, 0.9),
    ],
)
def _clip(a: Any, a_min: Any, a_max: Any) -> Any:
    return np.clip(a, a_min, a_max)


# The smaller of a_max and the larger of a and a_min, so that all shares add up to one.
_clip.gradient(
    lambda g, a, a_min, a_max, out: _to_larger(_to_larger(g, a_max, mnp.maximum(a, a_min)), a, a_min),
    lambda g, a, a_min, a_max, out: _to_larger(_to_larger(g, a_max, mnp.maximum(a, a_min)), a_min, a),
    lambda g, a, a_min, a_max, out: _to_larger(g, mnp.maximum(a, a_min), a_max),
)


@implements(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError("clip: the bounds are given twice, as a_min or a_max and as min or max; give them once")
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    if low is None:
        return mnp.positive(a) if high is None else mnp.minimum(a, high)
    return mnp.maximum(a, low) if high is None else _clip(a, low, high)


@op(
    inputs=("x",),
    saves="x",
    numpy=np.nan_to_num,
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array()),
        Sample(array(0)),
        Sample(np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)),
        Sample(np.array([np.nan, np.inf, -np.inf, 2.0], np.float32), nan=1.0, posinf=9.0, neginf=-9.0),
        Sample(np.array([complex(np.nan, 1.0), complex(2.0, np.inf), 3 - 1j], np.complex64), posinf=7.0),
        Sample(array(3, dtype=np.complex128)),
    ],
)
def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return np.nan_to_num(x, copy, nan, posinf, neginf)


@nan_to_num.gradient(argument=0)
def _nan_to_num_x(g: Any, x: Any, out: Any) -> Any:
    if x.dtype.kind != "c":
        return mnp.where(mnp.isfinite(x), g, 0)
    real_part, imag_part = mnp.isfinite(mnp.real(x)), mnp.isfinite(mnp.imag(x))
    return mnp.where(real_part, mnp.real(g), 0) + 1j * mnp.where(imag_part, mnp.imag(g), 0)


# --- complex numbers -------------------------------------------------------------------------------------------------


@op(saves="", numpy=np.real, samples=unary(complex=True))
def real(val: Any) -> Any:
    return np.real(val)


real.gradient(lambda g, val, out: g)


@op(saves="", numpy=np.imag, samples=unary(complex=True))
def imag(val: Any) -> Any:
    return np.imag(val)


imag.gradient(lambda g, val, out: -1j * g)

conjugate = op(np.conjugate, aliases=("conj",), saves="", samples=unary(complex=True))
conjugate.gradient(lambda g, x, out: mnp.conjugate(g))


@op(
    inputs=("z",),
    saves="z",
    numpy=np.angle,
    samples=lambda: [*unary(complex=True, at=[3.0, -2.0])(), Sample(array(2, dtype=np.complex128), deg=True)],
)
def angle(z: Any, deg: bool = False) -> Any:
    return np.angle(z, deg)


angle.gradient(lambda g, z, out, deg: -1j * _ratio(g / _DEGREE if deg else g, z))


@implements(np.real_if_close)
def real_if_close(a: Any, tol: float = 100) -> Any:
    return mnp.real(a) if np.isrealobj(np.real_if_close(_core.value(a), tol)) else a


# --- steps: the gradient is zero -------------------------------------------------------------------------------------

floor = op(np.floor, saves="", samples=unary())
floor.gradient(None)

ceil = op(np.ceil, saves="", samples=unary())
ceil.gradient(None)

trunc = op(np.trunc, saves="", samples=unary())
trunc.gradient(None)

rint = op(np.rint, saves="", samples=unary(complex=True))
rint.gradient(None)

spacing = op(np.spacing, saves="", samples=unary())
spacing.gradient(None)

nextafter = op(np.nextafter, saves="", samples=pairs())
nextafter.gradient(lambda g, x, y, out: g, None)


@op(
    inputs=("a",),
    saves="",
    numpy=(np.round, np.around),
    samples=lambda: [*unary(complex=True)(), Sample(array(3), 1), Sample(10 * array(3), decimals=-1)],
)
def round(a: Any, decimals: int = 0) -> Any:
    return np.round(a, decimals)


round.gradient(None)


@implements(np.fix)
def fix(x: Any) -> Any:
    return mnp.trunc(x)


# --- not differentiable: plain NumPy results -------------------------------------------------------------------------

_ufunc: np.ufunc
for _ufunc in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal):
    op(_ufunc, differentiable=False, samples=_nan_samples)

for _ufunc in (np.logical_and, np.logical_or, np.logical_xor):
    op(_ufunc, differentiable=False, samples=pairs(complex=True, at=[(0, 0), (0, 2), (1, 0)]))

for _ufunc in (np.logical_not, np.isfinite, np.isinf, np.isnan):
    op(_ufunc, differentiable=False, samples=unary(complex=True, at=[0.0, math.inf, -math.inf, math.nan]))

signbit = op(np.signbit, differentiable=False, samples=unary(at=[0.0, -0.0]))

floor_divide = op(np.floor_divide, aliases=("floordiv",), differentiable=False, samples=pairs())

for _ufunc in (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift, np.gcd, np.lcm):
    op(_ufunc, differentiable=False, samples=lambda: [Sample(np.array([6, 1]), np.array([[4], [3]])), Sample(12, 2)])

for _ufunc in (np.invert, np.bitwise_count):
    op(_ufunc, differentiable=False, samples=lambda: [Sample(np.array([6, -1])), Sample(np.array(7, np.uint8))])
