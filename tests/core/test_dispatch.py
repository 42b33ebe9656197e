"""The dispatcher's order, case by case, and that no mix of implementations gives a wrong number."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import _core
from mixgrad.errors import MissingGradientError, NotDifferentiableError, NotSavedError


def calls(name: Any) -> Any:
    gradients = _core.implementations(mixgrad.registry[name])["gradient"]
    return {language: gradients[language]["calls"] for language in gradients}


def which_runs(name: Any, f: Any, x: Any) -> Any:
    before = calls(name)
    mixgrad.grad(f)(x)
    after = calls(name)
    return {language for language in after if after[language] > before[language]}


def zero(op: Any, g: Any) -> Any:
    return tuple(0.0 * g for _ in op.inputs)


def test_native_comes_first() -> None:
    assert which_runs("multiply", lambda x: x * 3.0, 2.0) == {"native"}


def test_a_preference_comes_before_native() -> None:
    with mixgrad.prefer("python", "mul"):
        assert which_runs("multiply", lambda x: x * 3.0, 2.0) == {"python"}
        assert which_runs("add", lambda x: x + 3.0, 2.0) == {"native"}
    with mixgrad.prefer("python"):
        assert which_runs("add", lambda x: x + 3.0, 2.0) == {"python"}
        with mixgrad.prefer("native", "add"):
            assert which_runs("add", lambda x: x + 3.0, 2.0) == {"native"}
    assert which_runs("multiply", lambda x: x * 3.0, 2.0) == {"native"}


def test_an_override_comes_before_a_preference() -> None:
    with mixgrad.override_gradient("mul", zero), mixgrad.prefer("python", "mul"):
        assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 0.0
    with mixgrad.prefer("python", "mul"), mixgrad.override_gradient("mul", zero):
        assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 0.0


def test_the_innermost_override_wins_and_unwinds_on_exceptions() -> None:
    with mixgrad.override_gradient("mul", zero):
        with pytest.raises(ZeroDivisionError):  # noqa: SIM117
            with mixgrad.override_gradient("multiply", lambda op, g: (7.0 * g, g)):
                assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 7.0
                raise ZeroDivisionError
        assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 0.0
    assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 3.0


def test_the_originals_can_be_called_from_inside() -> None:
    seen = {}

    def compare(op: Any, g: Any) -> Any:
        seen["native"], seen["python"] = op.native(g), op.python(g)
        return seen["native"]

    x, y = np.array([[1.0], [2.0]]), np.array([3.0, 4.0, 5.0])
    with mixgrad.override_gradient("mul", compare):
        gx, gy = mixgrad.grad(lambda x, y: mnp.sum(x * y), argnum=(0, 1))(x, y)
    np.testing.assert_array_equal(gx, [[12.0], [12.0]])
    np.testing.assert_array_equal(gy, [3.0, 3.0, 3.0])
    for mine, theirs in zip(seen["native"], seen["python"], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_override_around_the_forward_alone_counts() -> None:
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)
        with mixgrad.override_gradient("mul", zero):
            y = x * 3.0
        z = y + x * 5.0
    assert tape.gradient(z, x) == 5.0


def test_an_override_in_force_when_the_gradient_is_taken_wins() -> None:
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)
        with mixgrad.override_gradient("mul", zero):
            y = x * 3.0
    with mixgrad.override_gradient("mul", lambda op, g: (9.0 * g, g)):
        assert tape.gradient(y, x) == 9.0


def test_an_override_reads_what_the_op_does_not_save() -> None:
    def reads(op: Any, g: Any) -> Any:
        x, y = op.inputs
        assert float(op.output) == 6.0
        return g * y, g * x

    with mixgrad.override_gradient("mul", reads):
        assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 3.0
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)
        y = x * 3.0
    with mixgrad.override_gradient("mul", reads), pytest.raises(NotSavedError, match="output 0 of op 'multiply'"):
        tape.gradient(y, x)


def test_a_condition_that_fails_declines() -> None:
    def only_float32(metadata: Any) -> Any:
        assert metadata.name == "multiply"
        assert metadata.inputs[0].shape == ()
        return metadata.gradients[0].dtype == np.float32

    with mixgrad.override_gradient("mul", zero, when=only_float32):
        assert mixgrad.grad(lambda x: x * 3.0)(2.0) == 3.0
        assert mixgrad.grad(lambda x: x * 3.0)(np.float32(2.0)) == 0.0


def test_a_gradient_with_a_condition() -> None:
    @mixgrad.register_op("test_conditional")
    def conditional(x: Any) -> Any:
        return x * 2.0

    try:

        @mixgrad.register_gradient("test_conditional", when=lambda m: len(m.inputs[0].shape) == 1)
        def gradient(op: Any, g: Any) -> Any:
            return g * 2.0

        np.testing.assert_array_equal(mixgrad.grad(lambda x: conditional(x).sum())(np.ones(2)), [2.0, 2.0])
        with pytest.raises(MissingGradientError, match="its condition"):
            mixgrad.grad(conditional)(1.0)
    finally:
        mixgrad.unregister("test_conditional")


def test_native_declines_and_python_runs() -> None:
    before = _core.implementations(mixgrad.registry["absolute"])["gradient"]["native"]["declined"]
    z = np.array([3.0 + 4.0j])
    gradient = mixgrad.grad(lambda z: mnp.sum(mnp.absolute(z)))(z)
    np.testing.assert_allclose(gradient, np.conj(z) / 5.0)
    assert _core.implementations(mixgrad.registry["absolute"])["gradient"]["native"]["declined"] > before


def test_a_fallback_is_told_once_per_op_when_asked_for() -> None:
    z = np.array([3.0 + 4.0j])

    def run() -> Any:
        return mixgrad.grad(lambda z: mnp.sum(mnp.absolute(z)))(z)

    mixgrad.debug.warn_fallbacks()
    try:
        with pytest.warns(mixgrad.errors.FallbackWarning, match="op 'absolute'") as caught:
            run()
            run()
        assert len(caught) == 1
    finally:
        mixgrad.debug.warn_fallbacks(False)


def test_missing_gradient_says_what_to_do() -> None:
    @mixgrad.register_op("test_missing")
    def missing(x: Any) -> Any:
        return x * 2.0

    try:
        with pytest.raises(MissingGradientError) as caught:
            mixgrad.grad(missing)(1.0)
        text = str(caught.value)
        assert "'test_missing'" in text
        assert "none is registered" in text
        assert '@mixgrad.register_gradient("test_missing")' in text
        assert "MIXGRAD_REGISTER_GRADIENT(test_missing)" in text
        assert mixgrad.grad(lambda x: x * x)(3.0) == 6.0
    finally:
        mixgrad.unregister("test_missing")


# --- second order: 14, or an error; never 2 --------------------------------------------------------------------------


def polynomial(x: Any) -> Any:
    return x * x * x + x * x


def second(f: Any, x: Any) -> Any:
    return mixgrad.grad(mixgrad.grad(f))(x)


@pytest.mark.parametrize("outer", ["native", "python"])
@pytest.mark.parametrize("inner", ["native", "python"])
def test_second_order_in_every_mix(inner: Any, outer: Any) -> None:
    def gradient(x: Any) -> Any:
        with mixgrad.prefer(inner):
            return mixgrad.grad(polynomial)(x)

    with mixgrad.prefer(outer):
        assert mixgrad.grad(gradient)(2.0) == 14.0
    with mixgrad.prefer(inner, "mul"), mixgrad.prefer(outer, "add"):
        assert second(polynomial, 2.0) == 14.0


def test_second_order_with_a_first_order_override_is_an_error() -> None:
    def first_order(op: Any, g: Any) -> Any:
        x, y = op.inputs
        return np.multiply(g, y), np.multiply(g, x)

    with mixgrad.override_gradient("mul", first_order, differentiable=False):
        assert mixgrad.grad(polynomial)(2.0) == 16.0
        with pytest.raises(NotDifferentiableError, match="op 'multiply' is overridden"):
            second(polynomial, 2.0)


@pytest.fixture
def third() -> Any:
    """x**3 as an op of its own, whose gradient each test registers."""

    @mixgrad.register_op("test_third", saves="x")
    def third(x: Any) -> Any:
        return x**3

    yield third
    mixgrad.unregister("test_third")


def test_second_order_through_a_python_gradient_of_numpy_functions(third: Any) -> None:
    third.gradient(lambda g, x, out: g * 3.0 * np.power(x, 2.0))
    assert second(lambda x: third(x) + x * x, 2.0) == 14.0


def test_second_order_through_a_gradient_that_leaves_numpy_is_an_error(third: Any) -> None:
    third.gradient(lambda g, x, out: g * 3.0 * np.asarray(x) ** 2)
    assert mixgrad.grad(third)(2.0) == 12.0
    with pytest.raises(mixgrad.errors.ConversionError, match="asarray"):
        second(lambda x: third(x) + x * x, 2.0)


def test_second_order_through_float_is_an_error(third: Any) -> None:
    third.gradient(lambda g, x, out: g * 3.0 * float(x) ** 2)
    assert mixgrad.grad(third)(2.0) == 12.0
    with pytest.raises(mixgrad.errors.ConversionError, match="float"):
        second(lambda x: third(x) + x * x, 2.0)


def test_second_order_through_a_first_order_only_gradient_is_an_error(third: Any) -> None:
    third.gradient(lambda g, x, out: g * 3.0 * np.asarray(x) ** 2, differentiable=False)
    assert mixgrad.grad(third)(2.0) == 12.0
    with pytest.raises(NotDifferentiableError, match="first order only"):
        second(lambda x: third(x) + x * x, 2.0)


def test_a_first_order_only_gradient_is_an_error_in_jvp(third: Any) -> None:
    third.gradient(lambda g, x, out: g * 3.0 * np.asarray(x) ** 2, differentiable=False)
    with pytest.raises(NotDifferentiableError, match="test_third"):
        mixgrad.jvp(third, (2.0,), (1.0,))


def test_third_order() -> None:
    assert mixgrad.grad(mixgrad.grad(mixgrad.grad(polynomial)))(2.0) == 6.0


# --- where an override holds -----------------------------------------------------------------------------------------


def test_overrides_are_local_to_the_thread() -> None:
    results = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> Any:
        inside.wait(10)
        results["other"] = mixgrad.grad(lambda x: x * 3.0)(2.0)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with mixgrad.override_gradient("mul", zero):
        inside.set()
        done.wait(10)
        results["mine"] = mixgrad.grad(lambda x: x * 3.0)(2.0)
    thread.join()
    assert results == {"other": 3.0, "mine": 0.0}


def test_overrides_are_local_to_the_asyncio_task() -> None:
    async def overridden(ready: Any, go: Any) -> Any:
        with mixgrad.override_gradient("mul", zero):
            ready.set()
            await go.wait()
            return mixgrad.grad(lambda x: x * 3.0)(2.0)

    async def plain(ready: Any, go: Any) -> Any:
        await ready.wait()
        result = mixgrad.grad(lambda x: x * 3.0)(2.0)
        go.set()
        return result

    async def main() -> Any:
        ready, go = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(overridden(ready, go), plain(ready, go))

    assert asyncio.run(main()) == [0.0, 3.0]


def test_environment_preference() -> None:
    program = (
        "import mixgrad; from mixgrad import _core;"
        "mixgrad.grad(lambda x: x * x + 1.0)(2.0);"
        "c = lambda n: {k: v['calls'] for k, v in _core.implementations(mixgrad.registry[n])['gradient'].items()};"
        "print(c('multiply'), c('add')); print(mixgrad.registry.explain('mul'))"
    )
    env = {**os.environ, "MIXGRAD_PREFER": "python:mul,exp"}
    out = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    assert "{'native': 0, 'python': 1} {'native': 1, 'python': 0}" in out
    assert "preferred by MIXGRAD_PREFER" in out


def test_explain_names_the_override_and_the_reasons() -> None:
    text = mixgrad.registry.explain("mul", 1.0, 2.0)
    assert "op 'multiply' (aliases: mul" in text
    assert "runs   native  mixgrad (ops/math.cpp:" in text
    with mixgrad.override_gradient("mul", zero):
        text = mixgrad.registry.explain("mul", 1.0, 2.0)
        assert "runs   override" in text
        assert "test_dispatch.py" in text
    with mixgrad.prefer("python", "mul"):
        text = mixgrad.registry.explain("mul")
        assert "runs   python" in text
        assert "preferred by prefer at" in text
