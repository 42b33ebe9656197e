"""The programs that are timed: each written by hand in NumPy, and once against a namespace that every peer fills.

A workload gives for each backend a function that runs one forward and returns what the backward needs, and one that runs the
backward. Gradients are compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

CHAIN = 1000


@dataclass(frozen=True)
class Workload:
    """One program.

    ``parameters`` are differentiated, ``constants`` are not. ``function(F, parameters, constants)`` is the program;
    ``forward`` and ``backward`` are the same by hand. ``operations`` divides the times.
    """

    name: str
    parameters: list[Any]
    constants: list[Any]
    function: Callable[[Any, list[Any], list[Any]], Any]
    forward: Callable[[list[Any], list[Any]], tuple[Any, Any]]
    backward: Callable[[Any], list[Any]]
    operations: int = 1
    tolerance: float = 1e-6


def chain(shape: tuple[int, ...]) -> Workload:
    """x * a, + b, sin, tanh, over and over: nothing but the cost of an operation."""
    x = np.linspace(0.1, 0.4, int(np.prod(shape))).reshape(shape)
    a, b = np.full(shape, 1.01), np.full(shape, 0.001)

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        (x,), (a, b) = parameters, constants
        for _ in range(CHAIN // 4):
            x = F.tanh(F.sin(x * a + b))
        return F.sum(x)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        (x,), (a, b) = parameters, constants
        saved = []
        for _ in range(CHAIN // 4):
            y = x * a + b
            x = np.tanh(np.sin(y))
            saved.append((y, x))
        return x.sum(), (saved, a)

    def backward(context: Any) -> list[Any]:
        saved, a = context
        g = np.ones_like(a)
        for y, x in reversed(saved):
            g = g * (1 - x * x) * np.cos(y) * a
        return [g]

    return Workload(f"chain {shape}", [x], [a, b], function, forward, backward, operations=CHAIN)


def elementwise(n: int = 1_000_000) -> Workload:
    """sum(tanh(a * b + c) * a) in float32: memory traffic."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(n).astype(np.float32) for _ in range(3))

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        a, b, c = parameters
        return F.sum(F.tanh(a * b + c) * a)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        a, b, c = parameters
        t = np.tanh(a * b + c)
        return (t * a).sum(), (a, b, t)

    def backward(context: Any) -> list[Any]:
        a, b, t = context
        g = a * (1 - t * t)
        return [t + g * b, g * a, g]

    return Workload(f"elementwise {n}", [a, b, c], [], function, forward, backward, tolerance=1e-4)


def mlp(batch: int) -> Workload:
    """784-128-10, ReLU, softmax cross entropy."""
    rng = np.random.default_rng(5)
    w1 = (rng.standard_normal((784, 128)) / 28).astype(np.float32)
    w2 = (rng.standard_normal((128, 10)) / 11).astype(np.float32)
    b1, b2 = np.zeros(128, np.float32), np.zeros(10, np.float32)
    x = rng.random((batch, 784), dtype=np.float32)
    labels = rng.integers(0, 10, batch)

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        w1, b1, w2, b2 = parameters
        x, labels = constants
        return F.cross_entropy(F.relu(x @ w1 + b1) @ w2 + b2, labels)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        w1, b1, w2, b2 = parameters
        x, labels = constants
        h = np.maximum(x @ w1 + b1, 0)
        z = h @ w2 + b2
        z -= z.max(1, keepdims=True)
        e = np.exp(z)
        s = e.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        return (np.log(s[:, 0]) - z[rows, labels]).mean(), (w2, x, labels, h, e / s, rows)

    def backward(context: Any) -> list[Any]:
        w2, x, labels, h, probabilities, rows = context
        dz = probabilities.copy()
        dz[rows, labels] -= 1
        dz /= np.float32(len(labels))
        dh = dz @ w2.T
        dh *= h > 0
        return [x.T @ dh, dh.sum(0), h.T @ dz, dz.sum(0)]

    return Workload(f"mlp, batch {batch}", [w1, b1, w2, b2], [x, labels], function, forward, backward, tolerance=1e-3)


