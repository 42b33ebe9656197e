# SPDX-License-Identifier: Apache-2.0
"""Derivatives by differences, and random numbers to multiply them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def derivative(along: Callable[[float], tuple[float, float]], size: float) -> tuple[float, float, float] | None:
    """The derivative of ``along`` at 0 as an interval, and its own error; None where it has none.

    ``along`` gives a value and its rounding error.
    At a kink the interval lies between the one-sided derivatives.
    """
    middle, _ = along(0.0)
    if not (np.isfinite(size) and np.isfinite(middle)):
        return None
    best: tuple[float, float, float] | None = None
    for relative in (1e-2, 1e-3, 1e-5):
        step = relative * size
        steps = (step, step / 2, step / 4)
        right, left = [along(h) for h in steps], [along(-h) for h in steps]
        values = np.array([value for value, _ in right + left])
        if not np.isfinite(values).all():
            continue
        noise = 2 * max(rounding for _, rounding in right + left) / steps[-1]
        forward = [(r[0] - middle) / h for r, h in zip(right, steps, strict=True)]
        backward = [(middle - l[0]) / h for l, h in zip(left, steps, strict=True)]
        gaps = [abs(f - b) for f, b in zip(forward, backward, strict=True)]
        scale = max(map(abs, forward + backward))
        if gaps[2] > 0.7 * gaps[0] and gaps[2] > 1e-5 * scale + 8 * noise:
            # The one-sided derivatives do not approach each other: a kink, or a jump if they grow.
            if gaps[2] > 1.5 * gaps[0]:
                continue
            bounds = forward[2], backward[2]
            slack = abs(forward[2] - forward[0]) + abs(backward[2] - backward[0]) + noise
            best = _better(best, (min(bounds), max(bounds), 2 * slack))
            continue
        central = [(f + b) / 2 for f, b in zip(forward, backward, strict=True)]
        once = [(4 * central[1] - central[0]) / 3, (4 * central[2] - central[1]) / 3]
        twice = (16 * once[1] - once[0]) / 15
        error = 3 * abs(twice - once[1]) + noise
        first, last = abs(central[1] - central[0]), abs(central[2] - central[1])
        if 3 * last > first:
            # Not the convergence of a smooth function, which the extrapolation takes for granted.
            error = max(error, 4 * last)
        best = _better(best, (twice, twice, error))
        if error < 1e-9 * scale:
            break
    return best


def _better(old: tuple[float, float, float] | None, new: tuple[float, float, float]) -> tuple[float, float, float]:
    return new if old is None or new[2] < old[2] else old


def random_like(y: Any, rng: np.random.Generator) -> Any:
    """Random numbers of both signs, away from zero, like an output."""
    g = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    if y.dtype.kind == "c":
        g = g + 1j * rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    return np.asarray(g).astype(y.dtype if y.dtype.kind in "fc" else np.float64)
