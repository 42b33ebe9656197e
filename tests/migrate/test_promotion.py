# SPDX-License-Identifier: Apache-2.0
"""Promotion states, and what happens when a native gradient fails where Python's does not."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import migrate
from mixgrad.errors import DemotionWarning, GradientMismatchWarning, RegistrationError
from mixgrad.migrate.promotion import _demotions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X = np.array([1.0, -2.0, 3.0])


def total(op: Any, x: Any = X, y: Any = X) -> Any:
    return mixgrad.grad(lambda x, y: mnp.sum(op(x, y)), (0, 1))(x, y)


@pytest.fixture(autouse=True)
def as_before(planted: dict[str, Any]) -> Iterator[None]:
    yield
    for op in planted.values():
        mixgrad.set_promotion(op, "on")
    _demotions.clear()
    migrate.shadow_report().mismatches.clear()
    migrate.shadow_report().compared.clear()


def test_off(planted: dict[str, Any]) -> None:
    mixgrad.set_promotion("planted_sign", "off")
    assert migrate.promotion_state("planted_sign") == "off"
    np.testing.assert_array_equal(total(planted["sign"])[1], X)
    explained = mixgrad.registry.explain("planted_sign")
    assert f"preferred by its promotion state, set at {__file__}:" in explained
    with mixgrad.prefer("native"):
        np.testing.assert_array_equal(total(planted["sign"])[1], -X)
    mixgrad.set_promotion("planted_sign", "on")
    np.testing.assert_array_equal(total(planted["sign"])[1], -X)


def test_shadow_uses_python_and_compares(planted: dict[str, Any], tmp_path: Path) -> None:
    mixgrad.set_promotion("planted_sign", "shadow", every=2, folder=tmp_path)
    with pytest.warns(
        GradientMismatchWarning, match=r"op 'planted_sign', called at .*: input 1: 3 of 3 elements differ"
    ):
        np.testing.assert_array_equal(total(planted["sign"])[1], X)
    for _ in range(3):
        total(planted["sign"], 2.0)
    assert migrate.shadow_report().compared == {"planted_sign": 2}
    assert len(migrate.shadow_report().mismatches) == 2
    assert list(migrate.demotions()) == []


def test_shadow_of_a_right_gradient(planted: dict[str, Any]) -> None:
    mixgrad.set_promotion("planted_right", "shadow", every=1)
    np.testing.assert_array_equal(total(planted["right"])[1], X)
    assert mixgrad.grad(mixgrad.grad(lambda x: planted["right"](x, x) * x))(2.0) == 12.0
    assert migrate.shadow_report().compared["planted_right"] == 3
    assert migrate.shadow_report().mismatches == []


@pytest.mark.parametrize(
    ("fault", "x", "reason"),
    [
        ("sign", X, "input 1: 3 of 3 elements differ"),
        ("nan", np.array([1.0, 0.0, 2.0]), "it gave nan or inf where Python's gradient gives none"),
        ("throws", X, "out of luck"),
    ],
)
def test_demotion(planted: dict[str, Any], tmp_path: Path, fault: str, x: Any, reason: str) -> None:
    op = planted[fault]
    mixgrad.set_promotion(op, "on", demote=True, every=1, folder=tmp_path)
    with pytest.warns(DemotionWarning) as told, np.errstate(all="ignore"):
        gx, gy = total(op, x, x + 1.0)
    np.testing.assert_array_equal(gx, x + 1.0)
    np.testing.assert_array_equal(gy, x)
    assert len(told) == 1
    text = str(told[0].message)
    assert f"op 'planted_{fault}', called at {__file__}:" in text
    assert reason in text
    assert "Python's gradient runs from now on. To reproduce it: python -m mixgrad replay" in text
    assert migrate.promotion_state(op) == "off"
    assert reason in migrate.demotions()[op.name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total(op, x, x + 1.0)
    (file,) = tmp_path.iterdir()
    if fault != "throws":
        assert mixgrad.debug.replay(file).differences
    else:
        with pytest.raises(RuntimeError, match="out of luck"):
            mixgrad.debug.replay(file)


def test_demotion_without_a_place_for_its_file(planted: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mixgrad.set_promotion("planted_sign", "on", demote=True, every=1, folder=tmp_path / "file")
    with pytest.warns(DemotionWarning, match="No file that reproduces it could be written"):
        np.testing.assert_array_equal(total(planted["sign"])[1], X)
    assert migrate.promotion_state("planted_sign") == "off"


def test_a_right_gradient_is_not_demoted(planted: dict[str, Any]) -> None:
    mixgrad.set_promotion("planted_right", "on", demote=True, every=1)
    total(planted["right"])
    x = np.array([np.inf, 1.0])  # nan that Python gives as well
    with np.errstate(all="ignore"):
        total(planted["right"], x, x)
    assert migrate.demotions() == {}


def test_an_error_that_python_has_too_is_the_user_s() -> None:
    @mixgrad.op(name="promotion_refuses")
    def refuses(x: Any) -> Any:
        return x * 2.0

    def gradient(op: Any, g: Any) -> Any:
        raise KeyError("both")

    refuses.gradient()(gradient)
    try:
        mixgrad.cpp.load_inline(
            'MIXGRAD_REGISTER_GRADIENT(promotion_refuses) { throw std::runtime_error("native"); return g; }',
            name="refuses",
        )
        mixgrad.set_promotion("promotion_refuses", "on", demote=True)
        with pytest.raises(RuntimeError, match="native"):
            mixgrad.grad(refuses)(1.0)
    finally:
        mixgrad.unregister("promotion_refuses")


def test_what_is_refused(planted: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match="'off', 'shadow' or 'on', not 'maybe'"):
        mixgrad.set_promotion("mul", "maybe")  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="at least 1"):
        mixgrad.set_promotion("mul", "shadow", every=0)
    mixgrad.unregister("planted_throws", "gradient")
    try:
        with pytest.raises(RegistrationError, match="no Python gradient, so its native one can only be 'on'"):
            mixgrad.set_promotion("planted_throws", "off")
    finally:
        planted["throws"].gradient()(lambda op, g: (g * op.inputs[1], g * op.inputs[0]))


def run(code: str, promotion: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MIXGRAD_PROMOTION": promotion},
        capture_output=True,
        text=True,
        check=False,
    )


def test_by_the_environment() -> None:
    code = (
        "import mixgrad, numpy as np\n"
        "print(mixgrad.grad(np.sin)(0.0), mixgrad.grad(np.exp)(0.0))\n"
        "print([mixgrad.migrate.promotion_state(name) for name in ('sin', 'exp', 'cos')])\n"
        "print(dict(mixgrad.migrate.shadow_report().compared))\n"
        "print([row['runs'] for row in mixgrad.registry.rows() if row['op'] == 'exp'])\n"
    )
    done = run(code, "sin=shadow, exp=off")
    assert done.stdout.splitlines() == ["1.0 1.0", "['shadow', 'off', 'on']", "{}", "['python']"], done.stderr
    wrong = run("import mixgrad", "sin=dark")
    assert "MIXGRAD_PROMOTION='sin=dark': 'sin=dark' is not of the form OP=off, shadow or on" in wrong.stderr
