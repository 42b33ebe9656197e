"""Derivatives of derivatives, through native and Python gradients alike.

python examples/higher_order.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp


def polynomial(x: Any) -> Any:
    return x**3 + x**2


first = mixgrad.grad(polynomial)
second = mixgrad.grad(first)
with mixgrad.prefer("python", "power"):
    mixed = second(2.0)
print("at 2:", first(2.0), second(2.0), mixed)
assert first(2.0) == 16.0
assert second(2.0) == mixed == 14.0


def rosenbrock(x: Any) -> Any:
    return mnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


x: Any = np.array([0.5, 0.5])
hessian = mixgrad.hessian(rosenbrock)(x)
print(hessian)
assert np.allclose(hessian, np.array([[1200 * 0.25 - 400 * 0.5 + 2, -200.0], [-200.0, 200.0]]))
