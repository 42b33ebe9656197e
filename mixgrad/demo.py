# SPDX-License-Identifier: Apache-2.0
"""One training run, four times from one seed: native, Python, mixed and overridden gradients.

The network and its optimiser are written as a user would; examples/train_digits.py is the same at its shortest.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import nn

if TYPE_CHECKING:
    from pathlib import Path

Parameters = dict[str, Any]


class DataError(ValueError):
    """The data cannot be read as images and labels."""


@dataclass(frozen=True)
class Data:
    """Images as rows of numbers between 0 and 1, and their classes."""

    x: Any
    labels: Any
    x_test: Any
    labels_test: Any


def load(path: Path | None) -> Data:
    """scikit-learn's digits, or the images and labels of an .npz file."""
    if path is None:
        try:
            from sklearn.datasets import load_digits  # noqa: PLC0415  an extra
        except ImportError:
            msg = "the demo's data come with scikit-learn: pip install 'mixgrad[examples]', or give --data FILE.npz"
            raise DataError(msg) from None
        images, labels = load_digits(return_X_y=True)
        return _split(images / 16, labels)
    try:
        arrays = dict(np.load(path))
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read as an .npz file: {error}"
        raise DataError(msg) from None

    def first(*names: str) -> Any:
        return next((arrays[name] for name in names if name in arrays), None)

    x, labels = first("x_train", "x", "images", "X"), first("y_train", "y", "labels")
    if x is None or labels is None or len(x) != len(labels):
        msg = f"{path} holds {', '.join(arrays) or 'nothing'}; images x (or x_train) and as many labels y are needed"
        raise DataError(msg)
    x_test, labels_test = first("x_test", "X_test"), first("y_test", "labels_test")
    if x_test is None or labels_test is None:
        return _split(_rows(x), labels)
    return Data(_rows(x), labels.astype(np.int64), _rows(x_test), labels_test.astype(np.int64))


def _rows(images: Any) -> Any:
    rows = images.reshape(len(images), -1).astype(np.float32)
    return rows / 255 if images.dtype == np.uint8 else rows


def _split(x: Any, labels: Any) -> Data:
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = np.asarray(x, np.float32)[order], np.asarray(labels, np.int64)[order]
    n = len(x) * 4 // 5
    return Data(x[:n], labels[:n], x[n:], labels[n:])


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


@dataclass
class Result:
    """What one training run came to."""

    loss: float
    accuracy: float
    milliseconds: float
    native: int
    python: int
    overridden: int


def train(data: Data, *, epochs: int, batch: int, hidden: int, tick: Any = lambda: None) -> tuple[float, float, float]:
    """Train from the seed; the final loss, the accuracy on the test images, and the median milliseconds of a step."""
    p = make_parameters(data.x.shape[1], hidden, int(data.labels.max()) + 1)
    optimiser, step, times = Adam(p), mixgrad.value_and_grad(loss), []
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(len(data.x))
        for start in range(0, len(order) - batch + 1, batch):
            rows = order[start : start + batch]
            x, labels = data.x[rows], data.labels[rows]
            begin = perf_counter()
            _, gradients = step(p, x, labels)
            times.append(perf_counter() - begin)
            optimiser.update(p, gradients)
        tick()
    accuracy = float((np.argmax(predict(p, data.x_test), axis=1) == data.labels_test).mean())
    return float(loss(p, data.x, data.labels)), accuracy, float(np.median(times)) * 1e3


def gradient_calls() -> dict[str, int]:
    """How many gradients each language has run."""
    rows = mixgrad.registry.rows()
    return {language: sum(row[f"{language}_calls"] for row in rows) for language in ("native", "python")}


MIXED = ("matmul", "relu", "sum")


def run(path: Path | None = None, *, epochs: int = 8, batch: int = 64, hidden: int = 64) -> dict[str, Result]:
    """Train four times, show how it goes, and print the table."""
    data, console, results = load(path), Console(), {}
    overridden = 0

    def counted_mul(op: Any, g: Any) -> Any:
        nonlocal overridden
        overridden += 1
        return my_mul(op, g)

    ways: dict[str, Any] = {
        "native": contextlib.nullcontext,
        "python": lambda: mixgrad.prefer("python"),
        "mixed": lambda: mixgrad.prefer("python", *MIXED),
        "own mul": lambda: mixgrad.override_gradient("mul", counted_mul),
    }
    console.print(
        f"{len(data.x)} images of {data.x.shape[1]} numbers for training, {len(data.x_test)} for testing; "
        f"{hidden} hidden units, {epochs} epochs of batches of {batch}"
    )
    with Progress(console=console) as progress:
        for name, way in ways.items():
            task = progress.add_task(name, total=epochs)
            mixgrad.debug.reset_counts()
            overridden = 0
            with way():
                final, accuracy, milliseconds = train(
                    data, epochs=epochs, batch=batch, hidden=hidden, tick=lambda task=task: progress.advance(task)
                )
            calls = gradient_calls()
            results[name] = Result(final, accuracy, milliseconds, calls["native"], calls["python"], overridden)
    table = Table("gradients", "loss", "accuracy", "ms/step", "ratio", "native", "python", "override")
    for name, r in results.items():
        table.add_row(
            name,
            f"{r.loss:.6f}",
            f"{r.accuracy:.2%}",
            f"{r.milliseconds:.3f}",
            f"{r.milliseconds / results['native'].milliseconds:.2f}",
            *(str(n) for n in (r.native, r.python, r.overridden)),
        )
    console.print(table)
    console.print(
        "Final loss, accuracy on the test images, time of a forward and backward pass and its ratio to native; then the tape's\n"
        f"entries, by who ran their gradient. Mixed runs {', '.join(MIXED)} in Python."
    )
    return results
