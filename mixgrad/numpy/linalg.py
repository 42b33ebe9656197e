# SPDX-License-Identifier: Apache-2.0
"""The differentiable `numpy.linalg`: ops and compositions under NumPy's names, and all else is NumPy's own.

>>> import numpy as np
>>> import mixgrad
>>> mixgrad.grad(mixgrad.numpy.linalg.norm)(np.array([3.0, 4.0]))
array([0.6, 0.8])
"""

from __future__ import annotations

from typing import Any

import numpy.linalg as _linalg

from mixgrad.protocol import counterpart as _counterpart

_looked_up: set[str] = set()


def __getattr__(name: str) -> Any:
    value = _counterpart(getattr(_linalg, name))
    globals()[name] = value
    _looked_up.add(name)
    return value


def __dir__() -> list[str]:
    return sorted(dir(_linalg))
