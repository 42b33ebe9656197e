"""Native and Python gradients on one tape; then one of them overridden; then a new op beside them.

python examples/seed.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp

x, w = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])


def calls(name: Any) -> Any:
    row = next(row for row in mixgrad.registry.rows() if row["op"] == name)
    return f"{name}: {row['native_calls']} native, {row['python_calls']} python"


# 1. The C++ gradient of mul and the Python gradient of exp, on the same tape.
mixgrad.debug.reset_counts()
with mixgrad.prefer("python", "exp"), mixgrad.Tape() as tape:
    a = tape.watch(x)
    y = mnp.sum(mnp.exp(a * w))
    gradient = tape.gradient(y, a)
print("1.", gradient, "|", calls("multiply"), "|", calls("exp"))
assert np.allclose(gradient, w * np.exp(x * w))


# 2. Is mul's gradient to blame? Replace it in Python, and compare it with the native one.
def suspicious_mul(op: Any, g: Any) -> Any:
    a, b = op.inputs
    mine, native = (g * b, g * a), op.native(g)
    print("   mul: largest difference to the native gradient:", max(abs(mine[0] - native[0])))
    return mine


with mixgrad.override_gradient("mul", suspicious_mul):
    overridden = mixgrad.grad(lambda x: mnp.sum(mnp.exp(x * w)))(x)
print("2.", overridden)
assert np.array_equal(overridden, gradient)


# 3. A new op, with its gradient, in the same expression.
@mixgrad.register_op("softsign", saves="x")
def softsign(x: Any) -> Any:
    return x / (1 + np.abs(x))


@mixgrad.register_gradient("softsign")
def softsign_gradient(op: Any, g: Any) -> Any:
    (x,) = op.inputs
    return g / (1 + abs(x)) ** 2


def f(x: Any) -> Any:
    return mnp.sum(mnp.exp(x * w) + softsign(x))


print("3.", mixgrad.grad(f)(x))
assert np.allclose(mixgrad.grad(f)(x), w * np.exp(x * w) + 1 / (1 + x) ** 2)
print(mixgrad.registry.explain("softsign"))
