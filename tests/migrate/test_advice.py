# SPDX-License-Identifier: Apache-2.0
"""Advice on what to move: the ranking, what is promised, and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mixgrad
from mixgrad.debug import Profile
from mixgrad.debug.profiling import Event
from mixgrad.migrate import Costs, advise, measure_costs

if TYPE_CHECKING:
    from pathlib import Path


def ran(op: str, what: str, implementation: str, microseconds: int, size: int = 0) -> Event:
    return Event(op, what, implementation, None, 0, 1000 * microseconds, 1000 * microseconds, size, 1)


def test_the_ranking() -> None:
    measured = Profile(
        [
            ran("small", "gradient", "python", 10),
            ran("small", "gradient", "python", 10),
            ran("large", "gradient", "python", 100, 1000),
            ran("large", "forward", "native", 900),
            ran("hopeless", "forward", "python", 1, 10_000),
        ]
    )
    advice = advise(measured, Costs(1e-6, 1e-9))
    assert [(move.op, move.what, move.calls) for move in advice.moves] == [
        ("large", "gradient", 1),
        ("small", "gradient", 2),
    ]
    assert [move.saves for move in advice.moves] == pytest.approx([98e-6, 18e-6])
    assert advice.moves[0].share == pytest.approx(100 / 1021)
    assert advice.total == pytest.approx(1021e-6)
    text = str(advice)
    assert "98 µs (9.6%)" in text
    assert "python -m mixgrad scaffold large" in text


def test_promises_are_set_against_what_was_gained(tmp_path: Path) -> None:
    file = tmp_path / "advice.json"
    costs = Costs(1e-6, 0.0)
    advise(Profile([ran("op", "gradient", "python", 10)]), costs, file=file)
    assert json.loads(file.read_text()) == {"op gradient": {"seconds": 1e-5, "promised": pytest.approx(9e-6)}}
    advice = advise(Profile([ran("op", "gradient", "native", 4), ran("op", "gradient", "native", 2)]), costs, file=file)
    (gain,) = advice.gains
    assert (gain.op, gain.what) == ("op", "gradient")
    assert gain.promised == pytest.approx(9e-6)
    assert gain.gained == pytest.approx(7e-6)
    assert "op gradient: moved; 7 µs a call gained of 9 µs promised (78%)" in " ".join(str(advice).split())
    assert "Nothing ran in Python" in str(advice)


def test_the_costs_are_measured() -> None:
    costs = measure_costs()
    assert 0.0 < costs.call < 1e-3
    assert 0.0 <= costs.byte < 1e-6


def test_what_runs_in_python_is_found() -> None:
    with mixgrad.debug.profile() as measured, mixgrad.prefer("python", "tanh"):
        mixgrad.grad(lambda x: np.sum(np.sin(np.tanh(x))))(np.ones(100))
    assert {move.op for move in advise(measured, Costs(0.0, 0.0)).moves} == {"tanh"}


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import numpy as np, mixgrad\n"
        "with mixgrad.prefer('python', 'tanh'):\n"
        "    mixgrad.grad(lambda x: np.sum(np.tanh(x)))(np.ones(100_000))\n"
    )
    command = [sys.executable, "-m", "mixgrad", "advise", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "tanh" in done.stdout
    assert "python -m mixgrad scaffold tanh" in done.stdout
    assert (tmp_path / ".mixgrad-advice.json").exists()
