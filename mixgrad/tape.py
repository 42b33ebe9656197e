# SPDX-License-Identifier: Apache-2.0
"""The tape as users see it: a window on this thread's list of recorded operations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

import numpy as np

from mixgrad import _core
from mixgrad import numpy as mnp
from mixgrad._tree import ONE, flatten, is_leaf, paths
from mixgrad.errors import GradientDtypeError, GradientShapeError, NotRecordedError, TargetError, UnconnectedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Tape"]

# Bound once: `plain` runs in every call of every transform.
Array = _core.Array
is_recorded = _core.is_recorded
numbers_of = _core.value

T = TypeVar("T")
Unconnected = Literal["zero", "none", "error"]


class Tape:
    """Records what is computed from the values it watches, and differentiates it.

    There is one tape per thread; a ``Tape`` is a window on it. Windows nest and overlap: a gradient taken while another
    tape records is recorded there, which gives higher derivatives.

    Parameters
    ----------
    persistent : bool
        Whether `gradient` may be called more than once. What was recorded is kept until the tape is reset or deleted.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> with mixgrad.Tape() as tape:
    ...     x = tape.watch(np.array([1.0, 2.0]))
    ...     y = np.sum(x**3)
    >>> tape.gradient(y, x)
    array([ 3., 12.])
    """

    __slots__ = ("__weakref__", "_window")

    def __init__(self, *, persistent: bool = False) -> None:
        self._window = _core.Window(persistent)

    def __enter__(self) -> Self:
        self._window.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._window.stop()

    def watch(self, value: T) -> Any:
        """Makes `value` a source: returns an Array of the same value, to compute with in its place.

        A container (dict, list, tuple, NamedTuple, dataclass) is returned with an Array for each array or number in it.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as tape:
        ...     model = tape.watch({"slope": 2.0, "offset": 1.0})
        ...     y = model["slope"] * 3.0 + model["offset"]
        >>> tape.gradient(y, model)
        {'slope': np.float64(3.0), 'offset': np.float64(1.0)}
        """
        if is_leaf(value):
            return self._window.watch(value)
        return watch_all(self._window, value, "value")

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, unconnected: Unconnected = "zero"
    ) -> Any:
        """The gradient of `target` with respect to `sources`.

        Parameters
        ----------
        target : Array or container of Arrays
            What to differentiate; of several the sum, and of an array the sum of its elements.
        sources : Array or container of Arrays
            What `watch` returned, or anything recorded on the way.
        output_gradients : array or container of arrays, optional
            The gradient that arrives at each target, of its shape; ones when left out. A complex target needs it.
        unconnected : {"zero", "none", "error"}
            What to give for a source that the target does not depend on.

        Returns
        -------
        array or container of arrays
            Like `sources`: new arrays, or Arrays while another tape records what they depend on.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as outer:
        ...     x = outer.watch(2.0)
        ...     with mixgrad.Tape() as inner:
        ...         v = inner.watch(x)
        ...         y = v**3
        ...     slope = inner.gradient(y, v)
        >>> float(outer.gradient(slope, x))
        12.0
        """
        check_unconnected(unconnected)
        window = self._window
        targets, target_structure = flatten(target)
        source_leaves, structure = flatten(sources)
        check_recorded(window, targets, "target", target)
        check_recorded(window, source_leaves, "source", sources)
        gradients = window.gradient(targets, source_leaves, upstream(targets, target_structure, output_gradients))
        return structure.unflatten(connect(gradients, source_leaves, unconnected, sources))

    def jacobian(self, target: Any, sources: Any, unconnected: Unconnected = "zero") -> Any:
        """The gradient of every element of `target`: for each source an array of shape ``target.shape + source.shape``.

        Examples
        --------
        >>> import mixgrad, numpy as np
        >>> with mixgrad.Tape() as tape:
        ...     x = tape.watch(np.array([1.0, 2.0]))
        ...     y = x * x[::-1]
        >>> tape.jacobian(y, x)
        array([[2., 1.],
               [2., 1.]])
        """
        check_unconnected(unconnected)
        window = self._window
        targets, target_structure = flatten(target)
        source_leaves, structure = flatten(sources)
        check_recorded(window, targets, "target", target)
        check_recorded(window, source_leaves, "source", sources)
        blocks = []
        for i, one in enumerate(targets):
            if one.dtype.kind == "c" and any(source.dtype.kind != "c" for source in source_leaves):
                raise TargetError(
                    f"jacobian of a complex target (dtype {one.dtype}) with respect to a real source has no one meaning; "
                    "take those of its real and imaginary parts (mixgrad.numpy.real, mixgrad.numpy.imag)"
                )
            rows = jacobian_blocks(window, one, source_leaves, keep=i + 1 < len(targets))
            blocks.append(structure.unflatten(connect(rows, source_leaves, unconnected, sources, one.shape)))
        return target_structure.unflatten(blocks)

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """For a ``with`` block: what is computed in it is not recorded on this tape.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as tape:
        ...     x = tape.watch(3.0)
        ...     with tape.stop_recording():
        ...         scale = 1.0 / x
        ...     y = x * x * scale
        >>> float(tape.gradient(y, x))
        2.0
        """
        self._window.pause()
        try:
            yield
        finally:
            self._window.resume()

    def reset(self) -> None:
        """Forgets what was recorded and watched; the tape goes on as new.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as tape:
        ...     x = tape.watch(3.0)
        ...     tape.reset()
        ...     x = tape.watch(4.0)
        ...     y = x * x
        >>> float(tape.gradient(y, x))
        8.0
        """
        self._window.reset()

    def to_dot(self) -> str:
        """The recorded operations as a graph in Graphviz' language.

        Returns
        -------
        str
            For ``dot -Tsvg`` or ``graphviz.Source``; coloured by implementation.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as tape:
        ...     x = tape.watch(3.0)
        ...     y = x * x
        >>> print(tape.to_dot().splitlines()[-2])
          n0 -> n1;
        """
        from mixgrad.debug import view  # noqa: PLC0415  few programs look at a tape

        return view.dot(self)

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: str | Path) -> None: ...

    def to_html(self, path: str | Path | None = None) -> str | None:
        """The recorded operations as one page that needs no network: a graph to search, zoom and click through.

        Parameters
        ----------
        path : str or Path, optional
            Where to write the page; without one it is returned.

        Returns
        -------
        str or None
            The page, if no path was given.

        Examples
        --------
        >>> import mixgrad
        >>> with mixgrad.Tape() as tape:
        ...     x = tape.watch(3.0)
        ...     y = x * x
        >>> tape.to_html().splitlines()[0]
        '<!DOCTYPE html>'
        """
        from mixgrad.debug import view  # noqa: PLC0415  few programs look at a tape

        return view.page(self, path)

    def __repr__(self) -> str:
        from mixgrad.debug import view  # noqa: PLC0415  few programs look at a tape

        return view.summary(self)

    def __str__(self) -> str:
        from mixgrad.debug import view  # noqa: PLC0415  few programs look at a tape

        return view.table(self)

    def _repr_html_(self) -> str:
        from mixgrad.debug import view  # noqa: PLC0415  few programs look at a tape

        return view.notebook(self)


def watch_all(window: _core.Window, value: Any, name: str) -> Any:
    """`value` with its leaves watched; an error says which leaf cannot be."""
    leaves, structure = flatten(value)
    watched = []
    for i, leaf in enumerate(leaves):
        try:
            watched.append(window.watch(leaf))
        except TypeError as error:
            if structure is not ONE and hasattr(error, "add_note"):
                error.add_note(f"This is {name}{paths(value)[i]}.")
            raise
    return structure.unflatten(watched)


def check_unconnected(unconnected: str) -> None:
    if unconnected not in get_args(Unconnected):
        raise ValueError(f'unconnected must be "zero", "none" or "error", not {unconnected!r}')


def check_recorded(window: _core.Window, leaves: Sequence[Any], role: str, container: Any) -> None:
    """Refuses a target or source that is not on this tape."""
    for i, leaf in enumerate(leaves):
        if type(leaf) is _core.Array and window.depends(leaf):
            continue
        name = role if len(leaves) == 1 else f"{role} {paths(container)[i]}"
        if type(leaf) is _core.Array:
            raise NotRecordedError(
                f"the {name} is an Array of shape {leaf.shape} that this tape has not recorded: it comes from another tape, from "
                "before what it was computed from was watched, from after recording stopped, or from before a reset. "
                "Compute it from what tape.watch(...) returned, inside the with block"
            )
        found = (
            f"a {type(leaf).__name__} of shape {leaf.shape}"
            if isinstance(leaf, np.ndarray)
            else f"a {type(leaf).__name__}"
        )
        advice = (
            "Pass what tape.watch(...) returned"
            if role == "source"
            else "It was computed from no watched value, or by code that turned Arrays into plain numbers (np.asarray, float)"
        )
        raise NotRecordedError(f"the {name} is {found}, which no tape records. {advice}")


def upstream(targets: Sequence[Any], structure: Any, gradients: Any) -> list[Any]:
    """What arrives at each target, checked against it; None for ones."""
    if gradients is None:
        for target in targets:
            if target.dtype.kind == "c":
                raise TargetError(
                    f"the target is complex (dtype {target.dtype}), and the gradient of a complex number has no one meaning; "
                    "take its real part, or pass output_gradients"
                )
        return [None] * len(targets)
    leaves, found = flatten(gradients)
    if found != structure:
        raise GradientShapeError(
            f"the gradients that arrive must be given as the targets are: {structure} was expected, {found} found"
        )
    return [match(leaf, target) for leaf, target in zip(leaves, targets, strict=True)]


def match(gradient: Any, like: Any, what: str = "the gradient that arrives at the target") -> Any:
    """`gradient` as an array of the shape and dtype of `like`; refused when it has another meaning."""
    if gradient is None:
        return None
    if type(gradient) is not _core.Array:
        gradient = np.asarray(gradient)
    if gradient.shape != like.shape:
        raise GradientShapeError(f"{what} has shape {gradient.shape}; it must have the shape {like.shape}")
    if gradient.dtype == like.dtype:
        return gradient
    if gradient.dtype.kind not in "biufc":
        raise GradientDtypeError(f"{what} has dtype {gradient.dtype}; it must be an array of numbers")
    if gradient.dtype.kind == "c" and like.dtype.kind != "c":
        raise GradientDtypeError(f"{what} has dtype {gradient.dtype}, and {like.dtype} is real; pass its real part")
    return gradient.astype(like.dtype)


def zeros_like(source: Any, leading: tuple[int, ...] = ()) -> Any:
    """Zeros of the source's shape and dtype, a NumPy scalar for no dimensions."""
    return np.zeros(leading + source.shape, source.dtype)[()]


