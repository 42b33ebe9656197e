"""Time mixgrad against NumPy written by hand and against its peers: ratios, in one process, with one thread.

    python tests/benchmarks/run.py [--rounds N] [--only TEXT] [--markdown]

Each round takes one sample of every backend in turn, so that a machine whose speed drifts changes all of them alike; a row
gives the median over the rounds of that round's ratio. Gradients are compared with the hand-written ones first.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MIXGRAD_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import gc
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import workloads as w
from backends import Autograd, ByHand, Mixgrad, MixgradPython, Torch, available

Times = dict[str, list[tuple[float, float, float]]]


def check(workload: w.Workload, backends: list[Any]) -> None:
    expected = workload.backward(workload.forward(workload.parameters, workload.constants)[1])
    for backend in backends:
        for want, got in zip(expected, backend.backward(backend.forward()), strict=True):
            scale = max(1e-30, float(np.abs(want).max()))
            worst = float(np.abs(np.asarray(got) - want).max()) / scale
            if not worst <= workload.tolerance:
                sys.exit(f"{workload.name}: {backend.name} gives a wrong gradient, by {worst:.1e}")


def sample(backend: Any, budget: float) -> tuple[float, float, float]:
    """Median forward, backward and total of as many runs as fit into the budget, in seconds."""
    rows: list[Any] = []
    gc.collect()
    end = perf_counter() + budget
    while len(rows) < 3 or perf_counter() < end:
        start = perf_counter()
        state = backend.forward()
        middle = perf_counter()
        gradients = backend.backward(state)
        del state
        stop = perf_counter()
        del gradients
        rows.append((middle - start, stop - middle, stop - start))
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


def sample_call(call: Any, budget: float) -> tuple[float, float, float]:
    rows: list[Any] = []
    gc.collect()
    end = perf_counter() + budget
    while len(rows) < 3 or perf_counter() < end:
        start = perf_counter()
        call()
        rows.append(perf_counter() - start)
    total = statistics.median(rows)
    return total, total, total


def measure(workload: w.Workload, peers: list[Any], rounds: int, budget: float, whole_call: bool = False) -> Times:
    backends = [peer(workload) for peer in peers]
    check(workload, backends)
    times: Times = {backend.name: [] for backend in backends}
    for _ in range(rounds):
        for backend in backends:
            if whole_call and hasattr(backend, "value_and_grad"):
                times[backend.name].append(sample_call(backend.value_and_grad, budget))
            else:
                times[backend.name].append(sample(backend, budget))
    return times


FORWARD, BACKWARD, TOTAL = range(3)


def ratio(times: Times, a: tuple[str, int], b: tuple[str, int]) -> float | None:
    """Median over the rounds of a / b; None where a peer is not installed."""
    if a[0] not in times or b[0] not in times:
        return None
    return statistics.median(x[a[1]] / y[b[1]] for x, y in zip(times[a[0]], times[b[0]], strict=True))


def microseconds(times: Times, name: str, phase: int, operations: int) -> str:
    if name not in times:
        return "-"
    return f"{statistics.median(row[phase] for row in times[name]) * 1e6 / operations:.3g}"


PEAK = """
import sys; sys.path.insert(0, {here!r})
import workloads, backends
backend = backends.{backend}(workloads.elementwise())
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
small = backends.{backend}(workloads.elementwise(1000)); small.backward(small.forward())
before = peak(); gradients = backend.backward(backend.forward()); print(peak() - before)
"""


def peak_memory(backend: str) -> float:
    program = PEAK.format(here=str(Path(__file__).parent), backend=backend)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return float(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of a sample")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()

    # One large product maps OpenBLAS's buffers; until then small ones run at half speed.
    for dtype in (np.float32, np.float64):
        np.ones((512, 512), dtype) @ np.ones((512, 512), dtype)
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass

    installed = available()
    hand, mine, python = ByHand.name, Mixgrad.name, MixgradPython.name
    torch_, autograd = Torch.name, Autograd.name
    rows: list[tuple[str, ...]] = []
    slow: list[tuple[str, ...]] = []

    def row(times: Times, name: str, what: str, a: tuple[str, int], b: tuple[str, int], limit: float) -> None:
        value = ratio(times, a, b)
        if value is None:
            rows.append((name, what, "not installed", f"<= {limit:.3g}", ""))
        else:
            rows.append((name, what, f"{value:.3g}", f"<= {limit:.3g}", "yes" if value <= limit else "NO"))

    def run(workload: w.Workload, peers: list[Any] | None = None, whole_call: bool = False) -> Times | None:
        if args.only not in workload.name:
            return None
        chosen = [p for p in installed if peers is None or p in peers]
        print(f"timing {workload.name} ...", file=sys.stderr)
        times = measure(workload, chosen, args.rounds, args.budget, whole_call)
        for backend in times:
            slow.append(
                (
                    workload.name,
                    backend,
                    *(microseconds(times, backend, k, workload.operations) for k in (FORWARD, BACKWARD, TOTAL)),
                )
            )
        return times

    base = [ByHand, Mixgrad, Torch, Autograd]
    if times := run(c := w.chain((1,)), base):
        row(times, c.name, "forward / numpy forward", (mine, FORWARD), (hand, FORWARD), 0.35)
        row(times, c.name, "backward / forward", (mine, BACKWARD), (mine, FORWARD), 1.0)
        row(times, c.name, "total / torch", (mine, TOTAL), (torch_, TOTAL), 1 / 40)
        row(times, c.name, "total / autograd", (mine, TOTAL), (autograd, TOTAL), 1 / 100)
    if times := run(c := w.chain((100,)), base):
        row(times, c.name, "total / numpy forward", (mine, TOTAL), (hand, FORWARD), 1.5)
    if times := run(c := w.elementwise(), base):
        row(times, c.name, "total / numpy total", (mine, TOTAL), (hand, TOTAL), 1.0)
        if sys.platform == "linux":
            value = peak_memory("Mixgrad") / peak_memory("ByHand")
            rows.append((c.name, "peak memory / numpy", f"{value:.3g}", "<= 1", "yes" if value <= 1.02 else "NO"))
    for batch in (32, 256):
        if times := run(c := w.mlp(batch), base):
            row(times, c.name, "total / numpy total", (mine, TOTAL), (hand, TOTAL), 1.15)
    if times := run(c := w.deep_mlp()):
        row(times, c.name, "backward / with python gradients", (mine, BACKWARD), (python, BACKWARD), 0.5)
        row(times, c.name, "total / torch", (mine, TOTAL), (torch_, TOTAL), 1 / 3)
    if times := run(c := w.rnn(), base):
        row(times, c.name, "total / numpy total", (mine, TOTAL), (hand, TOTAL), 0.8)
    if times := run(c := w.custom(), base):
        row(times, c.name, "total / numpy total", (mine, TOTAL), (hand, TOTAL), 1.5)
    if times := run(c := w.rosenbrock(), base, whole_call=True):
        row(times, c.name, "value_and_grad / numpy pair", (mine, TOTAL), (hand, TOTAL), 2.0)

    show(("workload", "ratio", "measured", "aim", "reached"), rows, args.markdown)
    print()
    show(("microseconds (per op where a chain)", "backend", "forward", "backward", "total"), slow, args.markdown)


def show(header: tuple[str, ...], rows: list[tuple[str, ...]], markdown: bool) -> None:
    if markdown:
        print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
        for r in rows:
            print("| " + " | ".join(r) + " |")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*header)
    for r in rows:
        table.add_row(*r)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
