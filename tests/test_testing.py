# SPDX-License-Identifier: Apache-2.0
"""The checkers are checked: each finds every fault that is planted, and none where there is none."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample, errors
from mixgrad.testing import assert_no_leaks, check_gradient, check_parity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = np.array([[0.5, 1.5], [2.0, 0.7], [1.1, 0.9]])
W = np.array([2.0, 0.3])


@pytest.fixture
def product() -> Iterator[Callable[[Any], Any]]:
    """Makes an op ``x * w`` with the whole gradient that it is given."""
    names = (f"testing_product_{i}" for i in itertools.count())
    made = []

    def make(gradient: Callable[..., Any]) -> Any:
        f = mixgrad.register_op(next(names), broadcasts=True)(lambda x, w: x * w)
        made.append(f.name)
        f.gradient()(gradient)
        return f

    yield make
    for name in made:
        mixgrad.unregister(name)


class TestCheckGradient:
    def test_passes_what_is_right(self, product: Any) -> None:
        f = product(lambda op, g: (g * op.inputs[1], g * op.inputs[0]))
        check_gradient(f, X, W, order=2)

    @pytest.mark.parametrize(
        "f",
        [
            np.sin, lambda x: mnp.exp(-x * x), mnp.log, lambda x: x**7, lambda x: mnp.sum(x, axis=0),
            lambda x: x.T @ x, mnp.sqrt, lambda x: 1e8 * x * x, lambda x: 1e-8 * mnp.tanh(x), lambda x: mnp.cos(50.0 * x),
        ],
    )  # fmt: skip
    def test_passes_functions_of_all_scales(self, f: Any) -> None:
        check_gradient(f, X, order=2)

    def test_complex(self) -> None:
        z = np.array([0.5 + 1.0j, -1.2 + 0.3j])
        for f in (mnp.exp, mnp.conj, mnp.real, mnp.imag, mnp.abs, lambda z: z * mnp.conj(z[::-1])):
            check_gradient(f, z, order=2)
        check_gradient(lambda x: mnp.exp(1j * x), X, order=2)

    def test_containers_and_other_arguments(self) -> None:
        def f(model: Any, n: int, x: Any, *, flag: bool = True) -> Any:
            return {"y": model["w"] * x if n == 2 and flag else x, "n": n}

        check_gradient(f, {"w": W, "name": "layer"}, 2, X, order=2)

    def test_single_precision_is_made_double(self) -> None:
        seen = []

        def f(x: Any) -> Any:
            seen.append(x.dtype)
            return x * x

        check_gradient(f, np.ones(2, np.float32))
        assert set(seen) == {np.dtype(np.float64)}

    def test_kinks_take_any_subgradient(self) -> None:
        check_gradient(mnp.abs, np.zeros(2))
        check_gradient(mnp.max, np.array([1.0, 2.0, 2.0, 2.0]))
        check_gradient(lambda x: mnp.maximum(x, 0.0), np.array([0.0, 1.0, -1.0]))

    def test_large_inputs_are_sampled(self) -> None:
        calls = []

        def f(x: Any) -> Any:
            calls.append(1)
            return mnp.sum(x**2)

        check_gradient(f, np.linspace(1.0, 2.0, 100_000), signs=False)
        assert len(calls) < 4000

    def test_nothing_to_check(self) -> None:
        with pytest.raises(errors.CheckError, match="no float or complex argument"):
            check_gradient(lambda n: n, 3)
        with pytest.raises(errors.CheckError, match="not finite, or jumps"), np.errstate(all="ignore"):
            check_gradient(mnp.log, -1.0, signs=False)

    def test_order(self) -> None:
        with pytest.raises(ValueError, match="order is 1 or 2, not 3"):
            check_gradient(np.sin, 1.0, order=3)

    def test_the_report(self, product: Any) -> None:
        def wrong(op: Any, g: Any) -> Any:
            x, w = op.inputs
            of_x = np.array(g * w)
            of_x[1, 0] += 0.25
            return of_x, g * x

        with pytest.raises(errors.CheckError) as caught:
            check_gradient(product(wrong), X, W)
        report = str(caught.value)
        assert "gradient of testing_product_0: that of input 0, of shape (3, 2), is wrong at 1 of 6 places" in report
        assert "element [1, 0] (at 2.0)" in report

    def test_the_report_names_a_leaf_of_a_container(self) -> None:
        with (
            mixgrad.override_gradient("sin", lambda op, g: g * 2.0),
            pytest.raises(errors.CheckError, match=r"input 0\['b'\]"),
        ):
            check_gradient(lambda p: mnp.sum(p["a"]) + mnp.sum(mnp.sin(p["b"])), {"a": W, "b": X})


def _wrong_below_zero(op: Any, g: Any) -> Any:
    x, w = op.inputs
    return g * w * mnp.where(x < 0, 2.0, 1.0), g * x


def _assumes_contiguous(op: Any, g: Any) -> Any:
    x, w = op.inputs
    g = np.asarray(g)
    if not g.flags.c_contiguous:
        # What reading the memory in order would give.
        g = np.ravel(g, order="K").reshape(g.shape)
    return g * w, g * x


def _changes_g(op: Any, g: Any) -> Any:
    x, w = op.inputs
    of_x = g * w
    g *= 1.0
    return of_x, g * x


_noise = itertools.count()

PLANTED: dict[str, Callable[[Any, Any], Any]] = {
    "zero": lambda op, g: (g * 0.0, g * op.inputs[0]),
    "times 1.01": lambda op, g: (1.01 * g * op.inputs[1], g * op.inputs[0]),
    "times 1.0005": lambda op, g: (1.0005 * g * op.inputs[1], g * op.inputs[0]),
    "sign of the second": lambda op, g: (g * op.inputs[1], -g * op.inputs[0]),
    "not reduced": lambda op, g: (g * op.inputs[1], (g * op.inputs[0])[0]),
    "ignores what arrives": lambda op, g: (op.inputs[1] + 0.0 * g, g * op.inputs[0]),
    "none": lambda op, g: (g * op.inputs[1], None),
    "wrong below zero": _wrong_below_zero,
    "assumes contiguous": _assumes_contiguous,
    "changes g": _changes_g,
    "not deterministic": lambda op, g: (g * op.inputs[1] + 1e-9 * (next(_noise) % 2), g * op.inputs[0]),
    "single precision inside": lambda op, g: (
        (g.astype(np.float32) * op.inputs[1].astype(np.float32)).astype(np.float64),
        g * op.inputs[0],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_fault_is_found(name: str, product: Any) -> None:
    f = product(PLANTED[name])
    with pytest.raises((errors.CheckError, errors.GradientCountError, errors.GradientShapeError, ValueError)):
        check_gradient(f, X, W)


def test_a_fault_of_second_order_only_is_found(product: Any) -> None:
    def constant_inside(op: Any, g: Any) -> Any:
        x, w = op.inputs
        return g * mixgrad.stop_gradient(w), g * x

    f = product(constant_inside)
    check_gradient(f, X, W)
    with pytest.raises(errors.CheckError, match="second-order gradient of testing_product"):
        check_gradient(f, X, W, order=2)


class TestCheckParity:
    @pytest.fixture
    def plant(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
        """Puts a gradient in the place of the one in Python."""

        def plant(gradient: Any) -> None:
            def prefer(language: Any, name: str) -> Any:
                return (
                    mixgrad.override_gradient(name, gradient)
                    if language == "python"
                    else mixgrad.prefer(language, name)
                )

            monkeypatch.setattr("mixgrad.testing.prefer", prefer)

        return plant

    def test_counts_what_was_compared(self) -> None:
        assert check_parity("multiply") > 0
        assert check_parity(mixgrad.registry["multiply"], [Sample(X, W)]) == 1

    def test_a_wrong_value_is_found(self, plant: Any) -> None:
        plant(lambda op, g: (g * op.inputs[1], g * op.inputs[0] * 1.0001))
        with pytest.raises(errors.CheckError) as caught:
            check_parity("multiply", [Sample(X, W)])
        report = str(caught.value)
        assert (
            "op 'multiply', sample 0 (float64[3, 2], float64[2]): the gradient of input 1: 2 of 2 elements differ"
            in report
        )
        assert "first element [0]: Python gives" in report

    def test_a_wrong_second_order_is_found(self, plant: Any) -> None:
        plant(lambda op, g: (g * mixgrad.stop_gradient(op.inputs[1]), g * op.inputs[0]))
        with pytest.raises(errors.CheckError, match="second-order gradient of input 1"):
            check_parity("multiply", [Sample(X, W)])
        assert check_parity("multiply", [Sample(X, W)], order=1) == 1

    def test_nothing_to_compare(self) -> None:
        f = mixgrad.register_op("testing_no_native")(lambda x: x)
        try:
            with pytest.raises(errors.CheckError, match=r"forward: python; gradient: none"):
                check_parity(f, [Sample(X)])
        finally:
            mixgrad.unregister("testing_no_native")

    def test_declined_every_sample(self) -> None:
        with pytest.raises(errors.CheckError, match="declined every sample"):
            check_parity("multiply", [])


class TestAssertNoLeaks:
    def test_passes(self) -> None:
        with assert_no_leaks():
            mixgrad.grad(lambda x: mnp.sum(x * x))(X)

    def test_finds_what_stays(self) -> None:
        kept = []
        with (
            pytest.raises(errors.CheckError, match=r"left behind .*1 arrays"),
            assert_no_leaks(),
            mixgrad.Tape() as tape,
        ):
            kept.append(tape.watch(1.0))
        kept.clear()

    def test_lets_an_exception_pass(self) -> None:
        with pytest.raises(ZeroDivisionError), assert_no_leaks():
            raise ZeroDivisionError
