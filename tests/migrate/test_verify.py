# SPDX-License-Identifier: Apache-2.0
"""`verify` passes what is right, and finds each planted fault by the check that is made for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mixgrad
from mixgrad import Sample
from mixgrad.cli import app
from mixgrad.errors import UnknownOpError
from mixgrad.migrate.verify import OpReport, package_of, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NATIVE = """
#define CUBE(name, ...) MIXGRAD_REGISTER_GRADIENT(name) { \\
    const Array x = op.input(0); const Array right = g * 3.0 * square(x); __VA_ARGS__ }
CUBE(verify_right, return right;)
CUBE(verify_wrong, return right * 1.001;)
CUBE(verify_wrong_in_single, return x.dtype() == Dtype::float32 ? right * 1.001 : right;)
CUBE(verify_wrong_in_second_order, return op.is_recorded() ? right * 1.001 : right;)
CUBE(verify_throws, throw std::runtime_error("no luck");)
CUBE(verify_declines, return decline;)
CUBE(verify_declines_complex, if (is_complex(x.dtype())) return decline; return right;)
CUBE(verify_without_samples, return right;)
CUBE(verify_without_python, return right;)
CUBE(verify_keeps, static std::vector<Array> kept; kept.push_back(right); if (kept.size() > 100) kept.clear(); return right;)

