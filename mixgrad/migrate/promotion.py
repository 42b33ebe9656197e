# SPDX-License-Identifier: Apache-2.0
"""Promotion states: whether an op's native gradient is off, runs in the shadow of Python's, or is on."""

from __future__ import annotations

import functools
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from mixgrad import _core
from mixgrad.debug.comparison import Comparison, compare_call, mismatch_of, origins, plain, warn_at
from mixgrad.debug.saved_calls import save
from mixgrad.errors import DemotionWarning, GradientMismatchWarning, MissingGradientError, RegistrationError
from mixgrad.registry import caller, promotion_states, record, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mixgrad.registry import Op

__all__ = ["State", "demotions", "promotion_state", "set_promotion", "shadow_report"]

State = Literal["off", "shadow", "on"]

_demotions: dict[str, str] = {}
_shadow = Comparison()


def set_promotion(
    name: str | Op,
    state: State,
    *,
    every: int = 100,
    demote: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    folder: str | Path | None = None,
    origin: str | None = None,
) -> None:
    """Say how far an op's native gradient is trusted, for this process and all its threads.

    Overrides and preferences come before it.

    Parameters
    ----------
    name : str or Op
        The op.
    state : {"off", "shadow", "on"}
        ``off``: Python's gradient runs. ``shadow``: Python's result is used; on sampled calls the native gradient runs
        beside it, and is compared: see `shadow_report`; the first difference is a `GradientMismatchWarning`. ``on``: the native gradient runs, as it does for every op by
        default.
    every : int
        In the shadow, and with `demote`: compare the first call and every so many after it.
    demote : bool
        Fall back to Python for the rest of the process, when the native gradient raises, gives nan or inf where Python's
        does not, or differs from Python's on a sampled call. It is told once, as a `DemotionWarning`, with a file that
        reproduces it. The result is then Python's.
    rtol, atol : float, optional
        The allowed difference: 200 times the resolution of the dtype, relative to the largest element, when left out.
    folder : path, optional
        Where such files go; a new temporary folder when left out.
    origin : str, optional
        Who says so, for `mixgrad.registry.explain`; the caller's file and line when left out.

    Raises
    ------
    RegistrationError
        Another state, or an op that has no Python gradient to use.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.set_promotion("mul", "off")
    >>> [row["runs"] for row in mixgrad.registry.rows() if row["op"] == "multiply"]
    ['python']
    >>> mixgrad.set_promotion("mul", "on")
    """
    op = name if isinstance(name, _core.Op) else registry[name]
    if state not in get_args(State):
        raise RegistrationError(f"a promotion state is 'off', 'shadow' or 'on', not {state!r} (op '{op.name}')")
    if every < 1:
        raise RegistrationError(
            f"every is the number of calls from one comparison to the next, at least 1; not {every}"
        )
    if (state != "on" or demote) and "python" not in _core.implementations(op)["gradient"]:
        raise RegistrationError(
            f"op '{op.name}' has no Python gradient, so its native one can only be 'on'. Register one with "
            f'@mixgrad.register_gradient("{op.name}")'
        )
    guard = _Guard(op, itertools.count(), every, rtol, atol, folder, demote)
    function: Callable[..., Any] | None = None
    if state == "shadow":
        function = guard.shadow
    elif state == "on" and demote:
        function = guard.watched
    _put(op, state, function, caller(2) if origin is None else origin)


def _put(op: Op, state: State, function: Callable[..., Any] | None, origin: str) -> None:
    language: Literal["python"] | None = None if state == "on" else "python"
    standing = (
        None
        if language is None and function is None
        else record(op, language=language, gradient=function, origin=origin)
    )
    _core.set_standing(op, None if standing is None else (None, *standing))
    promotion_states[op] = state


def promotion_state(name: str | Op) -> State:
    """The promotion state of an op.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.migrate.promotion_state("mul")
    'on'
    """
    op = name if isinstance(name, _core.Op) else registry[name]
    return cast("State", promotion_states.get(op, "on"))


