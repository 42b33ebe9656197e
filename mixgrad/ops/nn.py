# SPDX-License-Identifier: Apache-2.0
"""Ops of neural networks, public as ``mixgrad.nn``.

>>> import numpy as np
>>> from mixgrad import grad, nn
>>> grad(lambda x: nn.relu(x).sum())(np.array([-1.0, 0.0, 2.0]))
array([0., 0., 1.])
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mixgrad.numpy as mnp
from mixgrad.ops._samples import array
from mixgrad.registry import Sample, op

__all__ = ["log_softmax", "relu", "sigmoid", "softmax", "softmax_cross_entropy"]


@op(
    saves="output",
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array()),
        Sample(array(0)),
        Sample(array(5, dtype=np.float32)),
    ],
)
def relu(x: Any) -> Any:
    """The larger of `x` and 0, element by element. Its gradient at 0 is 0.

    Parameters
    ----------
    x : array_like
        Of a real dtype.

    Returns
    -------
    array
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    return np.maximum(x, 0)


relu.gradient(lambda g, x, out: mnp.where(out > 0, g, 0))


@op(
    saves="output",
    samples=lambda: [
        Sample(array(2, 3)),
        Sample(array()),
        Sample(array(0)),
        Sample(np.array([-800.0, -30.0, 0.0, 30.0, 800.0])),
        Sample(array(5, dtype=np.float32)),
    ],
)
def sigmoid(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x)), without overflow.

    Parameters
    ----------
    x : array_like
        Of a real dtype.

    Returns
    -------
    array
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0]))
    array([0. , 0.5, 1. ])
    """
    small = np.exp(-np.abs(x))
    return np.where(np.less(x, 0), small, 1) / (1 + small)


sigmoid.gradient(lambda g, x, out: g * (out * (1 - out)))


@op(
    saves="output",
    samples=lambda: [
        Sample(array(3)),
        Sample(array(2, 3)),
        Sample(array(2, 3), 0),
        Sample(array(2, 3, 2), axis=(0, -1)),
        Sample(array(2, 3), axis=None),
        Sample(np.array([1e4, 0.0, -1e4])),
        Sample(array(2, 0)),
        Sample(array(0, 3)),
        Sample(array(2, 3, dtype=np.float32)),
    ],
)
def softmax(x: Any, axis: Any = -1) -> Any:
    """exp(x) divided by its sum, without overflow.

    Parameters
    ----------
    x : array_like
        Of a real dtype.
    axis : int, tuple of int or None
        The axes that are summed to one; the last by default, None for all.

    Returns
    -------
    array
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.array([1000.0, 1000.0]))
    array([0.5, 0.5])
    """
    terms = np.exp(_shifted(x, axis))
    return terms / np.sum(terms, axis=axis, keepdims=True)


def _shifted(x: Any, axis: Any) -> Any:
    """`x` minus its maximum: exp of it cannot overflow."""
    return x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)


@softmax.gradient(argument=0)
def _softmax_x(g: Any, x: Any, out: Any, axis: Any) -> Any:
    return out * (g - mnp.sum(g * out, axis=axis, keepdims=True))


@op(
    saves="output",
    samples=lambda: [
        Sample(array(3)),
        Sample(array(2, 3)),
        Sample(array(2, 3), 0),
        Sample(array(2, 3, 2), axis=(0, -1)),
        Sample(array(2, 3), axis=None),
        Sample(np.array([1e4, 0.0, -1e4])),
        Sample(array(0, 3)),
        Sample(array(2, 3, dtype=np.float32)),
    ],
)
def log_softmax(x: Any, axis: Any = -1) -> Any:
    """The logarithm of `softmax`, accurate where that is near 0 or 1.

    Parameters
    ----------
    x : array_like
        Of a real dtype.
    axis : int, tuple of int or None
        The axes along which the exponentials sum to one; the last by default, None for all.

    Returns
    -------
    array
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> log_softmax(np.array([0.0, -1000.0]))
    array([    0., -1000.])
    """
    shifted = _shifted(x, axis)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@log_softmax.gradient(argument=0)
def _log_softmax_x(g: Any, x: Any, out: Any, axis: Any) -> Any:
    return g - mnp.exp(out) * mnp.sum(g, axis=axis, keepdims=True)


@op(
    inputs=("logits", "labels"),
    saves=["inputs", "logits"],
    samples=lambda: [
        Sample(array(4, 3), np.array([0, 2, 1, 2])),
        Sample(array(4, 3), np.array([0, 2, 1, 2]), "sum"),
        Sample(array(4, 3), [0, 2, 1, 2], reduction="none"),
        Sample(array(4, 3), np.eye(3)[[0, 2, 1, 2]]),
        Sample(array(2, 3), array(2, 3)),
        Sample(array(2, 3), array(2, 3), reduction="none"),
        Sample(array(2, 2, 3), np.array([[0, 1], [2, 2]], np.uint8), "none"),
        Sample(array(3), np.int64(1)),
        Sample(np.array([[1e4, 0.0, -1e4]]), np.array([2])),
        Sample(array(0, 3), np.array([], int), "sum"),
        Sample(array(4, 3, dtype=np.float32), np.array([0, 2, 1, 2], np.int32)),
        Sample(array(4, 3, dtype=np.float32), array(4, 3, dtype=np.float32), "none"),
    ],
)
def softmax_cross_entropy(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """The cross entropy between labels and ``softmax(logits)`` over the last axis, without overflow.

    Parameters
    ----------
    logits : array_like, shape (..., classes)
        Of a real dtype.
    labels : array_like, shape (...) of integers, or (..., classes)
        The class of each row; or the weight of every class, such as one-hot rows or probabilities.
    reduction : {"mean", "sum", "none"}
        What becomes of the rows' losses.

    Returns
    -------
    array
        A scalar, or of shape (...) with ``reduction="none"``; of the dtype of `logits`.

    Raises
    ------
    ValueError
        The shapes do not fit, a class is out of range, or the reduction is unknown.
    TypeError
        Labels of shape (...) are not integers.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[2.0, 0.0], [0.0, 0.0]])
    >>> softmax_cross_entropy(logits, np.array([0, 1]), reduction="none")
    array([0.12692801, 0.69314718])
    """
    logits, labels = np.asarray(logits), _checked_labels(np.shape(logits), labels)
    scores = log_softmax.forward(logits)
    if labels.ndim < logits.ndim:
        losses = -np.take_along_axis(scores, labels[..., None].astype(np.intp), -1)[..., 0]
    else:
        losses = -np.sum(scores * labels.astype(scores.dtype, copy=False), axis=-1)
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        msg = f"softmax_cross_entropy: reduction is 'mean', 'sum' or 'none', not {reduction!r}"
        raise ValueError(msg)
    return np.mean(losses) if reduction == "mean" else np.sum(losses)


def _checked_labels(shape: tuple[int, ...], labels: Any) -> Any:
    # A single class arrives as a float: a Python number takes the dtype of what it meets.
    labels = np.asarray(int(labels) if isinstance(labels, float) and labels.is_integer() else labels)
    if shape and labels.shape == shape:
        return labels
    if labels.shape != shape[:-1] or not shape:
        msg = (
            f"softmax_cross_entropy: labels have shape {labels.shape}, logits {shape}; give one class per row, shape {shape[:-1]}, "
            f"or one weight per class, shape {shape}"
        )
        raise ValueError(msg)
    if labels.dtype.kind not in "iu":
        msg = f"softmax_cross_entropy: labels of shape {labels.shape} are classes, so their dtype is an integer one, not {labels.dtype}"
        raise TypeError(msg)
    if labels.size and (labels.min() < 0 or labels.max() >= shape[-1]):
        wrong = labels[(labels < 0) | (labels >= shape[-1])].flat[0]
        msg = f"softmax_cross_entropy: class {wrong} is out of range: logits of shape {shape} have the classes 0 to {shape[-1] - 1}"
        raise ValueError(msg)
    return labels


@softmax_cross_entropy.gradient(argument=0)
def _cross_entropy_logits(g: Any, logits: Any, labels: Any, out: Any, reduction: str) -> Any:
    probabilities = mnp.exp(log_softmax(logits))
    if labels.ndim < logits.ndim:
        difference = probabilities - (labels[..., None] == np.arange(logits.shape[-1]))
    else:
        difference = probabilities * mnp.sum(labels, axis=-1, keepdims=True) - labels
    return difference * _per_row(g, logits, reduction)


@softmax_cross_entropy.gradient(argument=1)
def _cross_entropy_labels(g: Any, logits: Any, labels: Any, out: Any, reduction: str) -> Any:
    return log_softmax(logits) * -_per_row(g, logits, reduction)


def _per_row(g: Any, logits: Any, reduction: str) -> Any:
    """What arrives at the loss of each row, with an axis for the classes."""
    if reduction == "none":
        return g[..., None]
    return g / math.prod(logits.shape[:-1]) if reduction == "mean" else g
