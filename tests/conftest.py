# SPDX-License-Identifier: Apache-2.0
"""What all tests share: versions in the header, and no test may leave Arrays, entries or tapes behind."""

from __future__ import annotations

import gc
import importlib.util
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_report_header() -> str:
    return f"mixgrad {mixgrad.__version__}, numpy {np.__version__}, {platform.python_implementation()} {platform.python_version()}"


@pytest.fixture(autouse=True, scope="session")
def warm() -> None:
    """Constants that the core keeps once it has met them are no leaks."""
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        mixgrad.grad(lambda x: mixgrad.numpy.sum(mixgrad.numpy.real(x * x)))(np.ones(2, dtype))


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, warm: None) -> Iterator[None]:
    """No test leaves more live buffers, values, Arrays, entries or windows than there were before."""
    before = _core.counters()
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        # The traceback of a failure holds what the test made.
        return
    if _more(before):
        # pytest.raises keeps a traceback in a cycle with its frame.
        gc.collect()
        assert _more(before) == {}


def _more(before: dict[str, int]) -> dict[str, int]:
    now = _core.counters()
    return {name: now[name] - count for name, count in before.items() if now[name] > count}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def planted_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def planted(planted_cache: Path) -> Iterator[dict[str, Any]]:
    """Ops whose native gradients have faults; see planted.py."""
    spec = importlib.util.spec_from_file_location("planted", Path(__file__).parent / "planted.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXGRAD_CACHE", str(planted_cache))
        ops = module.register()
    yield ops
    module.unregister()
