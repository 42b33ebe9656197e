# SPDX-License-Identifier: Apache-2.0
"""Runs a Python gradient on stand-ins that note what is done with them: the first half of its translation."""

from __future__ import annotations

import inspect
import operator
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad import numpy as mnp
from mixgrad.ops import reduce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

__all__ = ["HELPERS", "Node", "Traced", "Tracer", "UntranslatableError"]


class UntranslatableError(Exception):
    """The gradient does something that has no translation; the text says what."""


@dataclass(eq=False)
class Node:
    """One value of the program that is noted.

    Attributes
    ----------
    kind : str
        ``input``, ``output``, ``g``, ``constant``, ``attribute``, ``shape``, ``item``, ``call`` or ``gap``.
    name : str
        The name of the function, input, attribute or constant; why there is a gap.
    arguments, keywords
        Of a call: nodes, numbers, tuples of such.
    value : object
        What it was on this run.
    """

    kind: str
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    variable: str = ""


class _NamedFloat(float):
    """A number that the gradient's module has a name for."""

    node: Node


class TracedFloat(float):
    """A number that depends on an attribute."""

    node: Node

    @classmethod
    def of(cls, value: float, node: Node) -> Self:
        made = cls(value)
        made.node = node
        return made


class TracedInt(int):
    """An integer that depends on a shape or an attribute."""

    node: Node

    def __new__(cls, value: int, node: Node) -> Self:
        made = super().__new__(cls, value)
        made.node = node
        return made


def _number_operator(name: str, function: Callable[..., Any], swapped: bool) -> Callable[..., Any]:
    def run(self: Any, other: Any = None) -> Any:
        if not isinstance(other, (int, float, type(None))):
            return NotImplemented
        operands = [self] if other is None else [other, self] if swapped else [self, other]
        value = function(*map(_plain, operands))
        node = Node("call", name, tuple(map(node_of, operands)), value=value)
        return TracedInt(value, node) if isinstance(value, int) else TracedFloat.of(value, node)

    return run


for _kind in (TracedInt, TracedFloat):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "neg"):
        setattr(_kind, f"__{_name}__", _number_operator(_name, getattr(operator, _name), swapped=False))
        if _name != "neg":
            setattr(_kind, f"__r{_name}__", _number_operator(_name, getattr(operator, _name), swapped=True))


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: TracedInt, other: Any) -> Any:
        # 0 and 1 are what broadcasting and empty arrays ask for, and other sample calls show; any other length is a guess.
        if self.node.kind in ("item", "size") and type(other) is int and other not in (-1, 0, 1):
            raise UntranslatableError(f"a length is compared with {other}: control flow that depends on shapes")
        return function(int(self), other)

    return run


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(TracedInt, f"__{_name}__", _comparison(getattr(operator, _name)))
TracedInt.__hash__ = int.__hash__  # type: ignore[method-assign]


class TracedShape(tuple[Any, ...]):
    """The shape of an array, whole."""

    node: Node

    @classmethod
    def of(cls, shape: tuple[int, ...], node: Node) -> Self:
        made = cls(TracedInt(n, Node("item", str(i), (node,), value=n)) for i, n in enumerate(shape))
        made.node = node
        return made


def node_of(value: Any) -> Any:
    """What stands for a value in the program: a node, or the value itself."""
    if isinstance(value, (Traced, TracedInt, TracedFloat, TracedShape, _NamedFloat)):
        return value.node
    if isinstance(value, (tuple, list)):
        return tuple(map(node_of, value))
    return value


