# SPDX-License-Identifier: Apache-2.0
"""Functions that see every gradient, or that of one Array: to log, clip or check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixgrad import _core
from mixgrad.debug.comparison import chosen
from mixgrad.registry import in_force, record
from mixgrad.transforms import custom_gradient

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable

    from mixgrad.registry import Op

__all__ = ["gradient_hook", "on_gradient"]


def on_gradient(
    hook: Callable[[_core.Entry, Any, tuple[Any, ...]], Any], *, ops: str | Op | Iterable[str | Op] | None = None
) -> contextlib.AbstractContextManager[None]:
    """For a ``with`` block: calls a function after every gradient.

    It holds for the ops that are recorded inside the block, and for gradients taken inside it, in this thread and asyncio
    task. Hooks nest: the innermost is called first.

    Parameters
    ----------
    hook : callable
        Called as ``(op, g, gradients)`` with what the gradient of `op` gave, one value per input. It returns what to use in
        their place, or None to leave them. ``op.name``, ``op.where`` and ``op.runs`` say which op it is, where it was called
        and which implementation runs.
    ops : str, Op or iterable of these, optional
        These ops only.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> seen = []
    >>> with mixgrad.debug.on_gradient(lambda op, g, gradients: seen.append((op.name, op.runs[0]))):
    ...     slope = mixgrad.grad(lambda x: np.exp(x) * 2.0)(1.0)
    >>> seen
    [('multiply', 'native'), ('exp', 'native')]
    """
    if not callable(hook):
        raise TypeError(f"on_gradient takes a function (op, g, gradients), not {hook!r}")

    def hooked(op: _core.Entry, g: Any) -> Any:
        gradients = op.next(g)
        changed = hook(op, g, gradients)
        return gradients if changed is None else changed

    targets = chosen(ops)
    return in_force([record(target, gradient=hooked, origin="mixgrad.debug.on_gradient") for target in targets])


def gradient_hook(x: Any, hook: Callable[[Any], Any]) -> Any:
    """The same value as `x`, whose gradient a function sees on its way back.

    Parameters
    ----------
    x : array_like
        Usually an Array; use what is returned in its place.
    hook : callable
        Called with the gradient that has arrived at what was returned. It returns what to pass on to `x`, or None to pass on
        what came.

    Returns
    -------
    Array or ndarray
        As `x`.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> def clipped(x):
    ...     return mixgrad.debug.gradient_hook(x, lambda g: np.clip(g, -1.0, 1.0)) ** 2
    >>> float(mixgrad.grad(clipped)(3.0))
    1.0
    """

    if not callable(hook):
        raise TypeError(f"gradient_hook takes a function of the gradient, not {hook!r}")

    def identity(value: Any) -> tuple[Any, Callable[[Any], Any]]:
        def back(g: Any) -> Any:
            changed = hook(g)
            return g if changed is None else changed

        return value, back

    return custom_gradient(identity)(x)
