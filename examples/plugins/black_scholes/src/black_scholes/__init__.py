"""Prices of European calls by Black and Scholes, and their sensitivities by differentiation.

Three ops, each with its forward and gradient in Python; the gradients stand once more in native/, one file each. The formulas are
those of F. Black and M. Scholes, "The Pricing of Options and Corporate Liabilities", Journal of Political Economy 81 (1973).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
from scipy.special import ndtr

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample

OPS = ("bs_cdf", "bs_d1", "bs_discount")


def _samples(*names: str) -> Any:
    rng = np.random.default_rng(0)
    ranges = {"x": (-2.0, 2.0), "m": (-0.5, 0.5), "t": (0.2, 2.0), "v": (0.1, 0.5), "r": (0.01, 0.05)}
    return lambda: [Sample(*(rng.uniform(*ranges[name], 5) for name in names))]


@mixgrad.register_op("bs_cdf", saves="x", broadcasts=True, samples=_samples("x"))
def cdf(x: Any) -> Any:
    """The distribution function of the standard normal distribution."""
    return ndtr(x)


@mixgrad.register_gradient("bs_cdf")
def cdf_gradient(op: Any, g: Any) -> Any:
    (x,) = op.inputs
    return g * mnp.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


@mixgrad.register_op(
    "bs_d1", saves=["t v", "t v r output", "t v output", "t v"], broadcasts=True, samples=_samples(*"mtvr")
)
def d1(m: Any, t: Any, v: Any, r: Any) -> Any:
    """(m + (r + v²/2) t) / (v sqrt(t)), for the log-moneyness m, the time t, the volatility v and the rate r."""
    return (m + (r + 0.5 * v * v) * t) / (v * np.sqrt(t))


d1.gradient(
    lambda g, m, t, v, r, out: g / (v * mnp.sqrt(t)),
    lambda g, m, t, v, r, out: g * ((r + 0.5 * v * v) / (v * mnp.sqrt(t)) - 0.5 * out / t),
    lambda g, m, t, v, r, out: g * (mnp.sqrt(t) - out / v),
    lambda g, m, t, v, r, out: g * mnp.sqrt(t) / v,
)


@mixgrad.register_op("bs_discount", saves=["r output", "t output"], broadcasts=True, samples=_samples(*"tr"))
def discount(t: Any, r: Any) -> Any:
    """exp(-r t)."""
    return np.exp(-r * t)


discount.gradient(lambda g, t, r, out: -g * r * out, lambda g, t, r, out: -g * t * out)


def call_price(spot: Any, strike: Any, time: Any, volatility: Any, rate: Any) -> Any:
    """The price of a European call on each of the options."""
    one = d1(mnp.log(spot / strike), time, volatility, rate)
    two = one - volatility * mnp.sqrt(time)
    return spot * cdf(one) - strike * discount(time, rate) * cdf(two)


mixgrad.cpp.load_library(str(files(__name__) / "native.so"), name="black-scholes")
