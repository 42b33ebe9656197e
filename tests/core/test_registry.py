"""Registration: what is accepted, what is refused with which words, and that a refusal changes nothing."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

import mixgrad
from mixgrad import _core
from mixgrad.errors import (
    DuplicateRegistrationError,
    GradientCountError,
    RegistrationError,
    UnknownOpError,
)


@pytest.fixture
def cube() -> Any:
    @mixgrad.register_op("test_cube", saves="x")
    def cube(x: Any) -> Any:
        return x**3

    yield cube
    if "test_cube" in mixgrad.registry:
        mixgrad.unregister("test_cube")


def test_gradient_by_name_and_by_op_are_one_mechanism(cube: Any) -> None:
    @mixgrad.register_gradient("test_cube")
    def gradient(op: Any, g: Any) -> Any:
        (x,) = op.inputs
        return g * 3 * x**2

    assert mixgrad.grad(cube)(2.0) == 12.0
    with pytest.raises(DuplicateRegistrationError):
        cube.gradient(lambda g, x, out: g)


def test_duplicate_names_both_places(cube: Any) -> None:
    cube.gradient(lambda g, x, out: g * 3 * x**2)
    with pytest.raises(DuplicateRegistrationError) as caught:
        cube.gradient(lambda g, x, out: g)
    assert str(caught.value).count("test_registry.py:") == 2
    assert "replace=True" in str(caught.value)
    assert mixgrad.grad(cube)(2.0) == 12.0


def test_replace(cube: Any) -> None:
    cube.gradient(lambda g, x, out: g * 0)
    cube.gradient(lambda g, x, out: g * 3 * x**2, replace=True)
    assert mixgrad.grad(cube)(2.0) == 12.0


def test_unknown_op_gives_near_names() -> None:
    with pytest.raises(UnknownOpError, match=r"near names: .*'multiply'"):
        mixgrad.register_gradient("multipyl")(lambda op, g: g)
    with pytest.raises(KeyError):
        mixgrad.registry["nothing like it"]


def test_aliases_lead_to_the_canonical_op() -> None:
    assert mixgrad.registry["mul"] is mixgrad.registry["multiply"]
    assert mixgrad.registry["mul"].name == "multiply"
    assert "mul" in mixgrad.registry["multiply"].aliases


def test_a_taken_name_is_refused_and_leaves_the_registry_as_it_was() -> None:
    before = list(mixgrad.registry)
    with pytest.raises(DuplicateRegistrationError, match="belongs to op 'multiply'"):
        mixgrad.register_op("mul")(lambda x: x)
    with pytest.raises(DuplicateRegistrationError):
        mixgrad.register_op("test_new", aliases=("exp",))(lambda x: x)
    assert list(mixgrad.registry) == before
    assert "test_new" not in mixgrad.registry


def test_unregister(cube: Any) -> None:
    cube.gradient(lambda g, x, out: g * 3 * x**2)
    mixgrad.unregister("test_cube", "gradient", "python")
    with pytest.raises(mixgrad.errors.MissingGradientError, match="register_gradient"):
        mixgrad.grad(cube)(2.0)
    with pytest.raises(UnknownOpError):
        mixgrad.unregister("test_cube", "gradient", "python")
    mixgrad.unregister("test_cube")
    assert "test_cube" not in mixgrad.registry


def test_an_op_unregistered_after_recording_is_a_clear_error() -> None:
    @mixgrad.register_op("test_gone")
    def gone(x: Any) -> Any:
        return x * 2.0

    gone.gradient(lambda g, x, out: g * 2.0)
    with mixgrad.Tape() as tape:
        x = tape.watch(1.0)
        y = gone(x)
    mixgrad.unregister("test_gone")
    with pytest.raises(mixgrad.errors.MissingGradientError, match="unregistered"):
        tape.gradient(y, x)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda: mixgrad.op(cast("Any", 3)), RegistrationError, "function on ndarrays or a NumPy ufunc"),
        (lambda: mixgrad.register_op("t")(lambda *args: args), RegistrationError, r"\*args"),
        (lambda: mixgrad.register_op("t")(lambda axis=None: axis), RegistrationError, "no array input"),
        (lambda: mixgrad.register_op("t", inputs=("z",))(lambda x: x), RegistrationError, "names 'z'"),
        (lambda: mixgrad.register_op("t", saves="z")(lambda x: x), RegistrationError, "names 'z'"),
        (lambda: mixgrad.register_op("t", saves=["x", "y"])(lambda x: x), RegistrationError, "one per input"),
        (lambda: mixgrad.register_op(cast("Any", lambda x: x)), RegistrationError, "called with a name"),
        (lambda: mixgrad.registry["multiply"].gradient(lambda g, x, y, out: g), GradientCountError, "one per input"),
        (lambda: mixgrad.registry["sin"].gradient(lambda op, g: g, replace=True), GradientCountError, "g, x, out"),
        (lambda: mixgrad.prefer(cast("Any", "cobol")), RegistrationError, "'cobol'"),
        (lambda: mixgrad.override_gradient("sin", cast("Any", 3)), RegistrationError, "takes a function"),
    ],
)
def test_bad_registrations(function: Any, error: Any, text: Any) -> None:
    before = list(mixgrad.registry)
    with pytest.raises(error, match=text):
        function()
    assert list(mixgrad.registry) == before


def test_gradient_per_argument() -> None:
    @mixgrad.register_op("test_pair", saves=["y", "x"], broadcasts=True)
    def pair(x: Any, y: Any) -> Any:
        return x * y

    asked = []
    try:

        @mixgrad.register_gradient("test_pair", argument=0)
        def first(g: Any, x: Any, y: Any, out: Any) -> Any:
            asked.append(0)
            return g * y

        with pytest.raises(mixgrad.errors.MissingGradientError, match="no gradient for input 1"):
            mixgrad.grad(lambda y: pair(2.0, y))(3.0)

        @mixgrad.register_gradient("test_pair", argument=1)
        def second(g: Any, x: Any, y: Any, out: Any) -> Any:
            asked.append(1)
            return g * x

        assert mixgrad.grad(lambda y: pair(2.0, y))(3.0) == 2.0
        assert asked == [1]
        assert mixgrad.grad(lambda x: pair(x, x))(3.0) == 6.0
    finally:
        mixgrad.unregister("test_pair")


def test_attributes_reach_the_gradient_by_name() -> None:
    @mixgrad.register_op("test_scaled")
    def scaled(x: Any, factor: Any = 2.0, *, shift: Any = 0.0) -> Any:
        return x * factor + shift

    try:
        scaled.gradient(lambda g, x, out, factor: g * factor)
        assert mixgrad.grad(lambda x: scaled(x, 5.0))(1.0) == 5.0
        assert mixgrad.grad(lambda x: scaled(x, shift=1.0))(1.0) == 2.0

        @mixgrad.register_gradient("test_scaled", replace=True)
        def whole(op: Any, g: Any) -> Any:
            assert op.attributes == {"factor": 3.0, "shift": 1.0}
            assert op.name == "test_scaled"
            return g * op.attributes["factor"]

        assert mixgrad.grad(lambda x: scaled(x, factor=3.0, shift=1.0))(1.0) == 3.0
        with pytest.raises(TypeError, match="unexpected keyword argument 'fctor'"):
            mixgrad.grad(lambda x: scaled(x, fctor=3.0))(1.0)
        with pytest.raises(TypeError, match="multiple values"):
            mixgrad.grad(lambda x: scaled(x, 3.0, factor=3.0))(1.0)
        with pytest.raises(mixgrad.errors.UnsupportedError, match="'factor' of op 'test_scaled' is an Array"):
            mixgrad.grad(lambda x: scaled(1.0, factor=x))(1.0)
        with pytest.raises(mixgrad.errors.UnsupportedError, match="'shift' of op 'test_scaled' is an Array"):
            mixgrad.grad(lambda x: scaled(x, shift=x))(1.0)
    finally:
        mixgrad.unregister("test_scaled")


def test_the_registry_prints_as_a_table() -> None:
    text = repr(mixgrad.registry)
    header, _, *rows = text.splitlines()
    assert header.split() == ["op", "aliases", "forward", "gradient", "runs"]
    (row,) = [row for row in rows if row.startswith("multiply ")]
    assert "native + python" in row
    assert row.endswith("native")
    assert len(rows) == len(mixgrad.registry)


def test_no_native_implementation_waits_for_an_op_that_never_came() -> None:
    assert _core.waiting_native() == []


def test_registration_from_several_threads() -> None:
    errors = []

    def work(k: Any) -> Any:
        try:
            for i in range(50):
                name = f"test_thread_{k}_{i}"
                made = mixgrad.op(lambda x: x * 2.0, name=name)
                made.gradient(lambda g, x, out: g * 2.0)
                assert mixgrad.grad(made)(1.0) == 2.0
                mixgrad.unregister(name)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not [name for name in mixgrad.registry if name.startswith("test_thread")]


def test_an_op_with_several_outputs() -> None:
    @mixgrad.register_op("test_parts", multiple=True, saves="")
    def parts(x: Any) -> Any:
        return x[:1].copy(), x[1:].copy()

    try:

        @mixgrad.register_gradient("test_parts")
        def gradient(op: Any, g: Any) -> Any:
            first, rest = g
            assert len(op.outputs) == 2
            return mixgrad.numpy.concatenate([first, rest])

        x = np.array([1.0, 2.0, 3.0])
        np.testing.assert_array_equal(mixgrad.grad(lambda x: (parts(x)[1] * 2.0).sum())(x), [0, 2, 2])
        np.testing.assert_array_equal(mixgrad.grad(lambda x: parts(x)[0].sum())(x), [1, 0, 0])
        a, b = parts(x)
        assert isinstance(a, np.ndarray)
        np.testing.assert_array_equal(b, [2, 3])
    finally:
        mixgrad.unregister("test_parts")
