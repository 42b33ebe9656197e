"""The contract of a gradient: one set of words for what comes back wrong, and the tape usable afterwards."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad.errors import (
    GradientCountError,
    GradientDtypeError,
    GradientShapeError,
    MixgradError,
    MutatedInputError,
    NotRecordedError,
    NotSavedError,
    OtherThreadError,
    TapeUsedError,
    UnsupportedError,
)

X = np.ones((2, 3))
W = np.ones(3)


def with_gradient(gradient: Any) -> Any:
    """The gradient of sum(x * w) with mul's gradient replaced."""
    with mixgrad.override_gradient("mul", gradient):
        return mixgrad.grad(lambda x, w: mnp.sum(x * w), argnum=(0, 1))(X, W)


def test_the_right_gradient() -> None:
    gx, gw = with_gradient(lambda op, g: (g * op.inputs[1], g * op.inputs[0]))
    np.testing.assert_array_equal(gx, np.ones((2, 3)))
    np.testing.assert_array_equal(gw, [2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("gradient", "error", "words"),
    [
        (
            lambda op, g: (g,),
            GradientCountError,
            ["op 'multiply'", "returned 1 value", "has 2 inputs", "test_contract.py"],
        ),
        (lambda op, g: (g, g, g), GradientCountError, ["returned 3 values", "has 2 inputs"]),
        (lambda op, g: g, GradientCountError, ["returned a single numpy.ndarray", "2 inputs"]),
        (lambda op, g: (g.T, g), GradientShapeError, ["returned shape (3, 2) for input 0", "has shape (2, 3)"]),
        (
            lambda op, g: (g, g[:1]),
            GradientShapeError,
            ["returned shape (1, 3) for input 1", "has shape (3,)", "(2, 3)"],
        ),
        (lambda op, g: (g, g.astype(int)), GradientDtypeError, ["dtype int64 for input 1", "float64"]),
        (lambda op, g: (g, g.astype(object)), GradientDtypeError, ["dtype object for input 1"]),
        (lambda op, g: (g, "no"), GradientDtypeError, ["str", "input 1"]),
        (lambda op, g: (g, None), GradientCountError, ["None", "input 1", "declare"]),
    ],
)
def test_what_comes_back_wrong(gradient: Any, error: Any, words: Any) -> None:
    with pytest.raises(error) as caught:
        with_gradient(gradient)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, MixgradError)
    assert mixgrad.grad(lambda x: x * x)(3.0) == 6.0


def test_real_floats_are_cast_and_complex_gives_its_real_part() -> None:
    gx, gw = with_gradient(lambda op, g: (g.astype(np.float32), (g * (2.0 + 5.0j))))
    assert gx.dtype == gw.dtype == np.float64
    np.testing.assert_array_equal(gw, [4.0, 4.0, 4.0])


def test_what_a_gradient_sees_is_read_only() -> None:
    def writes(op: Any, g: Any) -> Any:
        g[...] = 0.0
        return g, g

    with pytest.raises(ValueError, match="read-only"):
        with_gradient(writes)

    def writes_input(op: Any, g: Any) -> Any:
        op.inputs[0][...] = 0.0
        return g, g

    with pytest.raises(ValueError, match="read-only"):
        with_gradient(writes_input)


