# SPDX-License-Identifier: Apache-2.0
"""NumPy's namespace, differentiable: ops and their compositions under NumPy's names, and all else is NumPy's own.

On plain arrays every function is NumPy's. On Arrays it is recorded, without the detour through NumPy's protocols.

>>> import numpy as np
>>> import mixgrad
>>> import mixgrad.numpy as mnp
>>> mnp.sin(np.array([0.0])), mnp.pi == np.pi, mnp.float32 is np.float32
(array([0.]), True, True)
>>> mixgrad.grad(lambda x: mnp.sum(mnp.abs(x)))(np.array([1.0, -2.0]))
array([ 1., -1.])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as _np  # noqa: ICN001

from mixgrad.protocol import counterpart as _counterpart

# Names that were looked up, and are kept here so that the next use finds them at once.
_looked_up: set[str] = set()


def __getattr__(name: str) -> Any:
    if name == "linalg":
        return import_module("mixgrad.numpy.linalg")
    value = _counterpart(getattr(_np, name))
    globals()[name] = value
    _looked_up.add(name)
    return value


def __dir__() -> list[str]:
    return sorted(dir(_np))
