# SPDX-License-Identifier: Apache-2.0
"""Native gradients beside Python's: planted faults are found, and files reproduce them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad.debug import compare_gradients, replay
from mixgrad.errors import GradientMismatchError, GradientMismatchWarning, ReplayError

X = np.array([1.0, -2.0, 3.0])


def total(op: Any, x: Any, y: Any) -> Any:
    return mixgrad.grad(lambda x, y: mnp.sum(op(x, y)), (0, 1))(x, y)


def test_right_gradients_agree(planted: dict[str, Any]) -> None:
    with compare_gradients() as report:
        total(planted["right"], X, 2.0 * X)
    assert report.compared == {"planted_right": 1, "sum": 1}
    assert report.mismatches == []
    assert str(report) == "2 native gradient calls of 2 ops compared with Python"


@pytest.mark.parametrize(
    ("fault", "wrong", "right"),
    [
        ("sign", (X, X), None),
        ("single", (X.astype(np.float32), X.astype(np.float32)), (X, X)),
        ("broadcast", (np.ones((2, 3)), X), (X, X)),
    ],
)
def test_faults_are_found(
    planted: dict[str, Any], fault: str, wrong: tuple[Any, Any], right: tuple[Any, Any] | None
) -> None:
    op = planted[fault]
    if right is not None:
        with compare_gradients():
            total(op, *right)
    with pytest.raises(GradientMismatchError) as caught, compare_gradients():
        total(op, *wrong)
    text = str(caught.value)
    assert f"op 'planted_{fault}', called at {__file__}:" in text
    assert "the native gradient (planted (planted.cpp:" in text
    assert "elements differ; first element [0]: Python gives" in text


def test_a_fault_for_strided_inputs_is_found(planted: dict[str, Any]) -> None:
    with compare_gradients():
        total(planted["strided"], X, X)
    with pytest.raises(GradientMismatchError, match="planted_strided"), compare_gradients():
        total(lambda x, y: planted["strided"](x[::2], y), np.ones(6), X)


def test_what_is_reported(planted: dict[str, Any]) -> None:
    with compare_gradients(on_mismatch="record") as report:
        slope = total(planted["sign"], X, 2.0 * X)
    np.testing.assert_array_equal(slope[1], -X)  # the native result is what is used
    (mismatch,) = report.mismatches
    assert (mismatch.op, mismatch.input) == ("planted_sign", 1)
    assert mismatch.where is not None
    assert mismatch.where[0] == __file__
    found = mismatch.difference
    assert (found.wrong, found.size, found.first, found.worst) == (3, 3, (0,), (2,))
    assert found.first_values == (1.0, -1.0)
    assert found.worst_values == (3.0, -3.0)
    assert found.error == 2.0
    assert "1 mismatch in op 'planted_sign'" in str(report)


def test_a_warning_instead(planted: dict[str, Any]) -> None:
    with pytest.warns(GradientMismatchWarning, match="planted_sign"), compare_gradients(on_mismatch="warn"):
        total(planted["sign"], X, X)


def test_sampling_and_chosen_ops(planted: dict[str, Any]) -> None:
    with compare_gradients(every=3, ops=["planted_right"]) as report:
        for _ in range(7):
            total(planted["right"], X, X)
    assert report.compared == {"planted_right": 3}


def test_tolerances(planted: dict[str, Any]) -> None:
    x = X.astype(np.float32)
    with compare_gradients(rtol=0.02):
        total(planted["single"], x, x)


def test_what_has_no_python_gradient_is_named() -> None:
    @mixgrad.op(name="alone_example")
    def alone(x: Any) -> Any:
        return x * 2.0

    try:
        mixgrad.cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(alone_example) { return g * 2.0; }", name="alone_example")
        with compare_gradients() as report:
            assert mixgrad.grad(alone)(1.0) == 2.0
        assert report.alone == {"alone_example": 1}
        assert "no Python gradient to compare with: alone_example" in str(report)
    finally:
        mixgrad.unregister("alone_example")


def test_in_a_recorded_backward_pass(planted: dict[str, Any]) -> None:
    with compare_gradients() as report:
        assert mixgrad.grad(mixgrad.grad(lambda x: planted["right"](x, x) * x))(2.0) == 12.0
    assert report.compared["planted_right"] >= 1
    with pytest.raises(GradientMismatchError, match="planted_sign"), compare_gradients():
        mixgrad.grad(mixgrad.grad(lambda x: planted["sign"](2.0 * x, x) * x))(2.0)


def test_it_holds_for_what_was_recorded_inside(planted: dict[str, Any]) -> None:
    with compare_gradients(on_mismatch="record") as report, mixgrad.Tape() as tape:
        x = tape.watch(X)
        y = mnp.sum(planted["sign"](x, x))
    tape.gradient(y, x)
    assert len(report.mismatches) == 1


def test_overrides_inside_are_left_alone(planted: dict[str, Any]) -> None:
    with compare_gradients(), mixgrad.override_gradient("planted_sign", lambda op, g: (g, g)):
        gx, _ = total(planted["sign"], X, X)
    np.testing.assert_array_equal(gx, np.ones(3))


@pytest.mark.parametrize(
    ("arguments", "message"), [({"on_mismatch": "cry"}, "on_mismatch"), ({"every": 0}, "at least 1")]
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), compare_gradients(**arguments):
        pass


def test_a_file_reproduces_it(planted: dict[str, Any], tmp_path: Path) -> None:
    with compare_gradients(on_mismatch="record", save=tmp_path / "new") as report:
        total(planted["sign"], X, np.array(2.0))
    file = report.mismatches[0].file
    assert file is not None
    assert file.parent == tmp_path / "new"
    again = replay(file)
    assert again.op == "planted_sign"
    np.testing.assert_array_equal(again.python[0], np.full(3, 2.0))
    assert (again.python[1], again.native[1]) == (2.0, -2.0)
    assert list(again.differences) == [1]
    assert "gradient of input 0, float64 of shape (3,): the same" in str(again)
    assert (
        "gradient of input 1, float64 of shape (): 1 of 1 elements differ; first Python gives 2.0, native -2.0"
        in str(again)
    )


def test_files_of_ops_with_attributes_and_lists(tmp_path: Path) -> None:
    from mixgrad.debug import saved_calls  # noqa: PLC0415

    files = {}

    def keep(op: Any, g: Any, gradients: Any) -> None:
        files[op.name] = saved_calls.save(op, g, tmp_path, "", ""), gradients

    with mixgrad.debug.on_gradient(keep):
        mixgrad.grad(lambda x: mnp.sum(mnp.concatenate([x, 2.0 * x], axis=1)[1, ::2]))(np.ones((2, 3)))
        mixgrad.grad(lambda x: mnp.sum(mnp.split(x, 3)[1] ** 2))(np.arange(9.0).reshape(3, 3))
    assert {"concatenate", "getitem", "sum", "split"} <= set(files)
    for file, gradients in files.values():
        again = replay(file)
        assert not again.differences
        for found, expected in zip(again.native, gradients, strict=True):
            if expected is not None:
                np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_is_no_saved_call(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("nothing")
    with pytest.raises(ReplayError, match=r"text\.npz is not a saved gradient call"):
        replay(tmp_path / "text.npz")
    with warnings.catch_warnings(), pytest.raises(ReplayError, match="is not a saved gradient call"):
        replay(tmp_path / "missing.npz")


def test_the_command(planted: dict[str, Any], tmp_path: Path) -> None:
    with compare_gradients(on_mismatch="record", save=tmp_path) as report:
        total(planted["sign"], X, X)
        with mixgrad.override_gradient("sin", lambda op, g: g):
            mixgrad.grad(np.sin)(1.0)
    command = [sys.executable, "-m", "mixgrad", "replay", str(report.mismatches[0].file)]
    unknown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "op 'planted_sign', which is not registered after importing" in unknown.stderr
    (tmp_path / "again.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\nimport planted\nplanted.register()\n"
    )
    known = subprocess.run([*command, "--module", "again"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert known.returncode == 1, known.stderr
    assert "gradient of input 1, float64 of shape (3,): 3 of 3 elements differ" in known.stdout
