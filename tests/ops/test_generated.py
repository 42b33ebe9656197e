# SPDX-License-Identifier: Apache-2.0
"""Tests that every op gets by being in the registry: its sample inputs are all that it needs to bring.

Values and dtypes against NumPy to the bit, the Python gradient against central differences, the native one against the
Python one, second order, broadcasting, dtypes, zero-size arrays, declared reads, and leaks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import mixgrad
from mixgrad import Op, Sample, _core, registry
from mixgrad._tree import flatten
from mixgrad.testing import assert_no_leaks, check_gradient, check_parity, sample_call

if TYPE_CHECKING:
    from collections.abc import Iterable

OPS = [op for op in registry.values() if op.samples is not None]
DIFFERENTIABLE = [op for op in OPS if op.differentiable]
NATIVE = [op for op in DIFFERENTIABLE if {"native", "python"} <= set(_core.implementations(op)["gradient"])]

KINKED = frozenset({"sign", "floor", "ceil", "rint", "trunc", "round"})
"""Steps: where a sample lies on one there is no derivative to compare with."""


@functools.cache
def samples(op: Op) -> list[Sample]:
    assert op.samples is not None
    return list(op.samples())


def of(ops: Iterable[Op]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in ops])


def arrays_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def watched(window: _core.Window, op: Op, sample: Sample) -> tuple[list[Any], list[Any]]:
    """Outputs and watched sources of a recorded call."""
    f, arrays = sample_call(op, sample)
    sources = [window.watch(array) for array in arrays]
    return arrays_of(f(*sources)), sources


def random_like(y: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    g = rng.standard_normal(y.shape)
    return (g + 1j * rng.standard_normal(y.shape) if y.dtype.kind == "c" else g).astype(y.dtype)


def test_every_op_has_samples() -> None:
    without = sorted(
        op.name for op in registry.values() if op.samples is None and not op.name.startswith(("checkpoint", "custom_"))
    )
    assert without == []


def test_every_differentiable_op_has_a_python_gradient() -> None:
    without = sorted(
        op.name
        for op in registry.values()
        if op.differentiable and "python" not in _core.implementations(op)["gradient"]
    )
    assert without == []


@of(OPS)
def test_values_are_numpys_to_the_bit(op: Op) -> None:
    for sample in samples(op):
        f, arrays = sample_call(op, sample)
        with np.errstate(all="ignore"):
            bound = op.forward(*sample.args, **sample.attributes)
            expected = arrays_of(bound)
            plain = arrays_of(f(*arrays))
        window = _core.Window()
        window.start()
        try:
            with np.errstate(all="ignore"):
                recorded, _ = watched(window, op, sample)
            for one, two, three in zip(map(np.asarray, expected), plain, recorded, strict=True):
                assert not isinstance(two, mixgrad.Array), sample
                for other in (two, _core.value(three) if isinstance(three, mixgrad.Array) else three):
                    assert np.shape(other) == np.shape(one), sample
                    assert np.asarray(other).dtype == np.asarray(one).dtype, sample
                    if op.numpy and one.dtype.kind == "c":
                        # NumPy's own complex loops round differently from one memory layout to the next.
                        np.testing.assert_allclose(other, one, rtol=4 * np.finfo(one.dtype).eps, err_msg=repr(sample))
                    elif op.numpy:
                        np.testing.assert_array_equal(
                            np.asarray(other), np.asarray(one), strict=True, err_msg=repr(sample)
                        )
                    else:
                        # Not one of NumPy's functions: the forward in Python says what is right, up to rounding.
                        rtol = 16 * np.finfo(one.dtype).eps
                        np.testing.assert_allclose(other, one, rtol=rtol, atol=rtol, err_msg=repr(sample))
        finally:
            window.close()


@of([op for op in OPS if not op.differentiable])
def test_what_is_not_differentiable_gives_plain_numpy(op: Op) -> None:
    window = _core.Window()
    window.start()
    try:
        for sample in samples(op):
            outputs, _ = watched(window, op, sample)
            assert not any(isinstance(y, mixgrad.Array) for y in outputs)
    finally:
        window.close()


def checkable(op: Op) -> list[Sample]:
    """Samples in double precision with something to differentiate."""
    found = []
    for sample in samples(op):
        _, arrays = sample_call(op, sample)
        if any(a.size for a in arrays) and all(a.dtype.itemsize == (16 if a.dtype.kind == "c" else 8) for a in arrays):
            found.append(sample)
    return found


@pytest.mark.parametrize(
    ("op", "language"),
    [
        pytest.param(op, language, id=f"{op.name}-{language}")
        for op in DIFFERENTIABLE
        for language in (("python", "native") if op in NATIVE else ("python",))
        if op.name not in KINKED
    ],
)
def test_gradients_against_differences(op: Op, language: Literal["python", "native"]) -> None:
    with mixgrad.prefer(language), np.errstate(all="ignore"):
        for number, sample in enumerate(checkable(op)):
            f, arrays = sample_call(op, sample)
            try:
                # Points around each sample would come to the same places over and over.
                check_gradient(f, *arrays, order=2, signs=False, variants=number < 3)
            except mixgrad.errors.CheckError as error:
                raise AssertionError(f"{op.name}: {sample!r}") from error


@of(NATIVE)
def test_native_against_python(op: Op) -> None:
    with np.errstate(all="ignore"):
        check_parity(op, samples(op))


@of(DIFFERENTIABLE)
def test_gradients_have_the_inputs_shape_and_dtype(op: Op) -> None:
    for sample in samples(op):
        window = _core.Window()
        window.start()
        try:
            with np.errstate(all="ignore"):
                outputs, sources = watched(window, op, sample)
                window.stop()
                targets = [y for y in outputs if window.depends(y)]
                if not targets or not sources:
                    continue
                gradients = window.gradient(targets, sources, [random_like(_core.value(y)) for y in targets])
        finally:
            window.close()
        for gradient, source in zip(gradients, sources, strict=True):
            if gradient is not None:
                assert np.shape(gradient) == source.shape, sample
                assert gradient.dtype == source.dtype, sample
                assert not isinstance(gradient, mixgrad.Array), sample


@of(DIFFERENTIABLE)
def test_gradients_read_only_what_the_op_saves(op: Op) -> None:
    """Declared reads are all that a gradient gets: any other is NotSavedError. And what is saved is kept as it was."""
    for language in ("python", "native"):
        for sample in samples(op):
            f, arrays = sample_call(op, sample)
            copies = [array.copy("K") if isinstance(array, np.ndarray) else array for array in arrays]
            with mixgrad.prefer(language), np.errstate(all="ignore"):
                want, got = (gradients_of(f, leaves, poison) for leaves, poison in ((arrays, False), (copies, True)))
            for one, other in zip(want, got, strict=True):
                # Vector loops may round in another way where memory is aligned in another way.
                rtol = 16 * np.finfo(np.asarray(one).dtype).eps
                np.testing.assert_allclose(other, one, rtol=rtol, atol=rtol, err_msg=repr(sample))


def gradients_of(f: Any, arrays: list[Any], poison: bool) -> list[Any]:
    window = _core.Window()
    window.start()
    try:
        sources = [window.watch(array) for array in arrays]
        outputs = arrays_of(f(*sources))
        window.stop()
        targets = [y for y in outputs if window.depends(y)]
        if not targets or not sources:
            return []
        upstream = [random_like(_core.value(y)) for y in targets]
        if poison:
            # The caller's arrays are small, so what was saved is a copy: changing them changes nothing.
            for array in arrays:
                if isinstance(array, np.ndarray) and array.flags.writeable:
                    array.fill(np.nan)
        return [0.0 if g is None else g for g in window.gradient(targets, sources, upstream)]
    finally:
        window.close()


@of(DIFFERENTIABLE)
def test_nothing_is_left_behind(op: Op) -> None:
    def run() -> None:
        for sample in samples(op)[:4]:
            f, arrays = sample_call(op, sample)
            gradients_of(f, arrays, poison=False)

    with np.errstate(all="ignore"):
        run()
        with assert_no_leaks():
            run()


@of(OPS)
def test_samples_cover_the_usual_cases(op: Op) -> None:
    leaves = [leaf for sample in samples(op) for leaf in flatten(sample_call(op, sample)[1])[0]]
    if not op.differentiable or not leaves:
        return
    assert any(leaf.dtype == np.float64 for leaf in leaves), "no sample in float64"
    assert any(leaf.dtype == np.float32 for leaf in leaves), "no sample in float32"
