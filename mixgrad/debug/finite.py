# SPDX-License-Identifier: Apache-2.0
"""Stops at the first nan or inf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad.debug.comparison import plain
from mixgrad.errors import NonFiniteError
from mixgrad.registry import in_force, record

if TYPE_CHECKING:
    import contextlib

__all__ = ["check_finite"]


def check_finite(*, forward: bool = True, backward: bool = True) -> contextlib.AbstractContextManager[None]:
    """For a ``with`` block: an op or a gradient that gives the first nan or inf is an error that names it.

    The message says which op and implementation, where it was called, how many elements, and the ranges of the inputs. The
    first one stops: what follows would only carry it on.

    Parameters
    ----------
    forward, backward : bool
        Which results to look at.

    Raises
    ------
    NonFiniteError
        In the block.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> with np.errstate(all="ignore"), mixgrad.debug.check_finite():
    ...     slope = mixgrad.grad(lambda x: np.sum(np.sqrt(x)))(np.array([4.0, 0.0]))
    Traceback (most recent call last):
        ...
    mixgrad.errors.NonFiniteError: the gradient of op 'sqrt' (native, ...), called at ..., gave 1 inf ...
    """
    return in_force(
        [
            record(
                None,
                gradient=_checked if backward else None,
                forward=_check_outputs if forward else None,
                origin="mixgrad.debug.check_finite",
            )
        ]
    )


def _checked(op: _core.Entry, g: Any) -> Any:
    language, origin = op.runs
    gradients = op.next(g)
    for i, gradient in enumerate(gradients):
        if gradient is None or not op.needs_gradient(i):
            continue
        found = _found(plain(gradient))
        if found:
            arrived = g if isinstance(g, tuple) else (g,)
            raise NonFiniteError(
                f"the gradient of op '{op.name}' ({language}, {origin}){_place(op.where)} gave {found}, for input {i}. "
                f"{_ranges(op.inputs)}; what arrived: {', '.join(_range(plain(one)) for one in arrived)}"
            )
    return gradients


def _check_outputs(
    op: _core.Op, language: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], where: tuple[str, int] | None
) -> None:
    for i, output in enumerate(outputs):
        found = _found(output)
        if found:
            which = f"output {i} of op" if len(outputs) > 1 else "op"
            raise NonFiniteError(f"{which} '{op.name}' ({language}){_place(where)} gave {found}. {_ranges(inputs)}")


def _place(where: tuple[str, int] | None) -> str:
    return f", called at {where[0]}:{where[1]}," if where else ""


def _found(array: Any) -> str:
    """How many nan and inf there are, and the first; nothing if all is finite."""
    if array.dtype.kind not in "fc":
        return ""
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return ""
    nans = int(np.count_nonzero(np.isnan(array)))
    infs = int(np.count_nonzero(wrong)) - nans
    kinds = " and ".join(f"{n} {name}" for n, name in ((nans, "nan"), (infs, "inf")) if n)
    if array.ndim == 0:
        return kinds.split()[1]
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{kinds} among {array.size} elements, the first at {list(first)}"


def _ranges(inputs: tuple[Any, ...]) -> str:
    return "Inputs: " + ", ".join(_range(x if isinstance(x, _core.NotSaved) else plain(x)) for x in inputs)


def _range(array: Any) -> str:
    about = f"{array.dtype}{list(array.shape)}"
    if isinstance(array, _core.NotSaved) or array.size == 0 or array.dtype.kind == "c":
        return about
    finite = array[np.isfinite(array)] if array.ndim else array
    if array.ndim and finite.size < array.size:
        about += " with nan or inf"
    return f"{about} from {np.min(finite)!s} to {np.max(finite)!s}" if finite.size else about