def connect(
    gradients: list[Any], sources: Sequence[Any], unconnected: str, container: Any, leading: tuple[int, ...] = ()
) -> list[Any]:
    """The gradients, with what the user asked for where there is none."""
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            continue
        if unconnected == "zero":
            gradients[i] = zeros_like(sources[i], leading)
        elif unconnected == "error":
            name = f"source {paths(container)[i]}" if len(sources) > 1 else "source"
            raise UnconnectedError(
                f"the target does not depend on the {name} (shape {sources[i].shape}, dtype {sources[i].dtype}); "
                'pass unconnected="zero" or "none" if it need not'
            )
    return gradients


def jacobian_blocks(
    window: _core.Window, target: _core.Array, sources: Sequence[_core.Array], *, keep: bool
) -> list[Any]:
    """For each source the gradients of all elements of `target`, stacked; None where it is not connected."""
    count = target.size
    rows: list[list[Any]] = [[] for _ in sources]
    for i in range(count):
        one = np.zeros(count, target.dtype)
        one[i] = 1
        found = window.gradient([target], list(sources), [one.reshape(target.shape)], keep or i + 1 < count)
        for row, gradient in zip(rows, found, strict=True):
            row.append(gradient)
    return [_stack(row, target.shape, source) for row, source in zip(rows, sources, strict=True)]


def _stack(rows: list[Any], leading: tuple[int, ...], source: _core.Array) -> Any:
    if all(row is None for row in rows):
        return None
    rows = [zeros_like(source) if row is None else row for row in rows]
    if any(type(row) is _core.Array for row in rows):
        return mnp.reshape(mnp.stack(rows), leading + source.shape)
    return np.stack(rows).reshape(leading + source.shape)


def plain(value: Any) -> Any:
    """What the user gets of an Array: itself while a tape records it, else an ndarray of its own or a NumPy scalar."""
    if type(value) is not Array or is_recorded(value):
        return value
    array = numbers_of(value)
    return array.copy() if array.ndim else array[()]