class Traced:
    """An array as a gradient sees it, that notes what is done with it."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def value(self) -> Any:
        return self.node.value

    @property
    def shape(self) -> TracedShape:
        return TracedShape.of(np.shape(self.value), Node("shape", "", (self.node,)))

    @property
    def ndim(self) -> TracedInt:
        return TracedInt(np.ndim(self.value), Node("ndim", "", (self.node,), value=np.ndim(self.value)))

    @property
    def size(self) -> TracedInt:
        return TracedInt(np.size(self.value), Node("size", "", (self.node,), value=np.size(self.value)))

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def T(self) -> Any:
        return call("transpose", np.transpose, self)

    def reshape(self, *shape: Any) -> Any:
        return call("reshape", mnp.reshape, self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any) -> Any:
        # C++ promotes as NumPy does, and the engine gives the result its dtype.
        return Traced(Node("call", "astype", (self.node,), value=self.value.astype(dtype)))

    def __getattr__(self, name: str) -> Any:
        function = getattr(mnp, name, None)
        if name.startswith("_") or not callable(function):
            raise UntranslatableError(f"an Array's `{name}` has no translation")
        return lambda *args, **kwargs: call(name, function, self, *args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return call("getitem", operator.getitem, self, index)

    def _refuse(self, what: str) -> Any:
        raise UntranslatableError(f"{what} of numbers that are known at run time only: data-dependent control flow")

    def __bool__(self) -> bool:
        return bool(self._refuse("the truth"))

    def __float__(self) -> float:
        return float(self._refuse("float()"))

    def __int__(self) -> int:
        return int(self._refuse("int()"))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._refuse("a loop over the items"))

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._refuse("np.asarray()")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__":
            raise UntranslatableError(f"np.{ufunc.__name__}.{method} has no translation")
        return call(ufunc.__name__, ufunc, *inputs, **keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call(function.__name__, function, *args, **kwargs)


def _operator(name: str, function: Callable[..., Any], swapped: bool) -> Callable[..., Any]:
    def run(self: Traced, *other: Any) -> Any:
        operands = (*other, self) if swapped else (self, *other)
        return call(name, function, *operands)

    return run


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "logical_and",
    "or": "logical_or",
}
for _name, _op in _OPERATORS.items():
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(Traced, f"__{_name}__", _operator(_op, _function, swapped=False))
    setattr(Traced, f"__r{_name}__", _operator(_op, _function, swapped=True))
for _name, _op in (
    ("lt", "less"),
    ("le", "less_equal"),
    ("gt", "greater"),
    ("ge", "greater_equal"),
    ("eq", "equal"),
    ("ne", "not_equal"),
):
    setattr(Traced, f"__{_name}__", _operator(_op, getattr(operator, _name), swapped=False))
for _name, _op in (("neg", "negative"), ("pos", "positive"), ("abs", "absolute"), ("invert", "logical_not")):
    setattr(Traced, f"__{_name}__", _operator(_op, getattr(operator, _name), swapped=False))


def _plain(value: Any) -> Any:
    """The value of this run, without stand-ins."""
    if isinstance(value, Traced):
        return value.value
    if isinstance(value, TracedInt):
        return int(value)
    if isinstance(value, (TracedFloat, _NamedFloat)):
        return float(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value)) if type(value) is list else tuple(map(_plain, value))
    return value


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) or (isinstance(value, (tuple, list)) and any(_holds(item, kinds) for item in value))


def call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function on this run's values, and notes it if a stand-in is among its arguments."""
    given = [*args, *kwargs.values()]
    if not any(_holds(one, (Traced, TracedInt, TracedShape)) for one in given):
        return function(*args, **kwargs)
    with np.errstate(all="ignore"):
        value = function(*map(_plain, args), **{key: _plain(one) for key, one in kwargs.items()})
    arguments = tuple(map(node_of, args))
    keywords = {key: node_of(one) for key, one in kwargs.items()}
    if isinstance(value, (np.ndarray, np.generic)) or _holds(list(given), (Traced,)):
        if isinstance(value, (tuple, list)):
            whole = Node("call", name, arguments, keywords, value=value)
            return [Traced(Node("item", str(i), (whole,), value=one)) for i, one in enumerate(value)]
        return Traced(Node("call", name, arguments, keywords, value=value))
    node = Node("call", name, arguments, keywords, value=value)
    if type(value) is int:
        return TracedInt(value, node)
    return TracedShape.of(value, node) if type(value) is tuple else value


HELPERS: dict[Any, str] = {reduce._kept: "kept", reduce._count: "count"}
"""Python helpers of gradients that C++ has under a name of its own."""


class _Module:
    """A module whose functions note their calls."""

    def __init__(self, module: Any, tracer: Tracer) -> None:
        self._module, self._tracer = module, tracer

    def __getattr__(self, name: str) -> Any:
        return self._tracer.wrap(name, getattr(self._module, name))


class Tracer:
    """Runs functions with their modules' functions and constants replaced by what notes their use."""

    def __init__(self) -> None:
        self._patched: dict[Any, Any] = {}
        self._codes: set[Any] = set()

    def wrap(self, name: str, value: Any) -> Any:
        """What stands for a global of a gradient."""
        if isinstance(value, types.ModuleType):
            return _Module(value, self) if value.__name__.partition(".")[0] in ("numpy", "mixgrad") else value
        if isinstance(value, _core.Op):
            return lambda *args, **kwargs: call(value.name, value, *args, **kwargs)
        if isinstance(value, types.FunctionType):
            if value in HELPERS:
                return lambda *args, **kwargs: call(HELPERS[value], value, *args, **kwargs)
            if (value.__module__ or "").partition(".")[0] != "numpy":
                return self.patch(value)
        if isinstance(value, type) or not callable(value):
            if type(value) is float:
                named = _NamedFloat(value)
                named.node = Node("constant", name, value=value)
                return named
            return value
        module = (getattr(value, "__module__", None) or "").partition(".")[0]
        if isinstance(value, np.ufunc) or module == "numpy":
            return lambda *args, **kwargs: call(value.__name__, value, *args, **kwargs)
        return value

    def patch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its globals and free variables wrapped, as are those of the functions that it calls."""
        if not isinstance(function, types.FunctionType):
            raise UntranslatableError(f"{function!r} is no Python function, so what it does cannot be noted")
        if function in self._patched:
            return self._patched[function]  # type: ignore[no-any-return]
        scope = dict(function.__globals__)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
        made.__kwdefaults__ = function.__kwdefaults__
        self._patched[function] = made
        for name in _names(function.__code__):
            if name in scope:
                scope[name] = self.wrap(name, scope[name])
        for name, cell, old in zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.wrap(name, old.cell_contents)
        self._codes.add(function.__code__)
        return made

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function, and notes which of its local variables hold what."""
        made = self.patch(function)
        outer = sys.getprofile()

        def note(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "return" and code in self._codes:
                given = code.co_argcount + code.co_kwonlyargcount
                for name, value in frame.f_locals.items():
                    if name in code.co_varnames[:given]:
                        continue
                    if isinstance(value, Traced) and value.node.kind == "call" and not value.node.variable:
                        value.node.variable = name

        sys.setprofile(note)
        try:
            return made(*args, **kwargs)
        finally:
            sys.setprofile(outer)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names(constant)
    return names
