"""What a native gradient from a plug-in costs beside one of mixgrad's own that does the same.

    python tests/benchmarks/plugin_overhead.py [--rounds N]

Both hand g on as it is. A chain of each is differentiated in turn, in one process; the figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp

LENGTH = 1000

SOURCE = "MIXGRAD_REGISTER_GRADIENT(benchmark_identity) { return g; }"


def chain(op: Any) -> tuple[Any, Any, Any]:
    """A tape with the op on it 1000 times."""
    with mixgrad.Tape() as tape:
        x = source = tape.watch(np.ones(1))
        for _ in range(LENGTH):
            x = op(x)
    return tape, x, source


def backward(op: Any) -> float:
    """Nanoseconds of one gradient call."""
    tape, target, source = chain(op)
    start = perf_counter()
    tape.gradient(target, source, output_gradients=np.ones(1))
    return (perf_counter() - start) / LENGTH * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=201)
    args = parser.parse_args()
    theirs = mixgrad.op(lambda x: x * 1.0, name="benchmark_identity", saves="")
    mixgrad.cpp.load_inline(SOURCE, name="benchmark", replace=True)
    # copy's gradient is the same line, compiled into mixgrad.
    rows = [(backward(mnp.copy), backward(theirs)) for _ in range(args.rounds)]
    ratio = statistics.median(plugin / own for own, plugin in rows)
    difference = statistics.median(plugin - own for own, plugin in rows)
    print(
        f"a gradient call of a plug-in / of mixgrad's own: {ratio:.2f} ({difference:+.0f} ns a call; at most +50 is the aim)"
    )


if __name__ == "__main__":
    main()
