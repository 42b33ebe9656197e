# SPDX-License-Identifier: Apache-2.0
"""What all tests share: versions in the header, and no test may leave Arrays, entries or tapes behind."""

from __future__ import annotations

import gc
import platform
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mixgrad
from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_report_header() -> str:
    return f"mixgrad {mixgrad.__version__}, numpy {np.__version__}, {platform.python_implementation()} {platform.python_version()}"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Live buffers, values, Arrays, entries and windows are the same before and after each test."""
    before = _core.counters()
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        # The traceback of a failure holds what the test made.
        return
    if _core.counters() != before:
        # pytest.raises keeps a traceback in a cycle with its frame.
        gc.collect()
        assert _core.counters() == before


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
