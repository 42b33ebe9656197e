"""Train a small network on scikit-learn's digits, and choose who computes the gradients.

python examples/train_digits.py
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import nn

Parameters = dict[str, Any]

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
images, labels = (images[order] / 16).astype(np.float32), labels[order]
training, testing = slice(None, len(images) * 4 // 5), slice(len(images) * 4 // 5, None)


def make_parameters(inputs: int, hidden: int, classes: int, seed: int = 0) -> Parameters:
    """Weights, biases, and a scale for each hidden unit."""
    rng = np.random.default_rng(seed)
    return {
        "w1": (rng.standard_normal((inputs, hidden)) * np.sqrt(2 / inputs)).astype(np.float32),
        "b1": np.zeros(hidden, np.float32),
        "scale": np.ones(hidden, np.float32),
        "w2": (rng.standard_normal((hidden, classes)) * np.sqrt(2 / hidden)).astype(np.float32),
        "b2": np.zeros(classes, np.float32),
    }


def predict(p: Parameters, x: Any) -> Any:
    """The logits: one hidden layer, whose units are scaled."""
    hidden = nn.relu(x @ p["w1"] + p["b1"]) * p["scale"]
    return hidden @ p["w2"] + p["b2"]


def loss(p: Parameters, x: Any, labels: Any) -> Any:
    """Cross entropy, with a little weight decay."""
    decay = sum(mnp.sum(mnp.square(p[name])) for name in ("w1", "w2"))
    return nn.softmax_cross_entropy(predict(p, x), labels) + 1e-4 * decay


class Adam:
    """The optimiser, in place."""

    def __init__(self, p: Parameters, rate: float = 2e-3) -> None:
        self.rate, self.step = rate, 0
        self.first = {name: np.zeros_like(value) for name, value in p.items()}
        self.second = {name: np.zeros_like(value) for name, value in p.items()}

    def update(self, p: Parameters, gradients: Parameters) -> None:
        self.step += 1
        rate = np.float32(self.rate * np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step))
        for name, g in gradients.items():
            m, v = self.first[name], self.second[name]
            m += np.float32(0.1) * (g - m)
            v += np.float32(0.001) * (g * g - v)
            p[name] -= rate * m / (np.sqrt(v) + np.float32(1e-8))


def my_mul(op: Any, g: Any) -> Any:
    """A user's own gradient of mul, put in the place of the native one for a while."""
    x, y = op.inputs
    return g * y, g * x


def train(gradients: str, epochs: int = 4, batch: int = 64) -> float:
    """Train from the same seed, and print what came out."""
    mixgrad.debug.reset_counts()
    p = make_parameters(images.shape[1], 64, 10)
    optimiser, step, times = Adam(p), mixgrad.value_and_grad(loss), []
    x, y = images[training], labels[training]
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - batch + 1, batch):
            rows = order[start : start + batch]
            begin = perf_counter()
            _, g = step(p, x[rows], y[rows])
            times.append(perf_counter() - begin)
            optimiser.update(p, g)

    final = float(loss(p, x, y))
    accuracy = (np.argmax(predict(p, images[testing]), axis=1) == labels[testing]).mean()
    entries = {
        language: sum(row[f"{language}_calls"] for row in mixgrad.registry.rows()) for language in ("native", "python")
    }
    print(
        f"{gradients:8} loss {final:.6f}  accuracy {accuracy:.2%}  {np.median(times) * 1e3:.3f} ms a step  "
        f"ran: {entries['native']} native, {entries['python']} Python"
    )
    return final


losses = [train("native")]
with mixgrad.prefer("python"):
    losses.append(train("python"))
with mixgrad.prefer("python", "matmul", "relu", "sum"):
    losses.append(train("mixed"))
with mixgrad.override_gradient("mul", my_mul):
    losses.append(train("own mul"))
assert np.allclose(losses, losses[0], rtol=1e-4)
