"""A gradient goes wrong: look at what flows through an op, then find the op whose gradient is to blame.

python examples/override_for_debugging.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mixgrad
import mixgrad.numpy as mnp
from mixgrad.testing import check_gradient


def model(x: Any) -> Any:
    return mnp.sum(mnp.sqrt(x * x) * mnp.tanh(x))


# 1. Look. The override is called in the place of mul's gradient, for the length of the block and in this thread only; op.native
# and op.python are the gradients it replaces.
def watch_mul(op: Any, g: Any) -> Any:
    mine = op.native(g)
    print("   mul at", op.inputs[0].tolist(), "gets", np.round(g, 4).tolist())
    return mine


x = np.array([-1.0, 0.5, 2.0])
print("1. what flows through mul")
with mixgrad.override_gradient("mul", watch_mul):
    looked_at = mixgrad.grad(model)(x)
correct = mixgrad.grad(model)(x)
assert np.array_equal(looked_at, correct)


# 2. Blame. Say that a gradient of tanh was written by hand, and is wrong.
def wrong_tanh(op: Any, g: Any) -> Any:
    return g * (1 - op.output)  # the square is missing


with mixgrad.override_gradient("tanh", wrong_tanh):
    wrong = mixgrad.grad(model)(x)
print("2. wrong by", np.abs(wrong - correct).max().round(4))
assert not np.allclose(wrong, correct)


# Put the Python gradient in the place of each op's in turn: where the result changes is the op. The innermost override wins.
def by_python(op: Any, g: Any) -> Any:
    return op.python(g)


def suspects() -> list[str]:
    changed = []
    for name in ("mul", "sqrt", "tanh", "sum"):
        with mixgrad.override_gradient("tanh", wrong_tanh), mixgrad.override_gradient(name, by_python):
            if not np.allclose(mixgrad.grad(model)(x), wrong):
                changed.append(name)
    return changed


print("   the result changes without the gradient of", suspects())
assert suspects() == ["tanh"]

# 3. Prove it: the op by itself against central differences.
with mixgrad.override_gradient("tanh", wrong_tanh):
    try:
        check_gradient(np.tanh, np.array([0.5]))
    except mixgrad.MixgradError as error:
        print("3.", error)
    else:
        raise AssertionError("a wrong gradient passed")
