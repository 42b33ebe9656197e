# SPDX-License-Identifier: Apache-2.0
"""check_gradient finds every fault that is planted, and none where there is none."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import check_gradient

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

        check_gradient(f, np.ones(2, np.float32), variants=False)
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
    with pytest.raises(errors.CheckError):
        check_gradient(f, X, W)


def test_a_fault_of_second_order_only_is_found(product: Any) -> None:
    def constant_inside(op: Any, g: Any) -> Any:
        x, w = op.inputs
        return g * mixgrad.stop_gradient(w), g * x

    f = product(constant_inside)
    check_gradient(f, X, W)
    with pytest.raises(errors.CheckError, match="second-order gradient of testing_product"):
        check_gradient(f, X, W, order=2)


class Wrong:
    """Gradients of ``x * w`` that are right on paper and wrong in use."""

    kept: ClassVar[list[Any]] = []

    @staticmethod
    def keeps_g(op: Any, g: Any) -> Any:
        Wrong.kept.append(g)
        return g * op.inputs[1], g * op.inputs[0]

    @staticmethod
    def not_linear(op: Any, g: Any) -> Any:
        g = np.clip(g, -1.6, 1.6)
        return g * op.inputs[1], g * op.inputs[0]

    @staticmethod
    def reads_single_precision(op: Any, g: Any) -> Any:
        x, w = (value.astype(np.float32).astype(value.dtype) for value in op.inputs)
        return g * w, g * x

    @staticmethod
    def refuses_zero_strides(op: Any, g: Any) -> Any:
        if not all(g.strides):
            raise TypeError("cannot do that with strides of 0")
        return g * op.inputs[1], g * op.inputs[0]

    @staticmethod
    def refuses_no_elements(op: Any, g: Any) -> Any:
        g.reshape(-1)[0]
        return g * op.inputs[1], g * op.inputs[0]

    @staticmethod
    def refuses_single_numbers(op: Any, g: Any) -> Any:
        return g * op.inputs[1], g[...] * len(op.inputs[0]) / len(op.inputs[0]) * op.inputs[0]

    @staticmethod
    def wrong_when_large(op: Any, g: Any) -> Any:
        x, w = op.inputs
        return g * w, g * np.minimum(x, 20.0)

    @staticmethod
    def wrong_in_single_precision(op: Any, g: Any) -> Any:
        x, w = op.inputs
        return g * w * (1.001 if g.dtype == np.float32 else 1.0), g * x

    @staticmethod
    def writes_into_what_is_saved(op: Any, g: Any) -> Any:
        x, w = op.inputs
        result = g * w, g * x
        memory: Any = (ctypes.c_double * x.size).from_address(x.ctypes.data)
        memory[0] = 7.0
        return result


@pytest.mark.parametrize(
    ("gradient", "report"),
    [
        (Wrong.keeps_g, r"gradient of \w+: it leaves behind .*1 arrays: it keeps what it was given"),
        (Wrong.not_linear, r"gradient of \w+: that of input 0 is not linear in what arrives: element \[\d, \d\] is .* and not"),
        (Wrong.reads_single_precision, "not computed in double precision: a change of the arguments in the tenth digit"),
        (Wrong.refuses_zero_strides, "it fails: TypeError: cannot do that with strides of 0"),
        (Wrong.refuses_no_elements, "with arrays of no elements: it fails: IndexError"),
        (Wrong.refuses_single_numbers, "with single numbers: it fails: TypeError"),
        (Wrong.wrong_when_large, "at 30 times the arguments: that of input 1, of shape .* is wrong at"),
        (Wrong.wrong_in_single_precision, "in single precision: that of input 0 is not what it is in double precision"),
        (Wrong.writes_into_what_is_saved, r"the gradient of op '\w+' \(.*test_check.py:\d+\) writes into an input"),
    ],
)  # fmt: skip
def test_the_report_says_what_is_wrong_in_use(gradient: Any, report: str, product: Any) -> None:
    # Numbers that single precision has exactly, and a tolerance that lets its rounding pass.
    x, w = np.array([[0.5, 1.5], [2.0, 0.75]]), np.array([2.0, 0.25])
    with pytest.raises(errors.CheckError, match=report):
        check_gradient(product(gradient), x, w, rtol=1e-4, signs=False)
    Wrong.kept.clear()


def test_one_argument_alone_is_made_negative() -> None:
    def exponent_below_zero(op: Any, g: Any) -> Any:
        _, y = op.inputs
        return op.next(g)[0], op.next(g)[1] * np.where(y < 0, 2.0, 1.0)

    # With both negative the power has no real value.
    x, y = np.array([1.5, 2.5]), np.array([0.7, 1.3])
    with (
        mixgrad.override_gradient("power", exponent_below_zero),
        pytest.raises(errors.CheckError, match="with number 1 of its arguments negative: that of input 1"),
    ):
        check_gradient(np.power, x, y, variants=False)


def test_what_a_function_does_not_take_is_not_asked_of_it() -> None:
    asked = []

    def f(x: Any) -> Any:
        asked.append((x.shape, x.dtype.name))
        if x.dtype != np.float64 or x.ndim != 1 or not x.size or abs(float(mixgrad.stop_gradient(x[0]))) > 10:
            raise ValueError("not that")
        return x * x

    check_gradient(f, np.array([0.5, 2.0]))
    assert {shape for shape, _ in asked} == {(2,), (0,), ()}
    assert {name for _, name in asked} == {"float64", "float32"}


def test_variants_may_be_left_out() -> None:
    def f(x: Any) -> Any:
        assert x.shape == (2,)
        assert x.dtype == np.float64
        assert abs(float(mixgrad.stop_gradient(x[0]))) < 1
        return x * x

    check_gradient(f, np.array([0.5, 2.0]), variants=False)


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6, 40.0])
def test_cancellation_is_no_fault(size: float) -> None:
    check_gradient(mixgrad.nn.softmax, size * X)
    check_gradient(mnp.tanh, size * X)
    check_gradient(lambda x: mnp.log(mnp.sum(mnp.exp(-x * x))), X)