def test_g_may_be_returned_as_it_is_and_nothing_is_shared() -> None:
    a, b = np.ones(3), np.ones(3)
    with mixgrad.prefer("python"):
        ga, gb = mixgrad.grad(lambda a, b: mnp.sum((a + b) + a), argnum=(0, 1))(a, b)
    np.testing.assert_array_equal(ga, [2.0, 2.0, 2.0])
    ga *= 100.0
    np.testing.assert_array_equal(gb, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(b, [1.0, 1.0, 1.0])


def test_an_exception_keeps_its_type_and_says_where() -> None:
    class Oops(Exception):
        pass

    def fails(op: Any, g: Any) -> Any:
        raise Oops("in the gradient")

    with pytest.raises(Oops, match="in the gradient") as caught:
        with_gradient(fails)
    (note,) = caught.value.__notes__
    assert "op 'multiply'" in note
    assert "recorded at" in note
    assert "test_contract.py" in note
    assert caught.traceback[-1].name == "fails"


def test_an_entry_is_dead_after_its_gradient() -> None:
    kept = []

    def keeps(op: Any, g: Any) -> Any:
        kept.append(op)
        return op.native(g)

    with_gradient(keeps)
    with pytest.raises(RuntimeError, match="has returned"):
        kept[0].inputs  # noqa: B018


def test_what_is_not_saved_has_a_shape_only() -> None:
    def looks(op: Any, g: Any) -> Any:
        _, y = op.inputs
        assert y.shape == (3,)
        assert y.ndim == 1
        assert y.size == 3
        assert y.dtype == np.float64
        for use in (
            lambda: y + 1,
            lambda: 1 + y,
            lambda: np.sin(y),
            lambda: y[0],
            lambda: y.sum() + 0,
            lambda: float(y),
            lambda: np.asarray(y),
        ):
            with pytest.raises(NotSavedError, match="was not saved"):
                use()
        return g, None

    with mixgrad.Tape() as tape:
        x = tape.watch(X)
        y = mnp.sum(x + W)
    with mixgrad.override_gradient("add", looks):
        np.testing.assert_array_equal(tape.gradient(y, x), np.ones((2, 3)))


def test_zero_is_declared() -> None:
    @mixgrad.register_op("test_declared", saves="")
    def declared(x: Any, y: Any) -> Any:
        return x + 0.0 * y

    try:
        declared.gradient(lambda g, x, y, out: g, None)
        assert mixgrad.grad(declared, argnum=(0, 1))(1.0, 2.0) == (1.0, 0.0)
    finally:
        mixgrad.unregister("test_declared")


def test_a_forward_that_returns_a_tracked_array_is_an_error() -> None:
    outside: list[Any] = []

    @mixgrad.register_op("test_leaky")
    def leaky(x: Any) -> Any:
        return outside[0]

    try:
        with mixgrad.Tape() as tape:
            x = tape.watch(1.0)
            outside.append(x * 2.0)
            with pytest.raises(UnsupportedError, match="returned an Array that is being recorded"):
                leaky(x)
    finally:
        mixgrad.unregister("test_leaky")


def test_an_unrecorded_gradient_that_returns_a_tracked_array_is_an_error() -> None:
    with mixgrad.Tape() as outer:
        w = outer.watch(2.0)
        with (
            mixgrad.override_gradient("mul", lambda op, g: (w, w)),
            pytest.raises(UnsupportedError, match="its own dependence"),
        ):
            mixgrad.grad(lambda x: x * 3.0)(1.0)


# --- sources, targets, tapes -----------------------------------------------------------------------------------------


def test_sources_and_targets_must_be_of_this_tape() -> None:
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)
        y = x * x
    with pytest.raises(NotRecordedError, match="source"):
        tape.gradient(y, np.float64(2.0))
    with mixgrad.Tape() as tape:
        z = tape.watch(2.0)
        w = z * z
    with pytest.raises(NotRecordedError, match="source"):
        tape.gradient(w, x)
    with mixgrad.Tape() as tape:
        z = tape.watch(2.0)
    with pytest.raises(NotRecordedError, match="target"):
        tape.gradient(y, z)


def test_a_tape_is_used_once_unless_persistent() -> None:
    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)
        y = x * x
    assert tape.gradient(y, x) == 4.0
    with pytest.raises(TapeUsedError, match="persistent=True"):
        tape.gradient(y, x)
    with mixgrad.Tape(persistent=True) as tape:
        x = tape.watch(2.0)
        y = x * x
    assert tape.gradient(y, x) == tape.gradient(y, x) == 4.0


def test_a_failed_pass_uses_up_its_own_tape_only() -> None:
    def fails(op: Any, g: Any) -> Any:
        raise ValueError("no")

    with mixgrad.Tape(persistent=True) as outer:
        a = outer.watch(3.0)
        with mixgrad.Tape() as inner:
            x = inner.watch(a)
            y = x * x
        with mixgrad.override_gradient("mul", fails), pytest.raises(ValueError, match="no"):
            inner.gradient(y, x)
        with pytest.raises(TapeUsedError):
            inner.gradient(y, x)
        z = y * a
    assert outer.gradient(z, a) == 27.0


def test_integer_sources_are_refused() -> None:
    for source in (3, np.arange(3), np.int64(3), True):
        with pytest.raises(TypeError, match=r"not differentiated|convert|Convert"):
            mixgrad.grad(lambda x: mnp.sum(x * 0.5))(source)


def test_other_dtypes_beside_an_array() -> None:
    x = np.float32(2.0)
    assert mixgrad.grad(lambda x: x * np.float16(3.0))(x) == 3.0
    with pytest.raises(UnsupportedError, match=r"longdouble|float128"):
        mixgrad.grad(lambda x: x * np.longdouble(3.0))(x)


def test_in_place_changes_are_refused() -> None:
    def assigns(x: Any) -> Any:
        x[0] = 1.0
        return x.sum()

    with pytest.raises(UnsupportedError, match="in place"):
        mixgrad.grad(assigns)(np.ones(3))
    with pytest.raises(UnsupportedError, match="out="):
        mixgrad.grad(lambda x: np.add(x, 1.0, out=np.empty(3)).sum())(np.ones(3))

    def augments(x: Any) -> Any:
        y = np.ones(3)
        y += x
        return y.sum()

    with pytest.raises(UnsupportedError, match="out="):
        mixgrad.grad(augments)(np.ones(3))


def test_another_threads_array_is_refused() -> None:
    caught = []

    with mixgrad.Tape() as tape:
        x = tape.watch(2.0)

        def work() -> Any:
            try:
                x * 2.0
            except OtherThreadError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(caught) == 1
        y = x * 3.0
    assert tape.gradient(y, x) == 3.0