def demotions() -> dict[str, str]:
    """The ops whose native gradient has been demoted in this process, and why.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.migrate.demotions()
    {}
    """
    return dict(_demotions)


def shadow_report() -> Comparison:
    """What the native gradients in the shadow have given, beside Python's, since the process began.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> mixgrad.set_promotion("sin", "shadow", every=1)
    >>> slope = mixgrad.grad(np.sin)(1.0)
    >>> mixgrad.set_promotion("sin", "on")
    >>> mixgrad.migrate.shadow_report().compared["sin"]
    1
    """
    return _shadow


@functools.cache
def _default_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mixgrad-"))


@dataclass
class _Guard:
    """Runs one op's native gradient with Python's at hand."""

    op: Op
    calls: itertools.count[int]
    every: int
    rtol: float | None
    atol: float | None
    folder: str | Path | None
    demote: bool
    told: bool = False

    def where_to(self) -> Path:
        return _default_folder() if self.folder is None else Path(self.folder)

    def shadow(self, op: _core.Entry, g: Any) -> Any:
        """Python's gradient; on a sampled call the native one beside it."""
        python = op.next(g)
        if next(self.calls) % self.every:
            return python
        try:
            native = op.native(g, recorded=False)
        except MissingGradientError:
            return python
        except Exception as error:  # noqa: BLE001  whatever it raises is what is to be reported
            self.report(op, g, f"the native gradient raised {type(error).__name__}: {error}")
            return python
        _shadow.compared[op.name] += 1
        self.compare(op, g, native, python)
        return python

    def watched(self, op: _core.Entry, g: Any) -> Any:
        """The native gradient, unless it fails."""
        try:
            native = op.next(g)
        except Exception as error:
            if op.runs[0] != "native":
                raise
            try:
                python = op.python(g)
            except Exception:  # noqa: BLE001  Python fails as well: the call is at fault
                raise error from None
            self.report(op, g, f"it raised {type(error).__name__}: {error}")
            return python
        suspect = not _all_finite(native)
        if not suspect and next(self.calls) % self.every:
            return native
        if op.runs[0] != "native":
            return native
        python = op.python(g)
        if suspect and _all_finite(python):
            self.report(op, g, "it gave nan or inf where Python's gradient gives none")
            return python
        return python if self.compare(op, g, native, python) else native

    def compare(self, op: _core.Entry, g: Any, native: Any, python: Any) -> bool:
        found = compare_call(op, native, python, self.rtol, self.atol)
        if found is not None:
            self.report(op, g, f"input {found[0]}: {found[1].text}")
            _shadow.mismatches.append(mismatch_of(op, g, found, None))
        return found is not None

    def report(self, op: _core.Entry, g: Any, reason: str) -> None:
        if self.told:
            return
        self.told = True
        native, python = origins(op.name)
        if self.demote:
            _demotions[op.name] = reason
            _put(self.op, "off", None, f"its demotion: {reason}")
        at = f", called at {op.where[0]}:{op.where[1]}" if op.where else ""
        text = f"op '{op.name}'{at}: the native gradient ({native}) is not as good as Python's ({python}): {reason}."
        try:
            again = f"To reproduce it: python -m mixgrad replay {save(op, g, self.where_to(), native, python)}"
        except Exception as error:  # noqa: BLE001  a full disk, an attribute that cannot be pickled: no reason to stop the user's work
            again = f"No file that reproduces it could be written: {error}"
        if self.demote:
            warn_at(op.where, f"{text} Python's gradient runs from now on. {again}", DemotionWarning)
        else:
            warn_at(op.where, f"{text} {again}", GradientMismatchWarning)


def _all_finite(gradients: Iterable[Any]) -> bool:
    return all(g is None or bool(np.isfinite(plain(g)).all()) for g in gradients)
