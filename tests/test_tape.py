# SPDX-License-Identifier: Apache-2.0
"""Tape: windows on the thread's tape, from a user's side."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Tape, errors
from mixgrad.testing import assert_no_leaks


def test_gradient_of_an_array() -> None:
    x = np.array([1.0, 2.0, 3.0])
    with Tape() as tape:
        v = tape.watch(x)
        y = mnp.sum(v**3)
    gradient = tape.gradient(y, v)
    assert type(gradient) is np.ndarray
    np.testing.assert_allclose(gradient, 3 * x**2)


def test_gradient_of_a_number_is_a_numpy_scalar() -> None:
    with Tape() as tape:
        x = tape.watch(3.0)
        y = x * x
    gradient = tape.gradient(y, x)
    assert type(gradient) is np.float64
    assert gradient == 6.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_gradient_keeps_shape_and_dtype(dtype: Any) -> None:
    x = np.ones((2, 3), dtype)
    with Tape() as tape:
        v = tape.watch(x)
        y = mnp.real(mnp.sum(v * v))
    gradient = tape.gradient(y, v)
    assert gradient.shape == x.shape
    assert gradient.dtype == dtype


def test_watch_gives_an_array_and_spares_the_callers() -> None:
    x = np.array([1.0, 2.0])
    with Tape() as tape:
        v = tape.watch(x)
        v += 1.0
        y = mnp.sum(v * v)
    np.testing.assert_array_equal(tape.gradient(y, v), 2 * (x + 1))
    np.testing.assert_array_equal(x, [1.0, 2.0])


def test_several_targets_add_up() -> None:
    with Tape() as tape:
        x = tape.watch(2.0)
        y, z = x * x, x * 10.0
    assert tape.gradient([y, z], x) == 14.0


def test_a_target_that_is_an_array_is_summed() -> None:
    with Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        y = x * x
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])


def test_an_intermediate_value_can_be_a_source() -> None:
    with Tape() as tape:
        x = tape.watch(3.0)
        y = x * x
        z = y * y
    gradient_x, gradient_y = tape.gradient(z, [x, y])
    assert gradient_x == 4 * 3.0**3
    assert gradient_y == 2 * 9.0


def test_the_target_itself_can_be_a_source() -> None:
    with Tape() as tape:
        x = tape.watch(3.0)
        y = x * x
    assert tape.gradient(y, y) == 1.0


def test_a_source_can_be_the_target() -> None:
    with Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(tape.gradient(x, x), [1.0, 1.0])


def test_output_gradients_weigh_the_targets() -> None:
    with Tape(persistent=True) as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        y = x * x
        z = mnp.sum(x)
    np.testing.assert_array_equal(tape.gradient(y, x, np.array([1.0, 10.0])), [2.0, 40.0])
    np.testing.assert_array_equal(tape.gradient(y, x, np.array([1, 10])), [2.0, 40.0])
    np.testing.assert_array_equal(tape.gradient({"y": y, "z": z}, x, {"y": np.array([1.0, 0.0]), "z": 3.0}), [5.0, 3.0])


class TestOutputGradientsAreChecked:
    @staticmethod
    def recorded() -> tuple[Tape, Any, Any]:
        with Tape(persistent=True) as tape:
            x = tape.watch(np.array([1.0, 2.0]))
            y = x * x
        return tape, x, y

    def test_shape(self) -> None:
        tape, x, y = self.recorded()
        with pytest.raises(errors.GradientShapeError, match=r"shape \(3,\); it must have the shape \(2,\)"):
            tape.gradient(y, x, np.ones(3))

    def test_complex_for_a_real_target(self) -> None:
        tape, x, y = self.recorded()
        with pytest.raises(errors.GradientDtypeError, match="complex128, and float64 is real"):
            tape.gradient(y, x, np.ones(2) + 1j)

    def test_no_numbers(self) -> None:
        tape, x, y = self.recorded()
        with pytest.raises(errors.GradientDtypeError, match="array of numbers"):
            tape.gradient(y, x, np.array(["a", "b"]))

    def test_another_container(self) -> None:
        tape, x, y = self.recorded()
        with pytest.raises(errors.GradientShapeError, match="as the targets are"):
            tape.gradient([y], x, {"y": np.ones(2)})


def test_a_complex_target_needs_output_gradients() -> None:
    with Tape(persistent=True) as tape:
        z = tape.watch(1.0 + 2.0j)
        w = z * z
    with pytest.raises(errors.TargetError, match="complex"):
        tape.gradient(w, z)
    assert tape.gradient(w, z, 1.0 + 0j) == 2 * (1 + 2j)
    assert tape.gradient(w, z, 1.0) == 2 * (1 + 2j)


def test_the_complex_convention_is_that_of_autograd_and_jax() -> None:
    # f = x^2 + 3 y for z = x + iy: df/dx - i df/dy.
    with Tape() as tape:
        z = tape.watch(2.0 + 5.0j)
        f = mnp.real(z) ** 2 + 3.0 * mnp.imag(z)
    assert tape.gradient(f, z) == 4.0 - 3.0j


@dataclass
class Layer:
    weight: Any
    bias: Any


class Point(NamedTuple):
    x: Any
    y: Any


class TestContainers:
    def test_dict_list_tuple(self) -> None:
        with Tape() as tape:
            model = tape.watch({"w": [1.0, np.array([2.0, 3.0])], "b": (4.0,)})
            y = model["w"][0] * mnp.sum(model["w"][1]) * model["b"][0]
        gradient = tape.gradient(y, model)
        assert list(gradient) == ["w", "b"]
        assert gradient["w"][0] == 20.0
        np.testing.assert_array_equal(gradient["w"][1], [4.0, 4.0])
        assert gradient["b"] == (5.0,)

    def test_named_tuple_and_dataclass(self) -> None:
        with Tape() as tape:
            point, layer = tape.watch((Point(2.0, 3.0), Layer(np.ones(2), None)))
            y = point.x * point.y + mnp.sum(layer.weight) * 5.0
        gradient = tape.gradient(y, [point, layer])
        assert gradient[0] == Point(3.0, 2.0)
        assert isinstance(gradient[1], Layer)
        np.testing.assert_array_equal(gradient[1].weight, [5.0, 5.0])
        assert gradient[1].bias is None

    def test_an_error_names_the_leaf(self) -> None:
        with Tape() as tape, pytest.raises(errors.UnsupportedError) as caught:
            tape.watch({"layers": [{"w": 1.0, "n": 3}]})
        assert "int64" in str(caught.value)
        assert "value['layers'][0]['n']" in "".join(getattr(caught.value, "__notes__", ["value['layers'][0]['n']"]))

    def test_an_unrecorded_leaf_is_named(self) -> None:
        with Tape() as tape:
            x = tape.watch(1.0)
            y = x * x
        with pytest.raises(errors.NotRecordedError, match=r"source \['b'\] is a float"):
            tape.gradient(y, {"a": x, "b": 2.0})


class TestUnconnected:
    @staticmethod
    def recorded() -> tuple[Tape, Any, Any]:
        with Tape(persistent=True) as tape:
            sources = tape.watch([np.ones(2, np.float32), 2.0])
            y = sources[1] * sources[1]
        return tape, sources, y

    def test_zero(self) -> None:
        tape, sources, y = self.recorded()
        zero, four = tape.gradient(y, sources)
        np.testing.assert_array_equal(zero, [0.0, 0.0])
        assert zero.dtype == np.float32
        assert four == 4.0

    def test_none(self) -> None:
        tape, sources, y = self.recorded()
        assert tape.gradient(y, sources, unconnected="none") == [None, 4.0]

    def test_error(self) -> None:
        tape, sources, y = self.recorded()
        with pytest.raises(errors.UnconnectedError, match=r"source \[0\] \(shape \(2,\), dtype float32\)"):
            tape.gradient(y, sources, unconnected="error")

    def test_another_word(self) -> None:
        tape, sources, y = self.recorded()
        with pytest.raises(ValueError, match=r'"zero", "none" or "error", not \'zeros\''):
            tape.gradient(y, sources, unconnected="zeros")  # type: ignore[arg-type]


class TestJacobian:
    def test_shape_is_target_then_source(self) -> None:
        a = np.arange(6.0).reshape(2, 3)
        with Tape() as tape:
            x = tape.watch(np.ones((3, 4)))
            y = a @ x
        jacobian = tape.jacobian(y, x)
        assert jacobian.shape == (2, 4, 3, 4)
        np.testing.assert_array_equal(jacobian, np.einsum("ij,kl->ikjl", a, np.eye(4)))

    def test_several_targets_and_sources(self) -> None:
        with Tape() as tape:
            x, y = tape.watch((np.array([1.0, 2.0]), 3.0))
            targets = {"product": x * y, "square": y * y}
        jacobian = tape.jacobian(targets, (x, y))
        np.testing.assert_array_equal(jacobian["product"][0], 3 * np.eye(2))
        np.testing.assert_array_equal(jacobian["product"][1], [1.0, 2.0])
        np.testing.assert_array_equal(jacobian["square"][0], [0.0, 0.0])
        assert jacobian["square"][1] == 6.0

    def test_of_a_target_of_size_0(self) -> None:
        with Tape() as tape:
            x = tape.watch(np.ones(3))
            y = x[:0]
        assert tape.jacobian(y, x).shape == (0, 3)

    def test_uses_the_tape_up_unless_it_is_persistent(self) -> None:
        with Tape() as tape:
            x = tape.watch(np.ones(2))
            y = x * x
        tape.jacobian(y, x)
        with pytest.raises(errors.TapeUsedError):
            tape.jacobian(y, x)

    def test_is_recorded_by_another_tape(self) -> None:
        with Tape() as outer:
            x = outer.watch(np.array([1.0, 2.0]))
            with Tape() as inner:
                v = inner.watch(x)
                y = v**3
            jacobian = inner.jacobian(y, v)
            z = mnp.sum(jacobian)
        np.testing.assert_allclose(outer.gradient(z, x), [6.0, 12.0])


class TestPersistent:
    def test_gradient_repeatedly(self) -> None:
        with Tape(persistent=True) as tape:
            x = tape.watch(2.0)
            y = x**3
            z = y * y
        assert [tape.gradient(t, x) for t in (y, z, y)] == [12.0, 6 * 2.0**5, 12.0]

    def test_otherwise_once(self) -> None:
        with Tape() as tape:
            x = tape.watch(2.0)
            y = x * x
        tape.gradient(y, x)
        with pytest.raises(errors.TapeUsedError, match="persistent=True"):
            tape.gradient(y, x)

    def test_gradient_inside_the_block(self) -> None:
        with Tape(persistent=True) as tape:
            x = tape.watch(2.0)
            y = x * x
            assert tape.gradient(y, x) == 4.0
            z = y * x
        assert tape.gradient(z, x) == 12.0


class TestStopRecording:
    def test_the_result_is_a_constant(self) -> None:
        with Tape() as tape:
            x = tape.watch(3.0)
            with tape.stop_recording():
                scale = x * 2.0
            y = x * scale
        assert tape.gradient(y, x) == 6.0

    def test_only_for_this_tape(self) -> None:
        with Tape() as outer:
            x = outer.watch(3.0)
            with Tape() as inner:
                v = inner.watch(x)
                with inner.stop_recording():
                    scale = v * 2.0
                y = v * scale
            assert float(inner.gradient(y, v)) == 6.0
        assert outer.gradient(y, x) == 12.0

    def test_goes_on_after_an_exception(self) -> None:
        with Tape() as tape:
            x = tape.watch(3.0)
            with pytest.raises(ZeroDivisionError), tape.stop_recording():
                raise ZeroDivisionError
            y = x * x
        assert tape.gradient(y, x) == 6.0


class TestReset:
    def test_forgets(self) -> None:
        with Tape() as tape:
            x = tape.watch(3.0)
            y = x * x
            tape.reset()
            v = tape.watch(4.0)
            z = v * v
        with pytest.raises(errors.NotRecordedError):
            tape.gradient(y, x)
        assert tape.gradient(z, v) == 8.0

    def test_makes_a_used_tape_new(self) -> None:
        tape = Tape()
        for value in (1.0, 2.0):
            with tape:
                x = tape.watch(value)
                y = x * x
            assert tape.gradient(y, x) == 2 * value
            tape.reset()

    def test_frees(self) -> None:
        with Tape(persistent=True) as tape, assert_no_leaks():
            x = tape.watch(np.ones(100))
            y = mnp.sin(x)
            del x, y
            tape.reset()


class TestNotRecorded:
    def test_the_plain_array_instead_of_the_watched_one(self) -> None:
        x = np.ones(2)
        with Tape() as tape:
            y = mnp.sum(tape.watch(x))
        with pytest.raises(errors.NotRecordedError, match=r"the source is a ndarray of shape \(2,\).*tape.watch"):
            tape.gradient(y, x)

    def test_a_target_made_plain(self) -> None:
        with Tape() as tape:
            x = tape.watch(np.ones(2))
            y = np.sum(np.asarray(x))
        with pytest.raises(errors.NotRecordedError, match=r"the target is a float64.*np\.asarray"):
            tape.gradient(y, x)

    def test_computed_before_it_was_watched(self) -> None:
        with Tape() as tape:
            x = tape.watch(2.0)
            y = x * x
            v = tape.watch(x)
            z = v * v
        assert tape.gradient(z, v) == 4.0
        with Tape() as tape:
            x = tape.watch(2.0)
            y = x * x
            v = tape.watch(x)
        assert tape.gradient(y, v, unconnected="none") is None

    def test_after_recording_stopped(self) -> None:
        with Tape() as tape:
            x = tape.watch(2.0)
        y = x * x
        with pytest.raises(errors.NotRecordedError, match="target"):
            tape.gradient(y, x)

    def test_an_array_that_outlived_its_tape(self) -> None:
        with Tape() as tape:
            old = tape.watch(2.0) * 1.0
        del tape
        with Tape() as tape:
            x = tape.watch(3.0)
            y = x * old
        with pytest.raises(errors.NotRecordedError, match="source"):
            tape.gradient(y, old)
        with Tape() as tape:
            x = tape.watch(3.0)
            y = x * old
        assert tape.gradient(y, x) == 2.0

    def test_watch_outside_the_block(self) -> None:
        tape = Tape()
        with pytest.raises(errors.TapeUsedError, match="not recording"):
            tape.watch(1.0)
        with tape:
            pass
        with pytest.raises(errors.TapeUsedError, match="not recording"):
            tape.watch(1.0)

    def test_entered_twice(self) -> None:
        with Tape() as tape:
            pass
        with pytest.raises(errors.TapeUsedError, match="entered before"), tape:
            pass


@pytest.mark.parametrize(
    "source", [3, True, np.int64(3), np.arange(3), np.array([True]), np.float16(1), "a", None, np.array("a")]
)
def test_sources_that_are_not_differentiated_are_refused(source: Any) -> None:
    with Tape() as tape:
        if source is None:
            assert tape.watch(None) is None
        else:
            with pytest.raises(TypeError):
                tape.watch(source)


class TestNesting:
    def test_second_derivative(self) -> None:
        with Tape() as outer:
            x = outer.watch(np.array([1.0, 2.0]))
            with Tape() as inner:
                v = inner.watch(x)
                y = mnp.sum(v**4)
            slope = inner.gradient(y, v)
            assert type(slope) is mixgrad.Array
        np.testing.assert_allclose(outer.gradient(slope, x), 12 * np.array([1.0, 4.0]))

    def test_derivatives_of_one_variable_do_not_mix(self) -> None:
        with Tape() as outer:
            x = outer.watch(3.0)
            with Tape() as inner:
                v = inner.watch(x)
                y = x * v
            slope = inner.gradient(y, v)
            z = slope * 1.0
        assert outer.gradient(z, x) == 1.0

    def test_the_inner_result_is_plain_when_the_outer_does_not_depend(self) -> None:
        with Tape() as outer:
            outer.watch(1.0)
            with Tape() as inner:
                v = inner.watch(2.0)
                y = v * v
            slope = inner.gradient(y, v)
        assert type(slope) is np.float64

    def test_windows_that_overlap(self) -> None:
        first, second = Tape(), Tape()
        first.__enter__()
        x = first.watch(2.0)
        second.__enter__()
        v = second.watch(3.0)
        y = x * v
        first.__exit__(None, None, None)
        z = y * v
        second.__exit__(None, None, None)
        assert first.gradient(y, x) == 3.0
        assert second.gradient(z, v) == 2 * 2.0 * 3.0

    def test_the_gradient_of_one_does_not_free_the_other(self) -> None:
        with Tape() as first, Tape() as second:
            x = first.watch(2.0)
            v = second.watch(x)
            y = v**3
        assert second.gradient(y, v) == 12.0
        assert first.gradient(y, x) == 12.0

    def test_generators_take_turns(self) -> None:
        def work(value: float) -> Any:
            with Tape() as tape:
                x = tape.watch(value)
                yield
                y = x * x
                yield
            yield tape.gradient(y, x)

        workers = [work(float(i)) for i in range(5)]
        results = [list(step) for step in zip(*workers, strict=True)]
        assert results[-1] == [2.0 * i for i in range(5)]

    def test_asyncio_tasks_take_turns(self) -> None:
        async def work(value: float) -> Any:
            with Tape() as tape:
                x = tape.watch(value)
                y = x
                for _ in range(3):
                    await asyncio.sleep(0)
                    y = y * x
            return tape.gradient(y, x)

        async def main() -> list[Any]:
            return list(await asyncio.gather(*(work(float(i)) for i in range(5))))

        assert asyncio.run(main()) == [4 * float(i) ** 3 for i in range(5)]

    def test_the_deepest_first(self) -> None:
        tapes = [Tape() for _ in range(20)]
        x: Any = 1.5
        sources = []
        for tape in tapes:
            tape.__enter__()
            x = tape.watch(x)
            sources.append(x)
        y = x * x
        for tape in reversed(tapes):
            tape.__exit__(None, None, None)
        assert [tape.gradient(y, source) for tape, source in zip(tapes, sources, strict=True)] == [3.0] * 20


class TestFailure:
    def test_an_exception_in_the_block_leaves_others_usable(self) -> None:
        def fails(x: Any) -> None:
            with Tape() as inner:
                v = inner.watch(x)
                _ = v * v
                raise ZeroDivisionError

        with Tape() as outer:
            x = outer.watch(2.0)
            with pytest.raises(ZeroDivisionError):
                fails(x)
            y = x * x
        assert outer.gradient(y, x) == 4.0

    def test_a_failed_backward_pass_uses_the_tape_up(self) -> None:
        def fail(op: Any, g: Any) -> Any:
            raise ZeroDivisionError("on purpose")

        with Tape() as outer:
            u = outer.watch(2.0)
            with Tape() as tape:
                x = tape.watch(u)
                y = mnp.sin(x)
            with mixgrad.override_gradient("sin", fail), pytest.raises(ZeroDivisionError, match="on purpose"):
                tape.gradient(y, x)
            with pytest.raises(errors.TapeUsedError):
                tape.gradient(y, x)
            z = u * u
        assert outer.gradient(z, u) == 4.0

    def test_but_not_a_persistent_one(self) -> None:
        def fail(op: Any, g: Any) -> Any:
            raise ZeroDivisionError("on purpose")

        with Tape(persistent=True) as tape:
            x = tape.watch(2.0)
            y = mnp.sin(x) * x
        with mixgrad.override_gradient("sin", fail), pytest.raises(ZeroDivisionError):
            tape.gradient(y, x)
        np.testing.assert_allclose(tape.gradient(y, x), np.sin(2.0) + 2.0 * np.cos(2.0))


class TestMemory:
    def test_gradient_frees_what_was_saved(self) -> None:
        with assert_no_leaks():
            with Tape() as tape:
                x = tape.watch(np.ones(1000))
                y = mnp.sum(mnp.sin(x) * x)
            tape.gradient(y, x)
            del tape, x, y

    def test_a_tape_that_is_dropped_frees(self) -> None:
        with assert_no_leaks():
            with Tape(persistent=True) as tape:
                x = tape.watch(np.ones(1000))
                _ = mnp.sum(mnp.sin(x) * x)
            del tape, x, _

    def test_a_cycle_through_an_entry_is_collected(self) -> None:
        def make() -> weakref.ref[Tape]:
            @mixgrad.custom_gradient
            def keep(x: Any) -> Any:
                return x * 2.0, lambda g: (tape, 2.0 * g)[1]

            with Tape(persistent=True) as tape:
                x = tape.watch(1.0)
                y = keep(x)
            assert tape.gradient(y, x) == 2.0
            return weakref.ref(tape)

        alive = make()
        gc.collect()
        assert alive() is None

    def test_a_long_chain_neither_recurses_nor_stays(self) -> None:
        with assert_no_leaks():
            with Tape() as tape:
                x = tape.watch(1.0)
                y = x
                for _ in range(200_000):
                    y = y * 1.0
            assert tape.gradient(y, x) == 1.0
            del tape, x, y
        with assert_no_leaks():
            with Tape() as tape:
                x = tape.watch(1.0)
                y = x
                for _ in range(200_000):
                    y = y + x
            del tape, x, y

    def test_what_comes_back_is_the_callers_own(self) -> None:
        x = np.ones(3)
        with Tape() as tape:
            a, b = tape.watch((x, x))
            y = a + b
        upstream = np.ones(3)
        gradient_a, gradient_b = tape.gradient(y, (a, b), upstream)
        gradient_a *= 100.0
        np.testing.assert_array_equal(gradient_b, np.ones(3))
        np.testing.assert_array_equal(upstream, np.ones(3))
        np.testing.assert_array_equal(x, np.ones(3))


class TestMutation:
    def test_a_small_array_is_taken_as_it_was(self) -> None:
        x = np.array([3.0])
        with Tape() as tape:
            v = tape.watch(x)
            y = v * v
        x[0] = 5.0
        np.testing.assert_array_equal(tape.gradient(y, v), [6.0])

    def test_a_large_one_is_an_error_that_names_the_op(self) -> None:
        weights = np.ones(100_000)
        with Tape() as tape:
            v = tape.watch(np.ones(100_000))
            y = v * weights
        weights += 1.0
        with pytest.raises(errors.MutatedInputError, match="multiply"):
            tape.gradient(y, v)


class TestThreads:
    def test_each_has_its_own_tape(self) -> None:
        wrong: list[Any] = []

        def work(number: int) -> None:
            try:
                for i in range(50):
                    with Tape() as tape:
                        x = tape.watch(float(number + i))
                        y = mnp.sin(x) * x
                    found = tape.gradient(y, x)
                    want = np.sin(number + i) + (number + i) * np.cos(number + i)
                    if abs(found - want) > 1e-12:
                        wrong.append((found, want))
            except Exception as error:  # noqa: BLE001  any failure is reported by the main thread
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_an_array_of_another_thread_is_refused(self) -> None:
        caught: list[Exception] = []

        def work(x: Any, tape: Tape) -> None:
            try:
                x * 2.0
            except errors.OtherThreadError as error:
                caught.append(error)
            try:
                tape.gradient(x, x)
            except errors.OtherThreadError as error:
                caught.append(error)

        with Tape() as tape:
            x = tape.watch(1.0)
            thread = threading.Thread(target=work, args=(x, tape))
            thread.start()
            thread.join()
        assert len(caught) == 2
        caught.clear()
