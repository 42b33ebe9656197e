"""Each native gradient against its Python twin and against differences; the greeks against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from black_scholes import OPS, call_price

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import testing

OPTIONS: tuple[Any, ...] = (
    np.array([90.0, 100.0, 110.0]),
    100.0,
    np.array([0.5, 1.0, 2.0]),
    np.array([0.2, 0.3, 0.25]),
    0.03,
)


@pytest.mark.parametrize("op", OPS)
def test_native_against_python(op: str) -> None:
    assert "runs   native  black-scholes" in mixgrad.registry.explain(op)
    testing.check_parity(op)


@pytest.mark.parametrize("language", ["native", "python"])
def test_against_differences(language: Any) -> None:
    with mixgrad.prefer(language):
        testing.check_gradient(
            lambda s, t, v: mnp.sum(call_price(s, 100.0, t, v, 0.03)), *OPTIONS[::2][:1], *OPTIONS[2:4], order=2
        )


def test_prices() -> None:
    # Spot 100, strike 100, one year, volatility 0.2, rate 0.05: a textbook's 10.4506.
    assert call_price(100.0, 100.0, 1.0, 0.2, 0.05) == pytest.approx(10.4506, abs=1e-4)


def test_gamma_is_the_derivative_of_delta() -> None:
    spot = OPTIONS[0]
    delta = mixgrad.grad(lambda s: mnp.sum(call_price(s, *OPTIONS[1:])))
    gamma = mixgrad.grad(lambda s: mnp.sum(delta(s)))(spot)
    step = 1e-4
    np.testing.assert_allclose(gamma, (delta(spot + step) - delta(spot - step)) / (2 * step), rtol=1e-6)
