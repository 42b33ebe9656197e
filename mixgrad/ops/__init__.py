# SPDX-License-Identifier: Apache-2.0
"""mixgrad's own ops, one file per family. Every op of the registry is an attribute here, under its name or an alias.

>>> import mixgrad
>>> mixgrad.ops.multiply, mixgrad.ops.mul
(<mixgrad.Op 'multiply'>, <mixgrad.Op 'multiply'>)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixgrad.errors import UnknownOpError
from mixgrad.ops import index, linalg, math, nn, reduce, shape
from mixgrad.registry import registry

if TYPE_CHECKING:
    from mixgrad._core import Op

__all__ = ["index", "linalg", "math", "nn", "reduce", "shape"]


def __getattr__(name: str) -> Op:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return registry[name]
    except UnknownOpError as error:
        msg = f"mixgrad has no op or family of ops named {name!r}: {error}"
        raise AttributeError(msg) from None


def __dir__() -> list[str]:
    return sorted({*__all__, *registry})
