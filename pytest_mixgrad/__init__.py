# SPDX-License-Identifier: Apache-2.0
"""mixgrad's pytest plug-in: a language for the whole run, native gradients compared with Python's, and two fixtures.

A package beside mixgrad and not in it: pytest imports plug-ins at every start, and importing anything of a package imports
the package. mixgrad is imported when an option or a fixture is used.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from mixgrad.debug import Comparison

_REPORTS: pytest.StashKey[list[Comparison]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mixgrad")
    group.addoption(
        "--mixgrad-prefer",
        choices=("python", "native"),
        help="Run every test with this language's implementations, where there are any.",
    )
    group.addoption(
        "--mixgrad-compare",
        action="store_true",
        help="Compare every native gradient that runs in a test with the Python one; a mismatch fails the test.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORTS] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    language = item.config.option.mixgrad_prefer
    if language is None:
        return (yield)
    from mixgrad import prefer  # noqa: PLC0415  only when asked for

    with prefer(language):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with contextlib.ExitStack() as stack:
        if "mixgrad_no_leaks" in getattr(item, "fixturenames", ()):
            from mixgrad.testing import assert_no_leaks  # noqa: PLC0415  only when asked for

            stack.enter_context(assert_no_leaks())
        if item.config.option.mixgrad_compare:
            stack.enter_context(_compared(item.config.stash[_REPORTS]))
        return (yield)


@contextlib.contextmanager
def _compared(reports: list[Comparison]) -> Iterator[None]:
    """Collects mismatches while the test runs, and then fails it: what raised at once could be caught by the test."""
    from mixgrad.debug import compare_gradients  # noqa: PLC0415  only when asked for

    with compare_gradients(on_mismatch="record") as report:
        reports.append(report)
        yield
    if report.mismatches:
        others = f"\n({len(report.mismatches) - 1} more)" if len(report.mismatches) > 1 else ""
        pytest.fail(f"{report.mismatches[0]}{others}", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = config.stash[_REPORTS]
    if reports:
        calls = sum(sum(report.compared.values()) for report in reports)
        ops = {name for report in reports for name in report.compared}
        wrong = sum(len(report.mismatches) for report in reports)
        terminalreporter.write_line(
            f"mixgrad: {calls} native gradient calls of {len(ops)} ops compared with Python, {wrong} mismatches"
        )


@pytest.fixture
def mixgrad_overrides() -> Iterator[Callable[..., None]]:
    """A function ``(op, gradient, **options)`` as `mixgrad.override_gradient`; the override holds until the test ends."""
    from mixgrad import override_gradient  # noqa: PLC0415  only when asked for

    with contextlib.ExitStack() as stack:

        def override(op: Any, gradient: Callable[..., Any], **options: Any) -> None:
            stack.enter_context(override_gradient(op, gradient, **options))

        yield override


@pytest.fixture
def mixgrad_no_leaks() -> None:
    """The test fails when it leaves more live Arrays, buffers, entries or tapes behind than there were at its start."""