MIXGRAD_REGISTER_KERNEL_GRADIENT(verify_first_order) { return g * 3.0 * square(op.input(0)); }
"""


def samples() -> list[Sample]:
    x = np.array([0.5, -1.5, 2.0])
    return [Sample(x), Sample(x.astype(np.float32)), Sample(x[:2] + 1j), Sample(np.array([1, 2]))]


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    names = re.findall(r"\((verify_\w+)", NATIVE)
    for name in names:
        made = mixgrad.op(
            lambda x: x**3, name=name, saves="x", samples=None if name == "verify_without_samples" else samples
        )
        if name != "verify_without_python":
            made.gradient(lambda g, x, out: g * 3 * x * x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        mixgrad.cpp.load_inline(NATIVE, name="planted")
    yield
    for name in names:
        mixgrad.unregister(name)


def of(name: str, **options: Any) -> OpReport:
    (report,) = verify([name], **options).ops
    return report


def statuses(report: OpReport) -> dict[str, str]:
    return {dtype: parity.status for dtype, parity in report.parity.items()}


def test_what_is_right(ops: None) -> None:
    report = of("verify_right")
    assert report.failures == []
    assert report.proved
    assert statuses(report) == {"float32": "passed", "float64": "passed", "complex128": "passed"}
    assert all(parity.samples == 1 and parity.error < 1e-6 for parity in report.parity.values())
    assert report.native_origin == "planted (planted.cpp:4)"
    assert (report.second_order.status, report.leak_free.status, report.tests.status) == ("passed",) * 3
    assert report.speed_up is not None
    assert report.speed_up.elements > 10_000


def test_a_wrong_gradient(ops: None) -> None:
    report = of("verify_wrong")
    assert not report.proved
    assert set(statuses(report).values()) == {"failed"}
    assert any(
        "parity in float64" in text and "verify_wrong" in text and "Python gives" in text for text in report.failures
    )
    # Wrong by a thousandth, which is within this.
    assert statuses(of("verify_wrong", rtol=0.01)) == dict.fromkeys(statuses(report), "passed")


def test_wrong_in_one_dtype(ops: None) -> None:
    report = of("verify_wrong_in_single")
    assert statuses(report) == {"float32": "failed", "float64": "passed", "complex128": "passed"}
    assert not report.proved


def test_wrong_in_second_order(ops: None) -> None:
    report = of("verify_wrong_in_second_order")
    assert report.proved
    assert report.second_order.status == "failed"
    assert "second-order gradient" in report.second_order.detail


def test_a_gradient_that_throws(ops: None) -> None:
    report = of("verify_throws")
    assert set(statuses(report).values()) == {"failed"}
    assert report.parity["float64"].detail.endswith("no luck")
    assert report.leak_free.status == "failed"


def test_a_gradient_that_keeps_what_it_made(ops: None) -> None:
    before = mixgrad.debug.counters()
    report = of("verify_keeps")
    assert report.proved
    assert report.leak_free.status == "failed"
    assert "the block left behind" in report.leak_free.detail
    assert f"verify_keeps: leak-free: {report.leak_free.detail}" in report.failures
    while mixgrad.debug.counters() != before:
        # It lets go of them all after some calls.
        mixgrad.grad(mixgrad.registry["verify_keeps"])(1.0)


def test_a_gradient_that_declines(ops: None) -> None:
    report = of("verify_declines")
    assert report.native.status == "skipped"
    assert report.native.detail == "the native gradient declines all 3 samples"
    assert (report.proved, report.failures, report.speed_up) == (False, [], None)
    assert of("verify_declines_complex").parity["complex128"].status == "skipped"
    assert of("verify_declines_complex").proved


def test_first_order_only(ops: None) -> None:
    report = of("verify_first_order")
    assert report.proved
    assert report.failures == []
    assert report.second_order.status == "skipped"
    assert "first order only" in report.second_order.detail


def test_without_a_python_gradient_differences_alone_are_left(ops: None) -> None:
    report = of("verify_without_python")
    assert (report.parity, report.proved, report.failures) == ({}, False, [])
    assert report.second_order.status == "passed"


def test_without_samples(ops: None) -> None:
    report = of("verify_without_samples")
    assert report.failures == ["verify_without_samples: tests: it has no samples to try it with: give it samples="]
    assert report.parity == {}


def test_an_op_without_a_native_gradient() -> None:
    assert verify(["sign"]).failures == ["sign: native gradient: it has no native gradient"]


def test_what_is_required(ops: None) -> None:
    report = verify([], require=["verify_right", "verify_declines", "sign", "multipy"])
    assert [op.op for op in report.ops] == ["verify_right", "verify_declines", "sign"]
    first, second, third = report.failures
    assert first.startswith("multipy: required to be native: no op named 'multipy'")
    assert second == "verify_declines: native gradient: the native gradient declines all 3 samples"
    assert third == "sign: native gradient: it has no native gradient"
    assert verify([], require=["mul"]).passed


def test_samples_in_double_precision_only_are_tried_in_single_too(ops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixgrad.registry["verify_right"], "samples", lambda: samples()[:1])
    assert statuses(of("verify_right")) == {"float32": "passed", "float64": "passed"}


def test_an_unknown_op() -> None:
    with pytest.raises(UnknownOpError, match="multipy"):
        verify(["multipy"])


def test_packages() -> None:
    assert {package_of(op) for op in mixgrad.registry.values() if not op.name.startswith("verify_")} == {"mixgrad"}
    assert verify(package="no_such_package").ops == ()
    made = mixgrad.op(np.multiply, name="verify_package", samples=samples, numpy=())
    try:
        assert package_of(made) == __name__.partition(".")[0]
    finally:
        mixgrad.unregister("verify_package")


# --- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_command_passes() -> None:
    code, text = run("mul", "exp")
    assert code == 0
    assert "2 ops verified, 2 with parity proved, 0 checks failed" in text
    assert "✓ float32" in text


def test_the_command_fails(ops: None) -> None:
    code, text = run("mul", "verify_wrong")
    assert code == 1
    assert "verify_wrong: parity in float64: op 'verify_wrong', sample 0" in text
    assert run("multipy")[0] == 2
    assert run("--package", "no_such_package")[0] == 2


def test_the_command_reads_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.mixgrad]\nmodules = ["json"]\nrequire-native = ["mul", "sign"]\n')
    code, text = run("--settings", str(path))
    assert code == 1
    assert "2 ops verified, 1 with parity proved, 1 checks failed\nsign: native gradient: it has no native" in text
    path.write_text('[tool.mixgrad]\nmodules = ["json"]\nrequire-native = ["mul"]\n')
    assert run("--settings", str(path))[0] == 0
    path.write_text("[tool.mixgrad]\nmodule = 3\n")
    code, text = run("--settings", str(path))
    assert code == 2
    assert "has the key 'module'" in text
