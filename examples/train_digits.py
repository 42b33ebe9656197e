"""Train a small network on scikit-learn's digits, and choose who computes the gradients.

python examples/train_digits.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mixgrad
from mixgrad import nn

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype(np.float32), labels
x_test, y_test = x[1400:], y[1400:]
x, y = x[:1400], y[:1400]


def predict(p: Any, x: Any) -> Any:
    return nn.relu(x @ p["w1"] + p["b1"]) * p["scale"] @ p["w2"]


def loss(p: Any, x: Any, y: Any) -> Any:
    return nn.softmax_cross_entropy(predict(p, x), y)


def my_mul(op: Any, g: Any) -> Any:
    """A gradient of mul of our own, for a look at what flows through it."""
    a, b = op.inputs
    return g * b, g * a


def train() -> Any:
    rng = np.random.default_rng(0)
    p = {
        "w1": (rng.standard_normal((64, 32)) / 8).astype(np.float32),
        "b1": np.zeros(32, np.float32),
        "scale": np.ones(32, np.float32),
        "w2": (rng.standard_normal((32, 10)) / 6).astype(np.float32),
    }
    gradient = mixgrad.grad(loss)
    for _ in range(300):
        rows = rng.integers(0, len(x), 64)
        for name, g in gradient(p, x[rows], y[rows]).items():
            p[name] -= np.float32(0.3) * g
    return float(loss(p, x, y)), float((predict(p, x_test).argmax(1) == y_test).mean())


def show(gradients: str) -> None:
    final, accuracy = train()
    print(f"{gradients:10}  loss {final:.5f}, accuracy {accuracy:.3f}")


show("native")
with mixgrad.prefer("python"):
    show("python")
with mixgrad.prefer("python", "matmul", "relu"):
    show("mixed")
with mixgrad.override_gradient("mul", my_mul):
    show("overridden")
