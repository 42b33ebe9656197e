# SPDX-License-Identifier: Apache-2.0
"""check_parity finds where native and Python differ, in values and in second order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
from mixgrad import Sample, errors
from mixgrad.testing import assert_no_leaks, check_parity, sample_call

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.array([[0.5, 1.5], [2.0, 0.7], [1.1, 0.9]])
W = np.array([2.0, 0.3])


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

            monkeypatch.setattr("mixgrad.testing.parity.prefer", prefer)

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


def test_a_sample_call_keeps_nothing() -> None:
    f, arrays = sample_call(mixgrad.registry["multiply"], Sample(X, W))
    with assert_no_leaks():
        mixgrad.vjp(f, *arrays)


def test_a_gradient_that_declines_everything_is_not_proved_by_its_forward() -> None:
    op = mixgrad.op(np.tanh, name="parity_declines", samples=lambda: [mixgrad.Sample(np.ones(3))], numpy=())
    op.gradient(lambda g, x, out: g * (1 - out * out))
    mixgrad.cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(parity_declines) { return decline; }", name="parity_declines")
    try:
        with pytest.raises(
            errors.CheckError, match="the native gradient declined every sample, so nothing was compared"
        ):
            check_parity(op)
    finally:
        mixgrad.unregister("parity_declines")