def deep_mlp() -> Workload:
    """784-100, ten hidden layers of 100 with ReLU, 10, softmax cross entropy, at batch 1."""
    rng = np.random.default_rng(6)
    sizes = [784, *[100] * 11, 10]
    parameters = []
    for i, o in pairwise(sizes):
        parameters += [(rng.standard_normal((i, o)) * np.sqrt(2 / i)).astype(np.float32), np.zeros(o, np.float32)]
    x, labels = rng.random((1, 784), dtype=np.float32), np.array([3])

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        h, labels = constants
        pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
        for w, b in pairs[:-1]:
            h = F.relu(h @ w + b)
        return F.cross_entropy(h @ pairs[-1][0] + pairs[-1][1], labels)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        h, labels = constants
        layers = [h]
        for w, b in zip(parameters[:-2:2], parameters[1:-1:2], strict=True):
            h = np.maximum(h @ w + b, 0)
            layers.append(h)
        z = h @ parameters[-2] + parameters[-1]
        z -= z.max(1, keepdims=True)
        e = np.exp(z)
        s = e.sum(1, keepdims=True)
        return np.log(s[0, 0]) - z[0, labels[0]], (parameters, layers, e / s, labels)

    def backward(context: Any) -> list[Any]:
        parameters, layers, d, labels = context
        d[0, labels[0]] -= 1
        gradients = []
        for k in range(len(layers) - 1, -1, -1):
            gradients += [d.sum(0), layers[k].T @ d]
            if k:
                d = d @ parameters[2 * k].T
                d *= layers[k] > 0
        return gradients[::-1]

    return Workload("mlp of 12 layers, batch 1", parameters, [x, labels], function, forward, backward, tolerance=1e-3)


def rnn(steps: int = 200, hidden: int = 64) -> Workload:
    """h = tanh(W @ h + U @ x + b), 200 times."""
    rng = np.random.default_rng(7)
    w = np.linalg.qr(rng.standard_normal((hidden, hidden)))[0].astype(np.float32)
    u = (0.02 * rng.standard_normal((hidden, hidden))).astype(np.float32)
    b = np.zeros(hidden, np.float32)
    h, x = (0.1 * rng.standard_normal(hidden)).astype(np.float32), rng.standard_normal(hidden).astype(np.float32)

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        (w, u, b, h), (x,) = parameters, constants
        for _ in range(steps):
            h = F.tanh(w @ h + u @ x + b)
        return F.sum(h)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        (w, u, b, h), (x,) = parameters, constants
        states = [h]
        for _ in range(steps):
            h = np.tanh(w @ h + u @ x + b)
            states.append(h)
        return h.sum(), (w, x, states)

    def backward(context: Any) -> list[Any]:
        w, x, states = context
        g = np.ones(hidden, np.float32)
        gw, gu = np.zeros_like(w), np.zeros_like(w)
        gb = np.zeros(hidden, np.float32)
        for t in range(steps, 0, -1):
            d = g * (1 - states[t] * states[t])
            gw += d[:, None] * states[t - 1]
            gu += d[:, None] * x
            gb += d
            g = w.T @ d
        return [gw, gu, gb, g]

    return Workload(f"rnn, {steps} steps", [w, u, b, h], [x], function, forward, backward, tolerance=2e-3)


def custom(n: int = 100) -> Workload:
    """A user's op with a Python gradient, 100 times on shape (10,)."""
    x = np.linspace(0.1, 1.0, 10)

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        (x,) = parameters
        for _ in range(n):
            x = F.custom_sin(x)
        return F.sum(x)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        (x,) = parameters
        saved = []
        for _ in range(n):
            saved.append(x)
            x = np.sin(x)
        return x.sum(), saved

    def backward(saved: Any) -> list[Any]:
        g = np.ones(10)
        for x in reversed(saved):
            g = g * np.cos(x)
        return [g]

    return Workload("custom op (10,)", [x], [], function, forward, backward, operations=n)


def rosenbrock(n: int = 1000) -> Workload:
    """The objective that scipy.optimize calls with an ndarray, for (float, ndarray)."""
    x = np.random.default_rng(8).standard_normal(n)

    def function(F: Any, parameters: list[Any], constants: list[Any]) -> Any:
        (x,) = parameters
        low, high = x[:-1], x[1:]
        return F.sum(100.0 * (high - low * low) ** 2 + (1.0 - low) ** 2)

    def forward(parameters: list[Any], constants: list[Any]) -> tuple[Any, Any]:
        (x,) = parameters
        low = x[:-1]
        d, e = x[1:] - low * low, 1 - low
        return (100 * d * d + e * e).sum(), (x, d, e)

    def backward(context: Any) -> list[Any]:
        x, d, e = context
        g = np.zeros_like(x)
        g[1:] = 200 * d
        g[:-1] -= 400 * d * x[:-1] + 2 * e
        return [g]

    return Workload(f"rosenbrock {n}", [x], [], function, forward, backward)
