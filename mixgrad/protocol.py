# SPDX-License-Identifier: Apache-2.0
"""NumPy's protocols for Arrays: which op or composition runs for which NumPy function.

``np.sin(x)`` reaches `array_ufunc`, ``np.concatenate([x, y])`` reaches `array_function`, and ``x.sum()`` goes the same way. An op
names the NumPy functions that it stands for (``op(..., numpy=np.concatenate)``); a function composed of ops is registered with
`implements`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mixgrad import _core
from mixgrad._core import Array
from mixgrad.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "array_function",
    "array_ufunc",
    "counterpart",
    "implements",
    "is_taken",
    "no_longer",
    "put_in_place",
    "stand_for",
]

Function = TypeVar("Function", bound="Callable[..., Any]")

# NumPy function -> the op or composition that runs when it meets an Array.
_table: dict[Any, Callable[..., Any]] = {}
# What stood there before another one was put in its place: it comes back when that one goes.
_before: dict[Any, list[Callable[..., Any]]] = {}

# NumPy's functions that look for __array_function__ among their arguments.
_Dispatched: type = type(np.concatenate)


# --- the table -------------------------------------------------------------------------------------------------------


def stand_for(implementation: Callable[..., Any], *functions: Any) -> None:
    """Let `implementation` run where one of these NumPy functions meets an Array.

    >>> import numpy as np
    >>> def spread(x, axis=None):
    ...     return x.max(axis=axis) - x.min(axis=axis)
    >>> stand_for(spread, np.nanmax)
    >>> no_longer(spread)
    """
    for function in functions:
        if function in _table:
            _before.setdefault(function, []).append(_table[function])
        _table[function] = implementation
    _forget_names(functions)


def no_longer(implementation: Callable[..., Any]) -> None:
    """Undo `stand_for`."""
    functions = [function for function, known in _table.items() if known is implementation]
    for function in functions:
        earlier = _before.get(function)
        if earlier:
            _table[function] = earlier.pop()
        else:
            del _table[function]
    for replaced in _before.values():
        if implementation in replaced:
            replaced.remove(implementation)
    _forget_names([*functions, implementation])


def _forget_names(values: Any) -> None:
    """Have mixgrad.numpy look these up again."""
    for name in ("mixgrad.numpy", "mixgrad.numpy.linalg"):
        if (module := sys.modules.get(name)) is not None:
            looked_up = vars(module).get("_looked_up", set())
            for known in [known for known in looked_up if any(vars(module)[known] is value for value in values)]:
                looked_up.discard(known)
                del vars(module)[known]


def put_in_place(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Let `new` run wherever `old` did.

    >>> import numpy as np
    >>> def one(x):
    ...     return x
    >>> def two(x):
    ...     return 2 * x
    >>> stand_for(one, np.nanmin)
    >>> put_in_place(one, two)
    >>> counterpart(np.nanmin) is np.nanmin, is_taken(np.nanmin)
    (True, True)
    >>> no_longer(two)
    >>> is_taken(np.nanmin)
    False
    """
    functions = [function for function, known in _table.items() if known is old]
    for function in functions:
        _table[function] = new
    for replaced in _before.values():
        replaced[:] = [new if known is old else known for known in replaced]
    _forget_names([*functions, old])


def is_taken(function: Any) -> bool:
    """Whether an op or composition stands for the NumPy function.

    >>> import numpy as np
    >>> is_taken(np.exp), is_taken(np.busday_count)
    (True, False)
    """
    return function in _table


def implements(*functions: Any) -> Callable[[Function], Function]:
    """Register a composition of ops for NumPy functions, by decorator. `mixgrad.numpy` then has it under their names.

    Parameters
    ----------
    *functions : callable
        NumPy's functions or ufuncs.

    Examples
    --------
    >>> import numpy as np
    >>> import mixgrad, mixgrad.numpy as mnp
    >>> @implements(np.trapezoid)
    ... def trapezoid(y, x=None, dx=1.0, axis=-1):
    ...     y = mnp.moveaxis(y, axis, -1)
    ...     step = dx if x is None else x[..., 1:] - x[..., :-1]
    ...     return mnp.sum(step * (y[..., 1:] + y[..., :-1]), axis=-1) / 2
    >>> mixgrad.grad(np.trapezoid)(np.array([1.0, 2.0, 4.0]))
    array([0.5, 1. , 0.5])
    >>> no_longer(trapezoid)
    """

    def register(composition: Function) -> Function:
        stand_for(composition, *functions)
        return composition

    return register


