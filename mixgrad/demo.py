# SPDX-License-Identifier: Apache-2.0
"""One training run, four times from one seed: native, Python, mixed and overridden gradients.

examples/train_digits.py is the same program without the progress bar and the choice of data.
"""

from __future__ import annotations

import contextlib
import zipfile
from dataclasses import dataclass, replace
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
        return _split((images / 16).astype(np.float32), labels)
    try:
        # Opened here: of a file that is no archive, np.load leaves its own handle open.
        with path.open("rb") as opened, np.load(opened) as file:
            arrays = {name: file[name] for name in file.files}
    # EOFError: an empty file. AttributeError, TypeError: an .npy file, which holds one array.
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        msg = f"{path} cannot be read as an .npz file of images and labels: {error}"
        raise DataError(msg) from None

    def first(*names: str) -> Any:
        return next((arrays[name] for name in names if name in arrays), None)

    x, labels = first(*_IMAGES, *_TRAIN_IMAGES), first(*_LABELS, *_TRAIN_LABELS)
    if x is None or labels is None:
        msg = (
            f"{path} holds {', '.join(arrays) or 'nothing'}; it needs images ({', '.join(_IMAGES + _TRAIN_IMAGES)}) and "
            f"labels ({', '.join(_LABELS + _TRAIN_LABELS)})"
        )
        raise DataError(msg)
    x_test, labels_test = first(*_TEST_IMAGES), first(*_TEST_LABELS)
    if x_test is None or labels_test is None:
        return _split(_rows(x, path), _classes(labels, len(x), path))
    rows, rows_test = _rows(x, path), _rows(x_test, path, scaled_like=x)
    if rows.shape[1] != rows_test.shape[1]:
        msg = (
            f"{path}: images of shape {x.shape[1:]} for training but {x_test.shape[1:]} for testing; they must be alike"
        )
        raise DataError(msg)
    return Data(rows, _classes(labels, len(x), path), rows_test, _classes(labels_test, len(x_test), path))


_IMAGES, _LABELS = ("images", "x", "X", "data"), ("labels", "y", "Y", "target")
_TRAIN_IMAGES, _TRAIN_LABELS = ("x_train", "X_train", "train_images"), ("y_train", "train_labels")
_TEST_IMAGES, _TEST_LABELS = ("x_test", "X_test", "test_images"), ("y_test", "test_labels")


def _rows(images: Any, path: Path, scaled_like: Any = None) -> Any:
    if images.ndim < 2 or images.size == 0 or images.dtype.kind not in "uif":
        msg = f"{path}: images of shape {images.shape} and dtype {images.dtype}; numbers of shape (images, ...) are needed"
        raise DataError(msg)
    reference = images if scaled_like is None else scaled_like
    largest = 255 if reference.dtype == np.uint8 else max(1, reference.max())
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(largest)


def _classes(labels: Any, images: int, path: Path) -> Any:
    classes = labels.reshape(-1).astype(np.int64) if labels.dtype.kind in "uif" else labels
    if (
        labels.size != images
        or labels.dtype.kind not in "uif"
        or (classes != labels.reshape(-1)).any()
        or classes.min() < 0
    ):
        msg = (
            f"{path}: labels of shape {labels.shape} and dtype {labels.dtype} for {images} images; one class number, from 0, "
            "is needed for each"
        )
        raise DataError(msg)
    return classes


def _split(x: Any, labels: Any) -> Data:
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = x[order], labels[order]
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


class Training:
    """A network that is trained from the seed, and what its gradients cost."""

    def __init__(self, data: Data, *, batch: int, hidden: int) -> None:
        self.data, self.batch = data, batch
        self.p = make_parameters(data.x.shape[1], hidden, int(data.labels.max()) + 1)
        self.optimiser, self.rng = Adam(self.p), np.random.default_rng(1)
        self.seconds: list[float] = []
        self.calls = {"native": 0, "python": 0}

    def epoch(self) -> None:
        """Pass over the training images once, in a new order."""
        mixgrad.debug.reset_counts()
        step = mixgrad.value_and_grad(loss)
        order = self.rng.permutation(len(self.data.x))
        for start in range(0, len(order) - self.batch + 1, self.batch):
            rows = order[start : start + self.batch]
            x, labels = self.data.x[rows], self.data.labels[rows]
            begin = perf_counter()
            _, gradients = step(self.p, x, labels)
            self.seconds.append(perf_counter() - begin)
            self.optimiser.update(self.p, gradients)
        for row in mixgrad.registry.rows():
            for language in self.calls:
                self.calls[language] += row[f"{language}_calls"]

    def result(self) -> Result:
        """What it came to."""
        predicted = np.argmax(predict(self.p, self.data.x_test), axis=1)
        return Result(
            loss=float(loss(self.p, self.data.x, self.data.labels)),
            accuracy=float((predicted == self.data.labels_test).mean()),
            milliseconds=float(np.median(self.seconds)) * 1e3,
            **self.calls,
        )


@dataclass(frozen=True)
class Result:
    """What one training came to: a step's time, and how many entries of the tape had their gradient run by whom."""

    loss: float
    accuracy: float
    milliseconds: float
    native: int
    python: int
    overridden: int = 0


# The ops whose gradients the mixed run takes from Python.
MIXED = ("matmul", "relu", "sum")


def run(path: Path | None = None, *, epochs: int = 8, batch: int = 64, hidden: int = 64) -> dict[str, Result]:
    """Train four times, show how it goes, and print the table."""
    data, console = load(path), Console()
    if len(data.x) < batch:
        msg = (
            f"a batch of {batch} images is larger than the {len(data.x)} there are for training; give a smaller --batch"
        )
        raise DataError(msg)
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
        f"{len(data.x)} images of {data.x.shape[1]} numbers for training, {len(data.x_test)} for testing.\n"
        f"{hidden} hidden units, {epochs} epochs, {batch} images in a step.",
        highlight=False,
    )
    trainings = {name: Training(data, batch=batch, hidden=hidden) for name in ways}
    with Progress(console=console) as progress:
        tasks = {name: progress.add_task(name, total=epochs) for name in ways}
        # In turns, so that whatever else the machine does meets all four.
        for _ in range(epochs):
            for name, way in ways.items():
                with way():
                    trainings[name].epoch()
                progress.advance(tasks[name])
    results = {name: training.result() for name, training in trainings.items()}
    results["own mul"] = replace(results["own mul"], overridden=overridden)
    show(results, console)
    return results


def show(results: dict[str, Result], console: Console) -> None:
    """Print the table."""
    table = Table("gradients")
    for heading in (
        "final\nloss",
        "test\naccuracy",
        "ms a\nstep",
        "ratio",
        "ran\nnative",
        "ran\nPython",
        "ran\nown mul",
    ):
        table.add_column(heading, justify="right")
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
        "A step is one forward and backward pass; the ratio is to native.\n"
        "Ran: how many entries of the tape had their gradient computed by which language.\n"
        f"Mixed runs those of {', '.join(MIXED)} in Python; own mul overrides multiply's.",
        highlight=False,
    )
