# SPDX-License-Identifier: Apache-2.0
"""mixgrad differentiates eager NumPy code, with gradients written in Python or in C++, side by side."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mixgrad import errors
from mixgrad._core import Array, Entry, __version__
from mixgrad.registry import (
    Op,
    Sample,
    op,
    override_gradient,
    prefer,
    register_gradient,
    register_op,
    registry,
    unregister,
)

from mixgrad import ops  # isort: skip  registers mixgrad's own ops
from mixgrad import numpy, protocol  # isort: skip  the namespace stands on the ops
from mixgrad.errors import MixgradError
from mixgrad.ops import nn
from mixgrad.plugins import load_plugins
from mixgrad.tape import Tape
from mixgrad.transforms import (
    checkpoint,
    custom_gradient,
    elementwise_grad,
    grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    stop_gradient,
    value_and_grad,
    vjp,
)

if TYPE_CHECKING:
    from mixgrad import cpp, debug, migrate, testing
    from mixgrad.debug import missing_gradients
    from mixgrad.migrate import set_promotion

__all__ = [
    "Array",
    "Entry",
    "MixgradError",
    "Op",
    "Sample",
    "Tape",
    "__version__",
    "checkpoint",
    "cpp",
    "custom_gradient",
    "debug",
    "elementwise_grad",
    "errors",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "load_plugins",
    "migrate",
    "missing_gradients",
    "nn",
    "numpy",
    "op",
    "ops",
    "override_gradient",
    "prefer",
    "protocol",
    "register_gradient",
    "register_op",
    "registry",
    "set_promotion",
    "stop_gradient",
    "testing",
    "unregister",
    "value_and_grad",
    "vjp",
]

_ON_FIRST_USE = {
    "cpp": "",
    "debug": "",
    "migrate": "",
    "missing_gradients": "debug",
    "set_promotion": "migrate",
    "testing": "",
}
"""Modules, and functions with the module that they are in: imported when first used."""


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        module = _ON_FIRST_USE[name]
        return getattr(import_module(f"mixgrad.{module}"), name) if module else import_module(f"mixgrad.{name}")
    msg = f"module 'mixgrad' has no attribute '{name}'"
    raise AttributeError(msg)