def counterpart(value: Any) -> Any:
    """What `mixgrad.numpy` has in the place of an attribute of NumPy.

    An op is called without a detour. A composition is reached through NumPy's own function where that looks for Arrays, so that
    on plain arrays it is NumPy to the letter.

    >>> import numpy as np
    >>> counterpart(np.add)
    <mixgrad.Op 'add'>
    >>> counterpart(np.vstack) is np.vstack, counterpart(np.pi) is np.pi
    (True, True)
    """
    if not callable(value):
        return value
    implementation = _table.get(value)
    if implementation is None or (type(value) is _Dispatched and not isinstance(implementation, _core.Op)):
        return value
    return implementation


# --- the protocols ---------------------------------------------------------------------------------------------------


def array_ufunc(array: Array, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """``Array.__array_ufunc__``: a ufunc, or one of its methods, met an Array."""
    for value in inputs:
        kind = type(value)
        if kind not in _OWN and _is_foreign(kind, "__array_ufunc__"):
            return NotImplemented
    if kwargs:
        kwargs = _without_out(ufunc, kwargs)
    if method != "__call__":
        return _ufunc_method(ufunc, method, inputs, kwargs)
    if "where" in kwargs and kwargs.pop("where") is not True:
        name = ufunc.__name__
        raise UnsupportedError(
            f"np.{name}: a ufunc's where= leaves elements undefined, so it cannot be used with an Array. Use "
            f"mixgrad.numpy.where(condition, np.{name}(...), other)"
        )
    implementation = _table.get(ufunc)
    if implementation is None:
        raise _unsupported(ufunc)
    return implementation(*inputs, **kwargs)


def array_function(array: Array, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """``Array.__array_function__``: a NumPy function met an Array."""
    for kind in types:
        if kind not in _OWN and _is_foreign(kind, "__array_function__"):
            return NotImplemented
    if "out" in kwargs:
        kwargs = _without_out(function, kwargs)
    implementation = _table.get(function)
    if implementation is not None:
        return implementation(*args, **kwargs)
    if function in _ON_VALUES:
        return function(*_values(args), **_values(kwargs))
    raise _unsupported(function)


_OWN = frozenset({Array, np.ndarray, np.float64, np.float32, float, int, bool, complex})


def _is_foreign(kind: type, protocol: str) -> bool:
    """Whether a type has a say of its own in NumPy's protocols."""
    return hasattr(kind, protocol) and not issubclass(kind, (np.ndarray, np.generic, Array))


def _ufunc_method(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if method == "outer" and ufunc in _table:
        first, second = (value if isinstance(value, Array) else np.asarray(value) for value in inputs)
        return _table[ufunc](first[(..., *(None,) * second.ndim)], second, **kwargs)
    reducing: dict[str, dict[np.ufunc, Any]] = {
        "reduce": {
            np.add: np.sum,
            np.multiply: np.prod,
            np.maximum: np.max,
            np.minimum: np.min,
            np.logical_and: np.all,
            np.logical_or: np.any,
        },
        "accumulate": {np.add: np.cumsum, np.multiply: np.cumprod},
    }
    function = reducing.get(method, {}).get(ufunc)
    if function in _table:
        return _table[function](inputs[0], *inputs[1:], **{"axis": 0, **kwargs})
    hint = "It changes its argument in place" if method == "at" else "Write it with ops of mixgrad.numpy"
    raise UnsupportedError(
        f"np.{ufunc.__name__}.{method} does not take an Array. {hint}; "
        "to use the values as constants, without a gradient, pass np.asarray(x)"
    )


def _without_out(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """`kwargs` without an ``out=`` that says nothing; any other is refused."""
    out = kwargs.get("out")
    if out is not None and not (isinstance(out, tuple) and all(value is None for value in out)):
        name = _name(function)
        raise UnsupportedError(
            f"{name}: out= cannot be used with an Array, because a gradient would not flow through an array that is written into. "
            f"Use the result, y = {name}(...); for an ndarray a, write a = a + x instead of a += x"
        )
    return {key: value for key, value in kwargs.items() if key != "out"}


def _name(function: Any) -> str:
    if isinstance(function, np.ufunc):
        return f"np.{function.__name__}"
    module = str(getattr(function, "__module__", "numpy")).replace("numpy", "np", 1)
    return f"{module}.{getattr(function, '__name__', function)}"


def _unsupported(function: Any) -> UnsupportedError:
    name = _name(function)
    if getattr(function, "__name__", "") in _IN_PLACE:
        return UnsupportedError(
            f"{name} changes an array in place, which an Array does not allow: what was recorded would no longer be true. Make a "
            "new one, for instance with mixgrad.numpy.where(mask, new, x)"
        )
    short = name.rpartition(".")[2]
    return UnsupportedError(
        f"{name} met an Array, and mixgrad has no gradient for it. Write it with functions of mixgrad.numpy; or register it, "
        f'@mixgrad.register_op("{short}", numpy={name}) above a forward on ndarrays and @mixgrad.register_gradient("{short}"); or, to use '
        "the values as constants, without a gradient, pass np.asarray(x)"
    )


_IN_PLACE = frozenset({"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask", "shuffle"})


# --- functions that ask about values or metadata, and give plain NumPy -------------------------------------------------

_ON_VALUES = frozenset(
    getattr(np, name)
    for name in (
        "allclose", "argpartition", "argsort", "argwhere", "array2string", "array_equal", "array_equiv",
        "array_repr", "array_str", "can_cast", "common_type", "digitize", "einsum_path", "empty_like",
        "flatnonzero", "isclose", "iscomplex", "iscomplexobj", "isin", "isneginf", "isposinf", "isreal",
        "isrealobj", "lexsort", "may_share_memory", "ndim", "nonzero", "ones_like", "result_type", "save",
        "savetxt", "searchsorted", "shape", "shares_memory", "size", "zeros_like",
    )
)  # fmt: skip


def _values(argument: Any) -> Any:
    """An argument with each Array replaced by its value."""
    if isinstance(argument, Array):
        return _core.value(argument)
    if type(argument) in (list, tuple):
        return type(argument)(_values(item) for item in argument)
    if type(argument) is dict:
        return {key: _values(item) for key, item in argument.items()}
    return argument


# --- methods of Array ------------------------------------------------------------------------------------------------


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        return array_function(self, function, (), (self, *args), kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"As ``numpy.{name}(x, ...)``."
    return method


def _refusal(name: str, instead: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"Array.{name} would change the Array in place, which is never done: {instead}")

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Refused: {instead}."
    return method


def _reshape(self: Array, *shape: Any, order: str = "C") -> Any:
    """As ``numpy.reshape(x, shape)``; the lengths may also be given one by one."""
    return _table[np.reshape](self, shape[0] if len(shape) == 1 else shape, order=order)


def _transpose(self: Array, *axes: Any) -> Any:
    """As ``numpy.transpose(x, axes)``; the axes may also be given one by one."""
    return _table[np.transpose](self, (axes[0] if len(axes) == 1 else axes) if axes else None)


def _flatten(self: Array, order: str = "C") -> Any:
    """The elements in one axis, as ``numpy.ravel(x)``."""
    return _table[np.ravel](self, order=order)


def _astype(
    self: Array, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
) -> Any:
    """This Array in another dtype. The gradient comes back in this one's."""
    if not np.can_cast(self.dtype, dtype, casting=casting):  # type: ignore[arg-type]
        msg = f"Cannot cast Array from {self.dtype!r} to {np.dtype(dtype)!r} according to the rule {casting!r}"
        raise TypeError(msg)
    return _core.find_op("astype")(self, dtype)


def _real(self: Array) -> Any:
    """The real part."""
    return _table[np.real](self)


def _imag(self: Array) -> Any:
    """The imaginary part."""
    return _table[np.imag](self)


def _matrix_transpose(self: Array) -> Any:
    """The transpose of the last two axes."""
    return _table[np.matrix_transpose](self)


def _compress(self: Array, condition: Any, axis: int | None = None) -> Any:
    """As ``numpy.compress(condition, x, axis)``."""
    return _table[np.compress](condition, self, axis=axis)


def _divmod(self: Array, other: Any) -> Any:
    return self // other, self % other


def _rdivmod(self: Array, other: Any) -> Any:
    return other // self, other % self


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    """The namespace of functions on Arrays, `mixgrad.numpy`."""
    import mixgrad.numpy  # noqa: PLC0415

    return mixgrad.numpy


_METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "clip", "cumprod", "cumsum", "diagonal", "dot",
    "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum",
    "swapaxes", "take", "trace", "var", "conj", "conjugate",
)  # fmt: skip

_core.install(
    array_ufunc=array_ufunc,
    array_function=array_function,
    methods={
        **{name: _method(name) for name in _METHODS},
        "__array_namespace__": _namespace,
        "__divmod__": _divmod,
        "__rdivmod__": _rdivmod,
        "astype": _astype,
        "compress": _compress,
        "flatten": _flatten,
        "imag": property(_imag),
        "mT": property(_matrix_transpose),
        "real": property(_real),
        "reshape": _reshape,
        "transpose": _transpose,
        **{name: _refusal(name, "make a new one with mixgrad.numpy.where") for name in ("fill", "put", "itemset")},
        **{name: _refusal(name, f"use mixgrad.numpy.{name}(x)") for name in ("sort", "partition")},
        "resize": _refusal("resize", "use mixgrad.numpy.pad or an index"),
    },
)
