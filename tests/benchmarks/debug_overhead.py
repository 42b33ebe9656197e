# SPDX-License-Identifier: Apache-2.0
"""What looking on costs: each tool of mixgrad.debug beside the same training step without it.

    python tests/benchmarks/debug_overhead.py [--rounds N]

One step is the loss and gradient of a network of two layers on 64 rows. All cases take turns in one process; the figures are
medians over the rounds of the ratio to the step that nothing looks at.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import debug

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20


def make_step() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64))
    parameters = [rng.standard_normal(shape) * 0.1 for shape in ((64, 100), (100,), (100, 10), (10,))]

    def loss(parameters: Any) -> Any:
        w1, b1, w2, b2 = parameters
        out = mnp.tanh(x @ w1 + b1) @ w2 + b2
        return mnp.mean(out * out)

    gradient = mixgrad.grad(loss)
    return lambda: gradient(parameters)


CASES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "nothing": contextlib.nullcontext,
    "nothing, once more": contextlib.nullcontext,
    "compare_gradients(every=1)": debug.compare_gradients,
    "compare_gradients(every=10)": lambda: debug.compare_gradients(every=10),
    "compare_gradients(every=100)": lambda: debug.compare_gradients(every=100),
    "check_finite()": debug.check_finite,
    "on_gradient(a hook that does nothing)": lambda: debug.on_gradient(lambda op, g, gradients: None),
    "profile()": debug.profile,
    "track_buffers()": debug.track_buffers,
}


def measure(step: Callable[[], Any], case: contextlib.AbstractContextManager[Any]) -> float:
    with case:
        step()
        start = perf_counter()
        for _ in range(STEPS):
            step()
        return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    step = make_step()
    rounds = [[measure(step, case()) for case in CASES.values()] for _ in range(args.rounds)]
    for i, name in enumerate(CASES):
        ratio = statistics.median(times[i] / times[0] for times in rounds)
        print(f"{name:40} {ratio:.2f}")


if __name__ == "__main__":
    main()
