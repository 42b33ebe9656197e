# SPDX-License-Identifier: Apache-2.0
"""Native gradients with faults in them, for the tests of what finds faults: each op is ``x * y``."""

from __future__ import annotations

from typing import Any

import mixgrad
from mixgrad import cpp

NAMES = ("right", "sign", "single", "broadcast", "strided", "nan", "throws", "leak")

_SOURCE = """
#include <vector>

Gradients product(const Call& op, const Array& g) {
  auto [x, y] = op.inputs<2>();
  return {g * y, g * x};
}

MIXGRAD_REGISTER_GRADIENT(planted_right) { return product(op, g); }

MIXGRAD_REGISTER_GRADIENT(planted_sign) {
  auto [x, y] = op.inputs<2>();
  return {g * y, -g * x};
}

MIXGRAD_REGISTER_GRADIENT(planted_single) {
  auto [x, y] = op.inputs<2>();
  return {g.dtype() == Dtype::float32 ? g * y * 1.01 : g * y, g * x};
}

MIXGRAD_REGISTER_GRADIENT(planted_broadcast) {
  auto [x, y] = op.inputs<2>();
  return {g * y, y.size() == op.output().size() ? g * x : g * x * 2.0};
}

MIXGRAD_REGISTER_GRADIENT(planted_strided) {
  auto [x, y] = op.inputs<2>();
  return {g * y, x.is_contiguous() ? g * x : g * x + 1.0};
}

MIXGRAD_REGISTER_GRADIENT(planted_nan) {
  auto [x, y] = op.inputs<2>();
  return {g * y * x / x, g * x};
}

MIXGRAD_REGISTER_GRADIENT(planted_throws) {
  if (op.input(0).size() > 2) throw std::runtime_error("out of luck");
  return product(op, g);
}

MIXGRAD_REGISTER_GRADIENT(planted_leak) {
  static std::vector<Array> kept;
  // So that a test can leave nothing behind.
  if (op.input(0).size() == 1)
    kept.clear();
  else
    kept.push_back(op.input(0));
  return product(op, g);
}
"""


def register() -> dict[str, Any]:
    """The ops by the name of their fault."""
    planted = {}
    for name in NAMES:

        def forward(x: Any, y: Any) -> Any:
            return x * y

        def gradient(op: Any, g: Any) -> Any:
            x, y = op.inputs
            return g * y, g * x

        made = mixgrad.op(forward, name=f"planted_{name}", saves="inputs output", broadcasts=True)
        made.gradient()(gradient)
        planted[name] = made
    cpp.load_inline(_SOURCE, name="planted")
    return planted


def unregister() -> None:
    for name in NAMES:
        mixgrad.unregister(f"planted_{name}")
