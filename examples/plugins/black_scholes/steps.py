"""Move the gradients to C++ one at a time, and see at each step that nothing changes but the time.

python steps.py [OPTIONS]        the number of options, 100000 by default
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import numpy as np
from black_scholes import OPS, call_price
from scipy.stats import norm

import mixgrad
import mixgrad.numpy as mnp


def market(n: int) -> tuple[Any, ...]:
    """Spots, strikes, times in years, volatilities and rates of n options."""
    rng = np.random.default_rng(1)
    ranges = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.1, 0.5), (0.01, 0.05))
    return tuple(rng.uniform(low, high, n) for low, high in ranges)


def closed_form(spot: Any, strike: Any, time: Any, volatility: Any, rate: Any) -> dict[str, Any]:
    """Delta, vega and rho by their formulas."""
    one = (np.log(spot / strike) + (rate + volatility**2 / 2) * time) / (volatility * np.sqrt(time))
    two = one - volatility * np.sqrt(time)
    return {
        "delta": norm.cdf(one),
        "vega": spot * norm.pdf(one) * np.sqrt(time),
        "rho": strike * time * np.exp(-rate * time) * norm.cdf(two),
    }


def greeks(options: tuple[Any, ...]) -> tuple[list[Any], float]:
    """Delta, vega and rho, and the milliseconds of the backward pass."""
    spot, strike, time, volatility, rate = options
    with mixgrad.Tape() as tape:
        sources = [tape.watch(source) for source in (spot, volatility, rate)]
        total = mnp.sum(call_price(sources[0], strike, time, sources[1], sources[2]))
    start = perf_counter()
    gradients = tape.gradient(total, sources)
    return gradients, (perf_counter() - start) * 1e3


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    options = market(n)
    want = closed_form(*options)
    print(f"{n} options: delta, vega and rho of each, by one backward pass\n")
    print(f"{'native gradients':32} {'ms':>8} {'/ first':>8}  {'worst error':>12}")
    first = None
    for step in range(len(OPS) + 1):
        with ExitStack() as stack:
            for op in OPS[step:]:
                stack.enter_context(mixgrad.prefer("python", op))
            got, _ = greeks(options)
            milliseconds = statistics.median(greeks(options)[1] for _ in range(15))
        worst = max(float(np.max(np.abs(g - w) / np.max(w))) for g, w in zip(got, want.values(), strict=True))
        assert worst < 1e-12, worst
        first = first or milliseconds
        print(f"{', '.join(OPS[:step]) or 'none':32} {milliseconds:8.2f} {milliseconds / first:8.2f}  {worst:12.1e}")


if __name__ == "__main__":
    main()
