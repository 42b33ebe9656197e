"""Nothing leaks: not in a hundred thousand steps, not through exceptions, threads or cycles."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp

# The sanitizers' allocator keeps freed blocks, and everything takes ten times as long.
UNDER_SANITIZERS = sys.platform == "linux" and "libasan" in Path("/proc/self/maps").read_text()
STEPS = 2_000 if UNDER_SANITIZERS else 100_000


def resident_kib() -> Any:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


@pytest.fixture
def mixed() -> Any:
    @mixgrad.register_op("test_mixed", saves="x")
    def mixed(x: Any) -> Any:
        return np.sin(x)

    mixed.gradient(lambda g, x, out: g * mnp.cos(x))
    yield mixed
    mixgrad.unregister("test_mixed")


def test_a_hundred_thousand_steps(mixed: Any) -> None:
    x = np.linspace(0.0, 1.0, 5)

    def step() -> Any:
        with mixgrad.Tape() as tape:
            a = tape.watch(x)
            y = mnp.sum(mnp.exp(mixed(a * 2.0)) + a[1:].sum())
        return tape.gradient(y, a)

    expected = step()
    for _ in range(200):
        step()
    gc.collect()
    before, references, memory = mixgrad.debug.counters(), sys.getrefcount(x), resident_kib()
    for _ in range(STEPS):
        last = step()
    np.testing.assert_array_equal(last, expected)
    del last
    gc.collect()
    assert mixgrad.debug.counters() == before
    assert sys.getrefcount(x) == references
    if not UNDER_SANITIZERS:
        # 100,000 steps that each left 100 bytes would take ten times this.
        assert resident_kib() - memory < 1024


@pytest.mark.parametrize("where", ["forward", "python gradient", "contract", "native gradient"])
def test_exceptions_leave_nothing(where: Any) -> None:
    failing = {"forward": False}

    @mixgrad.register_op("test_failing", broadcasts=False)
    def failing_op(x: Any) -> Any:
        if where == "forward":
            raise ValueError("forward")
        return x * 2.0

    def gradient(g: Any, x: Any, out: Any) -> Any:
        if where == "python gradient":
            raise ValueError("gradient")
        return g[:1] if where == "contract" else g * 2.0

    failing_op.gradient(gradient)
    x = np.arange(3.0)

    def step() -> Any:
        with mixgrad.Tape() as tape:
            a = tape.watch(x)
            b = a * a
            if where == "native gradient":
                y = mnp.sum(b)
                # A native gradient that needs what was not saved raises from C++.
                with mixgrad.override_gradient("square", lambda op, g: op.native(g)):
                    tape.gradient(mnp.sum(mnp.square(b)), a, output_gradients=np.ones(7))
            y = mnp.sum(failing_op(b))
        tape.gradient(y, a)

    try:
        for _ in range(20):
            with pytest.raises(ValueError):
                step()
        gc.collect()
        before = mixgrad.debug.counters()
        for _ in range(STEPS // 50):
            with pytest.raises(ValueError):
                step()
        gc.collect()
        assert mixgrad.debug.counters() == before
    finally:
        mixgrad.unregister("test_failing")
    del failing


def test_a_million_ops_deep() -> None:
    n = 100_000 if UNDER_SANITIZERS else 1_000_000
    before = mixgrad.debug.counters()

    def chain(x: Any) -> Any:
        for _ in range(n):
            x = x + 1e-6
        return x

    assert mixgrad.grad(chain)(1.0) == 1.0
    with mixgrad.Tape() as tape:
        x = tape.watch(1.0)
        y = chain(x)
    del tape
    del x, y
    gc.collect()
    assert mixgrad.debug.counters() == before


def test_entries_of_a_dead_inner_tape_go_while_the_outer_lives() -> None:
    with mixgrad.Tape() as outer:
        a = outer.watch(2.0)
        mixgrad.grad(lambda x: x * x)(3.0)
        before = mixgrad.debug.counters()["entries"]
        for _ in range(1000):
            mixgrad.grad(lambda x: x * x)(3.0)
        assert mixgrad.debug.counters()["entries"] == before
        y = a * a
    assert outer.gradient(y, a) == 4.0


def test_windows_that_interleave() -> None:
    def recording(scale: Any) -> Any:
        with mixgrad.Tape() as tape:
            x = tape.watch(2.0)
            y = x * scale
            yield
            y = y * x
            yield
        yield tape.gradient(y, x)

    before = mixgrad.debug.counters()
    a, b = recording(3.0), recording(5.0)
    for _ in range(2):
        next(a)
        next(b)
    assert next(a) == 12.0
    assert next(b) == 20.0
    del a, b
    gc.collect()
    assert mixgrad.debug.counters() == before


def test_many_closed_tapes_at_once() -> None:
    functions = [mixgrad.vjp(lambda x: x * x, float(k))[1] for k in range(200)]
    assert [float(np.squeeze(f(1.0))) for f in functions] == [2.0 * k for k in range(200)]


def test_more_than_64_open_tapes_is_a_clear_error() -> None:
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(mixgrad.Tape())
        with pytest.raises(mixgrad.errors.TapeUsedError, match="64"):
            stack.enter_context(mixgrad.Tape())
    assert mixgrad.grad(lambda x: x * x)(3.0) == 6.0


def test_cycles_through_a_tape_are_collected() -> None:
    class Holder:
        tape: Any = None
        y: Any = None

    gc.collect()
    before = mixgrad.debug.counters()
    holders = [Holder()]
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)

        @mixgrad.custom_gradient
        def f(x: Any, kept: Any = holders) -> Any:
            y = x * 1.0
            return y, lambda g: g * 1.0 if kept else g

        holders[0].y = f(x)
        holders[0].tape = tape
    alive = weakref.ref(holders.pop())
    del holders, tape, x, f
    gc.collect()
    assert alive() is None
    assert mixgrad.debug.counters() == before


def test_eight_threads_each_with_its_own_tape() -> None:
    x = np.linspace(0.1, 1.0, 7)
    expected = np.cos(x) * x + np.sin(x)
    wrong = []

    def work() -> Any:
        for _ in range(200):
            gradient = mixgrad.grad(lambda x: mnp.sum(mnp.sin(x) * x))(x)
            if not np.allclose(gradient, expected):
                wrong.append(gradient)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_tape_freed_by_another_thread_after_its_own_ended() -> None:
    before = mixgrad.debug.counters()
    made = []

    def work() -> Any:
        with mixgrad.Tape() as tape:
            x = tape.watch(np.ones(3))
            made.extend([tape, x, x * 2.0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    made.clear()
    gc.collect()
    assert mixgrad.debug.counters() == before