# --- mutation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 100_000])
@pytest.mark.parametrize("strided", [False, True])
def test_a_constant_changed_between_recording_and_gradient(n: Any, strided: Any) -> None:
    w = np.ones(2 * n)[::2] if strided else np.ones(n)
    with mixgrad.Tape() as tape:
        x = tape.watch(np.full(n, 2.0))
        y = mnp.sum(x * w)
    w[:] = 5.0
    try:
        gradient = tape.gradient(y, x)
    except MutatedInputError as error:
        assert n > 3
        assert "op 'multiply'" in str(error)
        assert "check_mutation" in str(error)
    else:
        np.testing.assert_array_equal(gradient, np.ones(n))


@pytest.mark.parametrize("n", [3, 100_000])
def test_a_source_changed_between_recording_and_gradient(n: Any) -> None:
    w = np.ones(n)
    with mixgrad.Tape() as tape:
        x = tape.watch(w)
        y = mnp.sum(x * x)
    w[:] = 5.0
    try:
        gradient = tape.gradient(y, x)
    except MutatedInputError:
        assert n > 3
    else:
        np.testing.assert_array_equal(gradient, np.full(n, 2.0))


def test_one_element_is_seen_by_the_full_check() -> None:
    w = np.ones(100_000)
    with mixgrad.debug.check_mutation("full"):
        with mixgrad.Tape() as tape:
            x = tape.watch(np.ones(100_000))
            y = mnp.sum(x * w)
        w[54_321] = 2.0
        with pytest.raises(MutatedInputError):
            tape.gradient(y, x)


def test_the_check_can_be_off() -> None:
    w = np.ones(100_000)
    with mixgrad.debug.check_mutation("off"):
        with mixgrad.Tape() as tape:
            x = tape.watch(np.ones(100_000))
            y = mnp.sum(x * w)
        w[:] = 2.0
        np.testing.assert_array_equal(tape.gradient(y, x), w)


def test_changing_after_the_gradient_is_nobodys_business() -> None:
    w = np.ones(100_000)
    for _ in range(3):
        with mixgrad.Tape() as tape:
            x = tape.watch(w)
            y = mnp.sum(x * x)
        w -= 0.1 * tape.gradient(y, x)
    np.testing.assert_allclose(w, 0.8**3)


def test_an_index_changed_after_recording() -> None:
    index = np.array([0, 1])
    with mixgrad.Tape() as tape:
        x = tape.watch(np.arange(4.0))
        y = x[index].sum()
    index[:] = 3
    np.testing.assert_array_equal(tape.gradient(y, x), [1, 1, 0, 0])


def test_a_list_of_arrays_is_never_a_silent_zero() -> None:
    x = np.array([1.0, 2.0])
    np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(mnp.stack([x[0], x[1]])))(x), [1.0, 1.0])
    for f in (lambda x: mnp.exp([x[0], x[1]]), lambda x: mnp.sum([[x[0]], [x[1]]]), lambda x: x.__add__([x[0], 1.0])):
        with pytest.raises(UnsupportedError, match="stack"):
            mixgrad.grad(f)(x)


def test_a_list_beside_an_array_is_an_operand() -> None:
    factors: Any = [3.0, 4.0]
    np.testing.assert_array_equal(mixgrad.grad(lambda x: (factors * x + factors).sum())(np.ones(2)), factors)


@pytest.mark.parametrize("n", [3, 100_000])
def test_a_forward_that_keeps_and_changes_what_it_returned(n: int) -> None:
    kept: list[Any] = []

    @mixgrad.register_op("test_keeps", saves="output")
    def keeps(x: Any) -> Any:
        kept.append(np.exp(x))
        return kept[-1]

    try:
        keeps.gradient(lambda g, x, out: g * out)
        with mixgrad.Tape() as tape:
            x = tape.watch(np.zeros(n))
            y = mnp.sum(keeps(x))
        kept[0][:] = 100.0
        if n > 3:
            with pytest.raises(MutatedInputError, match="the output of op 'test_keeps'"):
                tape.gradient(y, x)
        else:
            np.testing.assert_array_equal(tape.gradient(y, x), np.ones(n))
    finally:
        mixgrad.unregister("test_keeps")


@pytest.mark.parametrize("n", [3, 100_000])
def test_a_gradient_that_keeps_and_changes_what_it_returned(n: int) -> None:
    kept: list[Any] = []

    def keeps(op: Any, g: Any) -> Any:
        if kept:
            kept[0][:] = 100.0
        kept.append(g * 2.0)
        return kept[-1], g

    x = np.ones(n)
    with mixgrad.override_gradient("add", keeps):
        np.testing.assert_array_equal(
            mixgrad.grad(lambda x: mnp.sum(mnp.add(mnp.add(x, 0.0), 0.0)))(x), np.full(n, 4.0)
        )
