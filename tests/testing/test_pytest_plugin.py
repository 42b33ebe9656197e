# SPDX-License-Identifier: Apache-2.0
"""The pytest plug-in: both options and both fixtures do their work, and cost nothing when they are not used."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]


def test_it_is_an_entry_point() -> None:
    (found,) = [point for point in entry_points(group="pytest11") if point.name == "mixgrad"]
    assert found.value == "pytest_mixgrad"


def test_unused_it_does_not_import_mixgrad(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("mixgrad")
            assert "mixgrad" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize("language", ["python", "native"])
def test_prefer(pytester: pytest.Pytester, language: str) -> None:
    pytester.makepyfile(
        f"""
        import mixgrad, pytest

        def runs():
            found = []
            with mixgrad.debug.on_gradient(lambda op, g, gradients: found.append(op.runs[0])):
                mixgrad.grad(lambda x: x * 2.0)(1.0)
            return found

        @pytest.fixture
        def in_fixture():
            return runs()

        def test_all(in_fixture):
            assert in_fixture == runs() == ["{language}"]
        """
    )
    pytester.runpytest_inprocess(f"--mixgrad-prefer={language}").assert_outcomes(passed=1)


def test_prefer_knows_two_languages(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--mixgrad-prefer=fortran")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--mixgrad-prefer: invalid choice: 'fortran'*"])


def test_compare(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import mixgrad, numpy as np

        def test_right():
            assert mixgrad.grad(lambda x: np.sum(np.sin(x) * x))(np.ones(3)).shape == (3,)

        def test_without():
            pass
        """
    )
    result = pytester.runpytest_inprocess("--mixgrad-compare")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["mixgrad: 3 native gradient calls of 3 ops compared with Python, 0 mismatches"])


def test_compare_fails_a_test_that_hides_the_mismatch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import mixgrad, numpy as np, pytest

        # Which of the two is wrong does not matter.
        mixgrad.registry["exp2"].gradient(lambda g, x, out: g * out, replace=True)

        def test_hides_it():
            with pytest.raises(ZeroDivisionError):
                mixgrad.grad(lambda x: np.exp2(np.exp2(x)))(1.0)
                1 / 0
        """
    )
    # In a process of its own: the gradient stays wrong.
    result = pytester.runpytest_subprocess("--mixgrad-compare")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "op 'exp2', called at *test_compare_fails*.py:*: the native gradient (*) of input 0 is not that of Python (*",
            "(1 more)",
            "mixgrad: 2 native gradient calls of 1 ops compared with Python, 2 mismatches",
        ]
    )


def test_overrides_hold_until_the_test_ends(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import mixgrad

        def slope():
            return float(mixgrad.grad(lambda x: x * 3.0)(2.0))

        def test_first(mixgrad_overrides):
            mixgrad_overrides("mul", lambda op, g: (g * 10.0, None))
            mixgrad_overrides("sin", lambda op, g: op.next(g), differentiable=False)
            assert slope() == 10.0

        def test_second():
            assert slope() == 3.0
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_no_leaks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import mixgrad

        kept = []

        def test_clean(mixgrad_no_leaks):
            assert float(mixgrad.grad(lambda x: x * x)(2.0)) == 4.0

        def test_leaks(mixgrad_no_leaks):
            with mixgrad.Tape() as tape:
                kept.append(tape.watch(1.0))

        def test_leaks_but_is_not_asked():
            with mixgrad.Tape() as tape:
                kept.append(tape.watch(1.0))

        def test_fails_on_its_own(mixgrad_no_leaks):
            with mixgrad.Tape() as tape:
                kept.append(tape.watch(1.0))
            1 / 0
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*CheckError: the block left behind *1 arrays*", "*ZeroDivisionError*"])
