# SPDX-License-Identifier: Apache-2.0
"""mutate tells good tests from bad ones, and mixgrad's own check from both: it notices every fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample, errors, registry
from mixgrad.testing import assert_no_leaks, check_gradient, check_parity, check_samples, mutate
from mixgrad.testing.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

REPRESENTATIVE = [
    # Element-wise: of one, two and three inputs, of restricted domains, with kinks, complex.
    "multiply", "divide", "exp", "log", "arcsin", "absolute", "maximum", "where",
    "sum", "prod", "std", "cumsum",
    "matmul", "det", "norm", "concatenate", "getitem", "softmax", "split", "modf",
]  # fmt: skip


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_mixgrads_own_check_notices_everything(name: str) -> None:
    found = mutate(name)
    assert found.survived == []
    assert sum(row["result"] == "killed" for row in found.rows) >= 11
    # Nothing of what the faults did stays.
    check_samples(name)


class TestTests:
    """What a user's tests notice, of ``x * w``."""

    X = np.array([[0.5, 1.5], [2.0, 0.7], [1.1, 0.9]])
    W = np.array([2.0, 0.3])

    @pytest.fixture
    def scale(self) -> Iterator[Any]:
        op = mixgrad.register_op("mutation_scale", broadcasts=True, samples=lambda: [Sample(self.X, self.W)])(
            lambda x, w: x * w
        )
        op.gradient(lambda g, x, w, out: g * w, lambda g, x, w, out: g * x)
        yield op
        mixgrad.unregister("mutation_scale")

    def results(self, op: Any, check: Any = None, **options: Any) -> dict[str, str]:
        found = mutate(op, check, **options)
        return {r["fault"] if r["input"] is None else f"{r['fault']} {r['input']}": r["result"] for r in found.rows}

    def test_a_good_one(self, scale: Any) -> None:
        results = self.results(scale)
        assert set(results.values()) == {"killed", "not applicable", "equal"}
        assert {name for name, result in results.items() if result == "equal"} == {"conjugated 0", "conjugated 1"}
        assert {name for name, result in results.items() if result == "not applicable"} == {
            "not summed over broadcast axes 0", "ignores the last output",
        }  # fmt: skip

    def test_a_weak_one(self, scale: Any) -> None:
        def weak() -> None:
            # Of the first input only, at positive arguments, with ones arriving.
            gradient = mixgrad.grad(lambda x: mnp.sum(scale(x, self.W)))(self.X)
            np.testing.assert_allclose(gradient, np.broadcast_to(self.W, self.X.shape), rtol=1e-3)

        results = self.results(scale, weak)
        assert {name for name, result in results.items() if result == "killed"} == {
            "zero 0", "sign 0", "times 1.01 0", "None 0", "writes into g", "takes g for contiguous",
        }  # fmt: skip
        assert results["wrong where the input is negative 0"] == "survived"
        assert results["ignores what arrives"] == "survived"
        assert results["zero 1"] == "survived"

    def test_why_one_survives(self, scale: Any) -> None:
        found = mutate(scale, lambda: mixgrad.vjp(scale, self.X, self.W)[1](self.X))
        by = {(row["fault"], row["input"]): row["by"] for row in found.rows}
        assert by["zero", 0] == ""
        assert by["wrong where the input is negative", 0] == "the test has no case of it"
        assert "zero, input 0" in found.survived

    def test_the_table(self, scale: Any) -> None:
        lines = repr(mutate(scale, mutants=["zero", "writes into g", "ignores the last output"])).splitlines()
        assert lines[0] == "op 'mutation_scale': 3 of 3 faults noticed"
        assert lines[1].startswith(
            "  zero, input 0            killed          gradient of mutation_scale: that of input 0"
        )
        assert (
            lines[3]
            == "  writes into g            killed          refused by the engine: ValueError: output array is read-only"
        )
        assert lines[4] == "  ignores the last output  not applicable"

    def test_rows_are_for_pandas(self, scale: Any) -> None:
        rows = mutate(scale, mutants=["zero"]).rows
        assert [list(row) for row in rows] == [["op", "fault", "input", "result", "by"]] * 2
        pandas = pytest.importorskip("pandas")
        assert list(pandas.DataFrame(rows).result) == ["killed", "killed"]

    def test_faults_of_ones_own(self, scale: Any) -> None:
        def clipped(op: Any, g: Any, gradients: Any) -> Any:
            return tuple(None if x is None else np.clip(x, -1, 1) for x in gradients)

        assert self.results(scale, mutants={"clipped": clipped, "none": lambda op, g, gradients: None}) == {
            "clipped": "killed", "none": "not applicable",
        }  # fmt: skip

    def test_in_one_language(self) -> None:
        def parity() -> None:
            check_parity("multiply", [Sample(self.X, self.W)])

        faults = ["zero", "times 1.0005"]
        assert set(self.results("multiply", parity, mutants=faults, language="native").values()) == {"killed"}
        # Both are wrong then, in the same way.
        assert set(self.results("multiply", parity, mutants=faults).values()) == {"survived"}

    def test_pytests_own_failures_count(self, scale: Any) -> None:
        def check() -> None:
            if float(mixgrad.grad(scale)(2.0, 3.0)) != 3.0:
                pytest.fail("wrong")

        assert self.results(scale, check, mutants=["zero"]) == {"zero 0": "killed", "zero 1": "survived"}

    def test_a_test_that_fails_anyway(self, scale: Any) -> None:
        def fails() -> None:
            raise ZeroDivisionError("at once")

        with pytest.raises(errors.CheckError, match="fails without a fault: ZeroDivisionError: at once"):
            mutate(scale, fails)

    def test_a_test_of_something_else(self, scale: Any) -> None:
        with pytest.raises(errors.CheckError, match="never runs the gradient of op 'mutation_scale'"):
            mutate(scale, lambda: check_gradient(np.sin, 1.0))

    def test_no_samples_and_no_test(self) -> None:
        op = mixgrad.register_op("mutation_bare")(lambda x: x)
        try:
            with pytest.raises(
                errors.CheckError, match=r"has no samples, so mutate needs a test: mutate\('mutation_bare', test\)"
            ):
                mutate(op)
        finally:
            mixgrad.unregister("mutation_bare")

    def test_an_unknown_fault(self, scale: Any) -> None:
        with pytest.raises(errors.CheckError, match="there is no fault 'typo'; there are 'zero', 'sign'"):
            mutate(scale, mutants=["typo"])

    def test_nothing_is_left(self, scale: Any) -> None:
        with assert_no_leaks():
            mutate(scale)


def test_names_of_faults_are_unique() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_check_samples_names_the_sample() -> None:
    exp = registry["exp"]
    assert exp.samples is not None

    def wrong(op: Any, g: Any) -> Any:
        return tuple(2 * x if x is not None and x.ndim == 0 else x for x in op.next(g))

    with (
        mixgrad.override_gradient("exp", wrong),
        pytest.raises(errors.CheckError, match=r"\(sample 0 of op 'exp': float64\[2, 3\]\)"),
    ):
        check_samples("exp")
    samples = [leaf for sample in exp.samples() for leaf in sample.args]
    assert check_samples(exp, order=2) == sum(
        x.dtype.itemsize == 8 * (1 + (x.dtype.kind == "c")) and x.size > 0 for x in samples
    )


def test_a_mutant_that_fails_by_itself_is_no_success() -> None:
    mutants = {"mine": lambda op, g, gradients: 1 / 0}
    with pytest.raises(
        errors.CheckError, match="the mutant 'mine' fails by itself, which proves nothing: ZeroDivisionError"
    ):
        mutate("exp", lambda: mixgrad.grad(np.exp)(1.0), mutants=mutants)
