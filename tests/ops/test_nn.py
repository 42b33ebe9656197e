# SPDX-License-Identifier: Apache-2.0
"""Ops of neural networks: far-out values, kinks, both forms of labels, second order, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import nn
from mixgrad.testing import check_gradient

A = np.array
LOGITS = A([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5], [3.0, 1.0, 1.0], [-1.0, 0.25, 0.0]])
CLASSES = A([0, 2, 1, 2])


def naive_softmax(x: Any, axis: int = -1) -> Any:
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


class TestRelu:
    def test_at_the_kink(self) -> None:
        g = mixgrad.grad(lambda x: nn.relu(x).sum())(A([-1.0, -0.0, 0.0, 5e-324, 2.0, -np.inf]))
        np.testing.assert_array_equal(g, [0.0, 0.0, 0.0, 1.0, 1.0, 0.0])

    def test_what_arrives_where_it_is_cut_off_is_lost(self) -> None:
        with np.errstate(invalid="ignore"):
            g = mixgrad.grad(lambda x: mnp.sum(nn.relu(x) * A([np.inf, 1.0])))(A([-1.0, 1.0]))
        assert g[0] == 0.0

    def test_nan_stays(self) -> None:
        assert np.isnan(nn.relu(A([np.nan]))).all()

    def test_float32(self) -> None:
        assert nn.relu(np.ones(2, np.float32)).dtype == np.float32
        assert mixgrad.grad(lambda x: nn.relu(x).sum())(np.ones(2, np.float32)).dtype == np.float32


class TestSigmoid:
    def test_far_out(self) -> None:
        x = A([-1000.0, -40.0, 0.0, 40.0, 1000.0])
        with np.errstate(all="raise", under="ignore"):
            value, pull = mixgrad.vjp(nn.sigmoid, x)
            g = pull(np.ones(5))
        np.testing.assert_allclose(value, [0.0, np.exp(-40.0), 0.5, 1.0, 1.0], rtol=1e-15)
        np.testing.assert_allclose(g, [0.0, np.exp(-40.0), 0.25, 0.0, 0.0], rtol=1e-15, atol=1e-17)

    def test_second_derivative(self) -> None:
        s = 1 / (1 + np.exp(-0.7))
        second = mixgrad.grad(mixgrad.grad(nn.sigmoid))(0.7)
        np.testing.assert_allclose(second, s * (1 - s) * (1 - 2 * s), rtol=1e-14)


class TestSoftmax:
    @pytest.mark.parametrize("axis", [-1, 0, None, (0, 1)])
    def test_values(self, axis: Any) -> None:
        want = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=axis, keepdims=True)
        np.testing.assert_allclose(nn.softmax(LOGITS, axis), want, rtol=1e-14)
        np.testing.assert_allclose(nn.log_softmax(LOGITS, axis), np.log(want), rtol=1e-14)

    def test_jacobian(self) -> None:
        p = naive_softmax(LOGITS[0])
        np.testing.assert_allclose(mixgrad.jacobian(nn.softmax)(LOGITS[0]), np.diag(p) - np.outer(p, p), rtol=1e-13)
        np.testing.assert_allclose(mixgrad.jacobian(nn.log_softmax)(LOGITS[0]), np.eye(3) - p, rtol=1e-13)

    def test_far_out(self) -> None:
        x = A([1e4, 0.0, -1e4])
        np.testing.assert_array_equal(nn.softmax(x), [1.0, 0.0, 0.0])
        np.testing.assert_array_equal(nn.log_softmax(x), [0.0, -1e4, -2e4])
        np.testing.assert_array_equal(mixgrad.grad(lambda x: nn.log_softmax(x)[1])(x), [-1.0, 1.0, 0.0])

    def test_minus_infinity_is_a_class_that_cannot_be(self) -> None:
        np.testing.assert_allclose(nn.softmax(A([0.0, -np.inf, 0.0])), [0.5, 0.0, 0.5])
        np.testing.assert_array_equal(
            mixgrad.grad(lambda x: nn.softmax(x)[0])(A([0.0, -np.inf, 0.0])), [0.25, 0.0, -0.25]
        )


class TestCrossEntropy:
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("labels", [CLASSES, np.eye(3)[CLASSES], np.eye(3, dtype=int)[CLASSES], CLASSES.tolist()])
    def test_values_and_gradient(self, labels: Any, reduction: str) -> None:
        p = naive_softmax(LOGITS)
        losses = -np.log(p[np.arange(4), CLASSES])
        weights = A([1.0, 2.0, 3.0, 4.0]) if reduction == "none" else np.full(4, 0.25 if reduction == "mean" else 1.0)
        value, pull = mixgrad.vjp(lambda x: nn.softmax_cross_entropy(x, labels, reduction), LOGITS)
        want = losses if reduction == "none" else (weights * losses).sum()
        np.testing.assert_allclose(value, want, rtol=1e-14)
        (g,) = listed(pull(weights if reduction == "none" else 1.0))
        np.testing.assert_allclose(g, (p - np.eye(3)[CLASSES]) * weights[:, None], rtol=1e-13, atol=1e-16)

    def test_probabilities_that_do_not_sum_to_one(self) -> None:
        weights = A([[0.2, 0.0, 1.3]])
        g = mixgrad.grad(lambda x: nn.softmax_cross_entropy(x, weights))(LOGITS[:1])
        np.testing.assert_allclose(g, 1.5 * naive_softmax(LOGITS[:1]) - weights, rtol=1e-13)

    def test_gradient_of_the_labels(self) -> None:
        labels = naive_softmax(LOGITS[::-1])
        g = mixgrad.grad(lambda y: nn.softmax_cross_entropy(LOGITS, y, "sum"))(labels)
        np.testing.assert_allclose(g, -np.log(naive_softmax(LOGITS)), rtol=1e-13)
        check_gradient(nn.softmax_cross_entropy, LOGITS, labels, order=2, signs=False)

    def test_hessian(self) -> None:
        p = naive_softmax(LOGITS[0])
        for labels in (A(1), A([0.0, 1.0, 0.0])):
            h = mixgrad.hessian(lambda x, labels=labels: nn.softmax_cross_entropy(x, labels))(LOGITS[0])
            np.testing.assert_allclose(h, np.diag(p) - np.outer(p, p), rtol=1e-13)

    def test_more_axes_and_one_row(self) -> None:
        cube = np.stack([LOGITS, -LOGITS])
        check_gradient(lambda x: nn.softmax_cross_entropy(x, np.stack([CLASSES, CLASSES]), "none"), cube, order=2)
        for label in (2, np.int8(2)):
            value = mixgrad.vjp(lambda x, label=label: nn.softmax_cross_entropy(x, label), LOGITS[0])[0]
            np.testing.assert_allclose(value, -np.log(naive_softmax(LOGITS[0])[2]), rtol=1e-14)

    def test_far_out(self) -> None:
        x = A([[1e4, 0.0, -1e4], [-1e4, 1e4, 0.0]])
        with np.errstate(all="raise", under="ignore"):
            value, g = mixgrad.value_and_grad(lambda x: nn.softmax_cross_entropy(x, A([2, 1]), "sum"))(x)
        assert value == 2e4
        np.testing.assert_array_equal(g, [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]])

    def test_float32(self) -> None:
        value, g = mixgrad.value_and_grad(lambda x: nn.softmax_cross_entropy(x, CLASSES))(LOGITS.astype(np.float32))
        assert value.dtype == g.dtype == np.float32

    @pytest.mark.parametrize("recorded", [False, True])
    @pytest.mark.parametrize(
        ("labels", "reduction", "error", "text"),
        [
            (A([0, 1, 3, 2]), "mean", ValueError, "class 3 is out of range.*classes 0 to 2"),
            (A([0, -1, 1, 2]), "mean", ValueError, "class -1 is out of range"),
            (A([0, 1]), "mean", ValueError, r"labels have shape \(2,\), logits \(4, 3\)"),
            (A([0.0, 1.0, 1.0, 2.0]), "mean", TypeError, "integer"),
            (CLASSES, "average", ValueError, "reduction is 'mean', 'sum' or 'none', not 'average'"),
        ],
    )
    def test_what_is_refused(self, labels: Any, reduction: str, error: Any, text: str, recorded: bool) -> None:
        f: Any = lambda x: nn.softmax_cross_entropy(x, labels, reduction)
        with pytest.raises(error, match=text):
            mixgrad.vjp(f, LOGITS) if recorded else f(LOGITS)


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]
