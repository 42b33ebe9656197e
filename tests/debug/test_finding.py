# SPDX-License-Identifier: Apache-2.0
"""bisect, check_finite, hooks, missing gradients and live buffers: faults are found and named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import debug
from mixgrad.errors import CheckError, MixgradError, NonFiniteError
from mixgrad.testing import assert_no_leaks

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.array([1.0, -2.0, 3.0])


def many(op: Any) -> Any:
    """About 200 ops of 19 kinds; the one that is planted is called at two places."""
    functions: list[Callable[[Any], Any]] = [
        np.sin,
        np.cos,
        np.tanh,
        np.arctan,
        np.exp,
        np.negative,
        np.square,
        np.abs,
        np.sinh,
        np.expm1,
        lambda x: x + 1.0,
        lambda x: x - 2.0,
        lambda x: x / 3.0,
        lambda x: np.hypot(x, 1.0),
        lambda x: np.maximum(x, -5.0),
        lambda x: np.reshape(x, (-1,)),
    ]

    def f(x: Any) -> Any:
        for i in range(48):
            if i in (16, 24):
                x = op(x, np.tanh(x) + 1.5)
            x = x + 0.1 * functions[i % len(functions)](np.tanh(x))
        return np.sum(x)

    return f


@pytest.mark.parametrize("fault", ["sign", "nan"])
def test_bisect_finds_a_native_gradient_among_many(planted: dict[str, Any], fault: str) -> None:
    f = many(planted[fault]) if fault == "sign" else lambda x: np.sum(planted["nan"](np.sin(x), np.cos(x)) * np.exp(x))
    x = X if fault == "sign" else np.array([0.0, 1.0])
    with np.errstate(all="ignore"):
        blame = debug.bisect(f, x)
    assert (blame.op, blame.implementation) == (f"planted_{fault}", "native")
    assert blame.where is not None
    assert blame.where[0] == __file__
    assert blame.runs <= 2 * math.log2(200)
    assert f"The native gradient of op 'planted_{fault}' (planted (planted.cpp:" in str(blame)
    assert f'mixgrad.prefer("python", "planted_{fault}")' in str(blame)


def test_bisect_by_a_predicate(planted: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        return np.sum(planted["nan"](x, 2.0 * x) + np.sin(x))

    with np.errstate(all="ignore"):
        blame = debug.bisect(f, np.array([0.0, 1.0]), bad=lambda gradients: np.isnan(gradients[0]).any())
    assert (blame.op, blame.implementation) == ("planted_nan", "native")


def test_bisect_finds_a_python_gradient() -> None:
    @mixgrad.op(name="bisect_example", broadcasts=True)
    def product(x: Any, y: Any) -> Any:
        return x * y

    @product.gradient()
    def wrong(op: Any, g: Any) -> Any:
        x, y = op.inputs
        return g * y * 1.01, g * x

    try:
        blame = debug.bisect(many(product), X)
    finally:
        mixgrad.unregister("bisect_example")
    assert (blame.op, blame.implementation) == ("bisect_example", "python")
    assert blame.origin.startswith(__file__)
    assert "it is not what differences of the op's forward give" in str(blame)
    assert blame.where is not None


def test_bisect_needs_something_bad() -> None:
    with pytest.raises(ValueError, match="the gradient is not bad"):
        debug.bisect(np.sin, 1.0)
    with pytest.raises(ValueError, match="no float or complex argument"):
        debug.bisect(np.sin, 1)


def test_bisect_refuses_what_is_random() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="two runs with the same arguments give different gradients"):
        debug.bisect(lambda x: np.sum(np.sin(x) * rng.random(3)), X)


def test_bisect_says_when_no_op_is_to_blame() -> None:
    blame = debug.bisect(lambda x: np.sum(np.asarray(x) * x), X)
    assert blame.op == ""
    assert "every single gradient call is right by itself" in str(blame)


# --- nan and inf ------------------------------------------------------------------------------------------------------


def test_the_first_nan_of_a_forward_is_named() -> None:
    with pytest.raises(NonFiniteError) as caught, debug.check_finite(), np.errstate(all="ignore"):
        mixgrad.grad(lambda x: np.sum(np.exp(np.log(x))))(X)
    text = str(caught.value)
    assert f"op 'log' (native), called at {__file__}:" in text
    assert "gave 1 nan among 3 elements, the first at [1]. " in text
    assert "Inputs: float64[3] from -2.0 to 3.0" in text
    assert isinstance(caught.value, (MixgradError, FloatingPointError))


def test_the_first_nan_of_a_gradient_is_named(planted: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        return np.sum(np.exp(planted["nan"](x, x + 1.0)))

    x = np.array([1.0, 0.0])
    with pytest.raises(NonFiniteError) as caught, debug.check_finite(), np.errstate(all="ignore"):
        mixgrad.grad(f)(x)
    text = str(caught.value)
    assert "the gradient of op 'planted_nan' (native, planted (planted.cpp:" in text
    assert "gave 1 nan among 2 elements, the first at [1], for input 0" in text
    with debug.check_finite(), mixgrad.prefer("python", "planted_nan"):
        np.testing.assert_allclose(mixgrad.grad(f)(x), [3.0 * np.exp(2.0), 1.0])


def test_finite_results_pass() -> None:
    with debug.check_finite():
        np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(x * x))(X), 2.0 * X)
        assert mixgrad.grad(mixgrad.grad(lambda y: y**3))(2.0) == 12.0


def test_only_one_direction() -> None:
    with debug.check_finite(backward=False), np.errstate(all="ignore"):
        assert mixgrad.grad(np.sqrt)(0.0) == np.inf
    with debug.check_finite(forward=False), np.errstate(all="ignore"), pytest.raises(NonFiniteError, match="gave inf"):
        mixgrad.grad(lambda x: np.sqrt(x) + np.log(x))(0.0)


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_see_and_change_gradients() -> None:
    seen: list[tuple[str, float]] = []

    def clip(op: Any, g: Any, gradients: Any) -> Any:
        seen.append((op.name, float(g)))
        return tuple(None if one is None else np.clip(one, -1.0, 1.0) for one in gradients)

    with debug.on_gradient(clip, ops=["mul", "exp"]):
        assert mixgrad.grad(lambda x: np.exp(x * 2.0) * 3.0)(0.0) == 1.0
    assert seen == [("multiply", 1.0), ("exp", 1.0), ("multiply", 1.0)]


def test_hooks_nest() -> None:
    order: list[str] = []
    with (
        debug.on_gradient(lambda op, g, gradients: order.append("outer")),
        debug.on_gradient(lambda op, g, gradients: order.append("inner")),
    ):
        assert mixgrad.grad(np.sin)(0.0) == 1.0
    assert order == ["outer", "inner"]
    with pytest.raises(TypeError, match="takes a function"):
        debug.on_gradient(None)  # type: ignore[arg-type]


def test_a_hook_on_one_array() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = debug.gradient_hook(np.sin(x), seen.append)
        return np.sum(y * y)

    np.testing.assert_allclose(mixgrad.grad(f)(X), 2.0 * np.sin(X) * np.cos(X))
    np.testing.assert_allclose(seen, [2.0 * np.sin(X)])
    assert mixgrad.grad(lambda x: debug.gradient_hook(x, lambda g: 5.0 * g) ** 2)(3.0) == 30.0
    assert mixgrad.grad(mixgrad.grad(lambda x: debug.gradient_hook(x, lambda g: 5.0 * g) ** 2))(3.0) == 10.0 * 5.0
    np.testing.assert_array_equal(debug.gradient_hook(X, print), X)


# --- what is missing ----------------------------------------------------------------------------------------------------


def test_everything_missing_is_listed() -> None:
    made = {}
    for name in ("none", "first", "python"):

        def forward(x: Any) -> Any:
            return x * 2.0

        made[name] = mixgrad.op(forward, name=f"missing_{name}")
    made["first"].gradient(differentiable=False)(lambda op, g: g * 2.0)
    made["python"].gradient(lambda g, x, out: g * 2.0)
    try:
        report = debug.missing_gradients(
            lambda x: np.sum(made["none"](x) + made["first"](x) * made["none"](made["python"](x)) + np.sin(x)), X
        )
        assert [(row.op, row.kind, row.calls) for row in report] == [
            ("missing_none", "gradient", 2),
            ("missing_first", "second order", 1),
            ("missing_python", "native", 1),
        ]
        assert report.ops == 7
        assert "missing_first   first order only (1 call, first at" in str(report)
        assert all(row.where is not None and row.where[0] == __file__ for row in report)
    finally:
        for op in made.values():
            mixgrad.unregister(op.name)
    nothing = debug.missing_gradients(lambda x: np.sum(np.sin(x)), X)
    assert len(nothing) == 0
    assert str(nothing) == "all 2 ops have a native gradient, of any order"


# --- memory -------------------------------------------------------------------------------------------------------------


def test_a_gradient_that_keeps_a_buffer_is_named(planted: dict[str, Any]) -> None:
    def step(op: Any, x: Any = X) -> None:
        mixgrad.grad(lambda x: mnp.sum(op(mnp.sin(x), x)))(x)

    with debug.track_buffers():
        step(planted["right"])
        assert debug.live_buffers() == []
        for _ in range(5):
            step(planted["leak"])
        (kept,) = debug.live_buffers()
        step(planted["leak"], np.ones(1))
        assert debug.live_buffers() == []
    assert (kept.op, kept.what, kept.buffers, kept.nbytes) == ("sin", "forward", 5, 5 * 24)
    assert (kept.kept_by, kept.kept_in) == ("planted_leak", "native")
    assert kept.where is not None
    assert kept.where[0] == __file__
    assert ", kept by the native gradient of op 'planted_leak'" in str(kept)


def test_assert_no_leaks_names_the_gradient_that_keeps(planted: dict[str, Any]) -> None:
    op = planted["leak"]
    with pytest.raises(CheckError) as caught, assert_no_leaks():
        mixgrad.grad(lambda x: mnp.sum(op(mnp.sin(x), x)))(X)
    mixgrad.grad(lambda x: mnp.sum(op(x, x)))(np.ones(1))
    assert "the block left behind 1 buffers, 24 buffer bytes, 1 values" in str(caught.value)
    assert "1 buffer (24 bytes) made by the forward of op 'sin' (native) at" in str(caught.value)
    assert str(caught.value).endswith(", kept by the native gradient of op 'planted_leak'")


def test_live_buffers_of_a_tape() -> None:
    with debug.track_buffers():
        with mixgrad.Tape() as tape:
            x = tape.watch(X)
            y = mnp.sum(mnp.exp(x) * x)
        made = {(one.op, one.what): (one.buffers, one.nbytes) for one in debug.live_buffers()}
        assert made["exp", "forward"] == (1, 24)
        tape.gradient(y, x)
        assert ("exp", "forward") not in {(one.op, one.what) for one in debug.live_buffers()}
    assert debug.live_buffers() == []
