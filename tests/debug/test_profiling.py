# SPDX-License-Identifier: Apache-2.0
"""The profile: calls, time, bytes and lines by op and implementation; its table, rows, trace and command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import _core, debug

if TYPE_CHECKING:
    from pathlib import Path

X = np.ones(1000)


def model(x: Any) -> Any:
    return mnp.sum(mnp.exp(x) * x)


def test_calls_and_bytes() -> None:
    with debug.profile() as p:
        mixgrad.grad(model)(X)
        mixgrad.grad(model)(X)
    rows = {(row["op"], row["what"]): row for row in p.rows()}
    assert {key: row["calls"] for key, row in rows.items()} == {
        (op, what): 2 for op in ("exp", "multiply", "sum") for what in ("forward", "gradient")
    }
    assert all(row["implementation"] == "native" for row in rows.values())
    assert rows["exp", "forward"]["bytes"] == 2 * 8000
    assert rows["sum", "forward"]["bytes"] == 2 * 8
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1.0)
    assert all(row["seconds_per_call"] == row["seconds"] / 2 for row in rows.values())
    assert [row["seconds"] for row in p.rows()] == sorted((row["seconds"] for row in p.rows()), reverse=True)
    assert p.lost == 0


def test_implementations_and_lines() -> None:
    with (
        debug.profile() as p,
        mixgrad.prefer("python", "exp"),
        mixgrad.override_gradient("mul", lambda op, g: op.python(g)),
    ):
        mixgrad.grad(model)(X)
    by = {(event.op, event.what): event.implementation for event in p.events}
    assert by["exp", "forward"] == by["exp", "gradient"] == "python"
    assert by["multiply", "gradient"] == "override"
    assert by["sum", "gradient"] == "native"
    assert all(event.where is not None and event.where[0] == __file__ for event in p.events)


def test_time_inside_is_told_apart() -> None:
    @mixgrad.op(name="profiled_sleep")
    def sleep(x: Any) -> Any:
        time.sleep(0.01)
        return x * 1.0

    @sleep.gradient()
    def gradient(op: Any, g: Any) -> Any:
        return np.asarray(sleep(_core.constant(g)))

    try:
        with debug.profile() as p:
            mixgrad.grad(sleep)(1.0)
        rows = {(row["op"], row["what"]): row for row in p.rows()}
        assert rows["profiled_sleep", "forward"]["calls"] == 2
        assert rows["profiled_sleep", "forward"]["seconds"] >= 0.02
        (outer,) = (event for event in p.events if event.what == "gradient")
        assert outer.duration >= 0.01e9
        assert outer.own == outer.duration - max(e.duration for e in p.events if e.start > outer.start)
    finally:
        mixgrad.unregister("profiled_sleep")


def test_all_threads_are_measured() -> None:
    # Both are alive at once, or the second could be given the identity of the first.
    barrier = threading.Barrier(2)

    def work() -> None:
        mixgrad.grad(model)(X)
        barrier.wait()

    with debug.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({event.thread for event in p.events}) == 2
    assert sum(row["calls"] for row in p.rows()) == 12


def test_profiles_nest() -> None:
    with debug.profile() as outer:
        mixgrad.grad(np.sin)(1.0)
        with debug.profile() as inner:
            mixgrad.grad(np.cos)(1.0)
        mixgrad.grad(np.exp)(1.0)
    assert [event.op for event in inner.events] == ["cos", "cos"]
    assert [event.op for event in outer.events] == ["sin", "sin", "cos", "cos", "exp", "exp"]


def test_off_it_records_nothing() -> None:
    with debug.profile():
        pass
    mixgrad.grad(model)(X)
    with debug.profile() as p:
        pass
    assert p.events == []


def test_entries_know_their_time() -> None:
    with debug.profile(), mixgrad.Tape() as tape:
        model(tape.watch(X))
    times = {entry["op"]: entry["ns"] for entry in tape._window.entries()}
    assert times.pop("watch") == 0
    assert all(0 < ns < 10**9 for ns in times.values())


def test_the_table() -> None:
    with debug.profile() as p:
        mixgrad.grad(model)(X)
    text = str(p)
    lines = text.splitlines()
    assert [word for word in lines[1].replace("┃", " ").split() if word != "┃"] == [
        *["op", "what", "by", "calls", "time"],
        *["per", "call", "allocated", "share"],
    ]
    assert "in 6 calls" in lines[-1]
    assert "3 more rows" in _printed(p.table(3))


def _printed(table: Any) -> str:
    import io  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    text = io.StringIO()
    Console(file=text, width=110).print(table)
    return text.getvalue()


def test_the_trace(tmp_path: Path) -> None:
    with debug.profile() as p:
        mixgrad.grad(model)(X)
    p.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [
        "exp",
        "multiply",
        "sum",
        "sum gradient",
        "multiply gradient",
        "exp gradient",
    ]
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in events)
    assert events[0]["args"]["where"].startswith(__file__)
    assert events[0]["args"] | {"where": ""} == {"implementation": "native", "where": "", "bytes": 8000}
    starts = [event["ts"] for event in events]
    assert starts == sorted(starts)


def test_the_command(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, numpy as np, mixgrad\n"
        "print('arguments', sys.argv[1:])\n"
        "mixgrad.grad(lambda x: np.sum(np.tanh(x)))(np.ones(10))\n"
        "sys.exit(3)\n"
    )
    trace = tmp_path / "trace.json"
    done = subprocess.run(
        [sys.executable, "-m", "mixgrad", "profile", "--trace", str(trace), str(script), "--epochs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3  # the program's own
    assert "arguments ['--epochs', '2']" in done.stdout
    assert "tanh" in done.stdout
    assert "in 4 calls" in done.stdout
    assert len(json.loads(trace.read_text())["traceEvents"]) == 4
    missing = subprocess.run(
        [sys.executable, "-m", "mixgrad", "profile", "nothing.py"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert missing.stderr == "there is no file nothing.py\n"
    command = [sys.executable, "-m", "mixgrad", "profile", "--trace", str(tmp_path / "no" / "trace.json"), str(script)]
    nowhere = subprocess.run(command, capture_output=True, text=True, check=False)
    assert nowhere.returncode == 2
    assert nowhere.stdout == ""
    assert "there is no folder" in nowhere.stderr
