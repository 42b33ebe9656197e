"""A new op and its gradient: as a whole, one input at a time, and checked.

python examples/define_gradient.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp
from mixgrad.testing import check_gradient

# 1. The whole gradient: what arrives at the output, g, becomes one gradient per input. The forward computes on ndarrays, and may
# call anything. saves= says which data the gradient reads; the tape keeps nothing else.


@mixgrad.register_op("logsumexp", saves="x output")
def logsumexp(x: Any) -> Any:
    """log(sum(exp(x))), without overflow."""
    largest = x.max()
    return largest + np.log(np.sum(np.exp(x - largest)))


@mixgrad.register_gradient("logsumexp")
def logsumexp_gradient(op: Any, g: Any) -> Any:
    (x,) = op.inputs
    return g * mnp.exp(x - op.output)


x = np.array([1.0, 2.0, 1000.0])
print("1.", mixgrad.grad(logsumexp)(x))
assert np.allclose(mixgrad.grad(logsumexp)(x), [0, 0, 1])

# It is written with mixgrad.numpy and operators, so it has derivatives itself. Both orders, against differences:
check_gradient(logsumexp, np.array([0.5, -1.0, 2.0]), order=2)
print("  ", mixgrad.hessian(logsumexp)(np.array([0.0, 0.0])).tolist())


# 2. One input at a time, for what is long, or needed by itself. y and p broadcast; the engine sums. `slope` has a default, so it
# is an attribute and no input; a gradient that names it is given it.


@mixgrad.register_op("soft_step", broadcasts=True)
def soft_step(x: Any, threshold: Any, slope: float = 1.0) -> Any:
    return 1 / (1 + np.exp(-slope * (x - threshold)))


@mixgrad.register_gradient("soft_step", argument=0)
def of_x(g: Any, x: Any, threshold: Any, out: Any, slope: float) -> Any:
    return g * slope * out * (1 - out)


@mixgrad.register_gradient("soft_step", argument=1)
def of_threshold(g: Any, x: Any, threshold: Any, out: Any, slope: float) -> Any:
    return -g * slope * out * (1 - out)


def crossings(x: Any, threshold: Any) -> Any:
    return mnp.sum(soft_step(x, threshold, slope=4.0))


gradients = mixgrad.grad(crossings, (0, 1))(np.array([-1.0, 0.0, 1.0]), 0.25)
print("2.", *gradients)
check_gradient(crossings, np.array([-1.0, 0.0, 1.0]), 0.25, order=2)


# 3. A gradient that is wrong is found.
def wrong(op: Any, g: Any) -> Any:
    return g * op.inputs[0]


with mixgrad.override_gradient("logsumexp", wrong):
    try:
        check_gradient(logsumexp, np.array([0.5, -1.0]))
    except mixgrad.MixgradError as error:
        print("3.", error)
    else:
        raise AssertionError("a wrong gradient passed")
