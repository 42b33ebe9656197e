# SPDX-License-Identifier: Apache-2.0
"""The registry's Python face: register ops and gradients, override and prefer implementations, ask why one runs."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Literal, NamedTuple, TypeVar, cast, overload

import numpy as np

from mixgrad import _core, plugins
from mixgrad._core import Op
from mixgrad.errors import GradientCountError, RegistrationError, UnknownOpError, UnsupportedError

__all__ = [
    "ArrayInfo",
    "Metadata",
    "Op",
    "Registry",
    "Sample",
    "op",
    "override_gradient",
    "prefer",
    "register_gradient",
    "register_op",
    "registry",
    "unregister",
]

Language = Literal["native", "python"]
Function = TypeVar("Function", bound=Callable[..., Any])

_LANGUAGES: tuple[Language, Language] = ("native", "python")
_ALL_BITS = 0xFFFFFFFF
_OUTPUT_BIT = 1 << 31
_LAST_INPUT_BIT = 30


class Sample:
    """The arguments of one call of an op, for the generated tests.

    Parameters
    ----------
    *args
        Positional arguments: array inputs, and attributes in the op's order.
    **attributes
        Arguments by name.

    Examples
    --------
    >>> Sample([1.0, 2.0], axis=0)
    Sample([1.0, 2.0], axis=0)
    """

    __slots__ = ("args", "attributes")

    def __init__(self, *args: Any, **attributes: Any) -> None:
        self.args = args
        self.attributes = attributes

    def __repr__(self) -> str:
        parts = [repr(arg) for arg in self.args] + [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"Sample({', '.join(parts)})"


class ArrayInfo(NamedTuple):
    """What a condition (``when=``) sees of an array: never its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool


class Metadata:
    """What a condition (``when=``) is called with.

    Attributes
    ----------
    name : str
        The op's name.
    inputs, outputs, gradients : tuple of ArrayInfo
        The inputs, the outputs, and the gradients of the outputs.
    attributes : dict
        All other arguments.
    """

    __slots__ = ("attributes", "gradients", "inputs", "name", "outputs")

    def __init__(
        self,
        name: str,
        inputs: Iterable[tuple[Any, ...]],
        outputs: Iterable[tuple[Any, ...]],
        gradients: Iterable[tuple[Any, ...]],
        attributes: dict[str, Any],
    ) -> None:
        self.name = name
        self.inputs = tuple(ArrayInfo(*info) for info in inputs)
        self.outputs = tuple(ArrayInfo(*info) for info in outputs)
        self.gradients = tuple(ArrayInfo(*info) for info in gradients)
        self.attributes = attributes


# --- where something was written -------------------------------------------------------------------------------------


def _origin(function: Any) -> str:
    """File and line of a function, for messages."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{getattr(function, '__name__', type(function).__name__)}"


def caller(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    # A context manager's own frames say nothing to a user.
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# --- ops -------------------------------------------------------------------------------------------------------------


class _Parameters:
    """How a forward's parameters divide into array inputs and attributes."""

    def __init__(self, forward: Callable[..., Any], inputs: str | Sequence[str] | None, name: str) -> None:
        self.variadic = isinstance(inputs, str) and inputs.startswith("*")
        self.rows: list[tuple[str, bool, int, bool, bool, Any]] = []
        self.inputs: list[str] = []
        self.attributes: list[str] = []
        if isinstance(forward, np.ufunc):
            self.inputs = ["x", "y", "z"][: forward.nin] if inputs is None else list(inputs)
            self.rows = [(parameter, True, i, False, False, None) for i, parameter in enumerate(self.inputs)]
            return
        declared: list[str] | None
        if inputs is None:
            declared = None
        elif isinstance(inputs, str):
            declared = [inputs.lstrip("*")]
        else:
            declared = list(inputs)
        for parameter, keyword_only, has_default, default in _parameters_of(forward, name):
            is_input = parameter in declared if declared is not None else not (has_default or keyword_only)
            target = self.inputs if is_input else self.attributes
            self.rows.append((parameter, is_input, len(target), keyword_only, has_default, default))
            target.append(parameter)
        missing = [] if declared is None else [i for i in declared if i not in self.inputs]
        if missing:
            msg = f"op '{name}': inputs={inputs!r} names {missing[0]!r}, which the forward ({_origin(forward)}) does not take"
            raise RegistrationError(msg)
        if not self.inputs:
            msg = (
                f"op '{name}': the forward ({_origin(forward)}) has no array input. Parameters without a default are inputs; "
                "name others with inputs=(...)"
            )
            raise RegistrationError(msg)


def _parameters_of(forward: Callable[..., Any], name: str) -> Iterator[tuple[str, bool, bool, Any]]:
    """Name, keyword-only, has a default, and the default of each parameter."""
    code = getattr(forward, "__code__", None)
    if isinstance(code, CodeType) and not hasattr(forward, "__wrapped__") and not code.co_flags & 0x0C:
        # Read off the code object: a hundred times cheaper than inspect.signature, and mixgrad has many ops.
        names = code.co_varnames
        defaults = getattr(forward, "__defaults__", None) or ()
        keyword_defaults = getattr(forward, "__kwdefaults__", None) or {}
        first = code.co_argcount - len(defaults)
        for i in range(code.co_argcount):
            yield names[i], False, i >= first, defaults[i - first] if i >= first else None
        for parameter in names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
            yield parameter, True, parameter in keyword_defaults, keyword_defaults.get(parameter)
        return
    for given in inspect.signature(forward).parameters.values():
        if given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD):
            msg = (
                f"op '{name}': the forward ({_origin(forward)}) takes *args or **kwargs, so its inputs and attributes cannot be "
                'told apart. Name each parameter; a list of arrays is one parameter with inputs="*name"'
            )
            raise RegistrationError(msg)
        has_default = given.default is not given.empty
        yield (
            given.name,
            given.kind is given.KEYWORD_ONLY,
            has_default,
            given.default if has_default else None,
        )


def _reads(saves: str | Sequence[str], parameters: _Parameters, name: str) -> list[int]:
    """For each input, the bits of what its gradient reads."""
    if isinstance(saves, str):
        saves = [saves] * (1 if parameters.variadic else len(parameters.inputs))
    elif len(saves) != len(parameters.inputs):
        msg = f"op '{name}': saves lists {len(saves)} entries; give one per input, of which there are {len(parameters.inputs)}"
        raise RegistrationError(msg)
    every_input = _ALL_BITS & ~_OUTPUT_BIT
    reads = []
    for words in saves:
        bits = 0
        for word in words.split():
            if word in ("output", "out", "outputs"):
                bits |= _OUTPUT_BIT
            elif word == "inputs":
                bits |= every_input
            elif word in parameters.inputs:
                bits |= every_input if parameters.variadic else 1 << min(parameters.inputs.index(word), _LAST_INPUT_BIT)
            else:
                known = ", ".join(repr(i) for i in [*parameters.inputs, "inputs", "output"])
                msg = f"op '{name}': saves={words!r} names {word!r}; known are {known}, or nothing at all"
                raise RegistrationError(msg)
        reads.append(bits)
    return reads


def _preferences() -> dict[str, int]:
    """What MIXGRAD_PREFER says: ``python``, ``python:mul,exp`` or several such parts, separated by semicolons."""
    preferences: dict[str, int] = {}
    for part in os.environ.get("MIXGRAD_PREFER", "").split(";"):
        language, _, names = part.strip().partition(":")
        if not language:
            continue
        if language not in _LANGUAGES:
            msg = f"MIXGRAD_PREFER={os.environ['MIXGRAD_PREFER']!r}: {language!r} is no language; write python:mul,exp or native"
            raise RegistrationError(msg)
        for name in names.split(",") if names else ["*"]:
            preferences[name.strip()] = _LANGUAGES.index(language)
    return preferences


def _promotions() -> dict[str, str]:
    """What MIXGRAD_PROMOTION says: ``mul=shadow,exp=off``."""
    promotions = {}
    for part in filter(None, (part.strip() for part in os.environ.get("MIXGRAD_PROMOTION", "").split(","))):
        name, equals, state = part.partition("=")
        if not equals or state.strip() not in ("off", "shadow", "on"):
            msg = f"MIXGRAD_PROMOTION={os.environ['MIXGRAD_PROMOTION']!r}: {part!r} is not of the form OP=off, shadow or on"
            raise RegistrationError(msg)
        promotions[name.strip()] = state.strip()
    return promotions


_PREFERRED = _preferences()
_PROMOTED = _promotions()


def _protocol() -> Any:
    # Late: the protocol's own module is built from ops.
    from mixgrad import protocol  # noqa: PLC0415

    return protocol


promotion_states: dict[Op, str] = {}
"""The promotion state of each op for which one was set."""


def _promote(target: Op, state: str) -> None:
    """What MIXGRAD_PROMOTION says of an op that has no gradients yet."""
    promotion_states[target] = state
    origin = "MIXGRAD_PROMOTION"

    def in_the_shadow(call: _core.Entry, g: Any) -> Any:
        # Late: what compares gradients stands on the registry.
        from mixgrad.migrate.promotion import set_promotion  # noqa: PLC0415

        set_promotion(target, "shadow", origin=origin)
        return call.next(g)

    if state != "on":
        gradient = in_the_shadow if state == "shadow" else None
        _core.set_standing(target, (None, *record(target, language="python", gradient=gradient, origin=origin)))


def _make(
    forward: Callable[..., Any],
    *,
    name: str | None,
    aliases: Sequence[str],
    inputs: str | Sequence[str] | None,
    saves: str | Sequence[str],
    broadcasts: bool | None,
    multiple: bool,
    differentiable: bool,
    samples: Callable[[], Iterable[Sample]] | None,
    numpy: Any,
    replace: bool,
    native: str | None = None,
) -> Op:
    if not callable(forward):
        msg = f"a forward is a function on ndarrays or a NumPy ufunc, not {forward!r}"
        raise RegistrationError(msg)
    is_ufunc = isinstance(forward, np.ufunc)
    if name is None:
        name = forward.__name__
    parameters = _Parameters(forward, inputs, name)
    preferred = _PREFERRED.get("*", -1)
    for known in (name, *aliases):
        preferred = _PREFERRED.get(known, preferred)
    replaced = _core.find_op(name) if replace and _core.has_op(name) else None
    made = _core.register_op(
        name,
        list(aliases),
        parameters.rows,
        parameters.inputs,
        parameters.attributes,
        parameters.variadic,
        is_ufunc if broadcasts is None else broadcasts,
        multiple,
        differentiable,
        _reads(saves, parameters, name),
        None if native else forward,
        is_ufunc and not multiple,
        native or (f"numpy.{name}" if is_ufunc else _origin(forward)),
        preferred,
        replace,
    )
    made.forward = forward
    made.samples = samples
    state = next((_PROMOTED[known] for known in (name, *aliases) if known in _PROMOTED), None)
    if state is not None:
        _promote(made, state)
    if replaced is not None:
        _protocol().put_in_place(replaced, made)
    made.numpy = tuple(numpy) if isinstance(numpy, (tuple, list)) else (numpy,)
    # An op of one's own over a ufunc does not take np.exp from the op that stands for it, unless told to (numpy=).
    if is_ufunc and not _protocol().is_taken(forward):
        made.numpy = (forward, *made.numpy)
    if made.numpy:
        _protocol().stand_for(made, *made.numpy)
    made.__doc__ = forward.__doc__
    made.__module__ = getattr(forward, "__module__", None) or "mixgrad.ops"
    return made


@overload
def op(
    forward: Callable[..., Any],
    *,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    inputs: str | Sequence[str] | None = ...,
    saves: str | Sequence[str] = ...,
    broadcasts: bool | None = ...,
    multiple: bool = ...,
    differentiable: bool = ...,
    samples: Callable[[], Iterable[Sample]] | None = ...,
    numpy: Any = ...,
    replace: bool = ...,
) -> Op: ...
@overload
def op(
    forward: None = None,
    *,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    inputs: str | Sequence[str] | None = ...,
    saves: str | Sequence[str] = ...,
    broadcasts: bool | None = ...,
    multiple: bool = ...,
    differentiable: bool = ...,
    samples: Callable[[], Iterable[Sample]] | None = ...,
    numpy: Any = ...,
    replace: bool = ...,
) -> Callable[[Callable[..., Any]], Op]: ...
def op(
    forward: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    inputs: str | Sequence[str] | None = None,
    saves: str | Sequence[str] = "inputs output",
    broadcasts: bool | None = None,
    multiple: bool = False,
    differentiable: bool = True,
    samples: Callable[[], Iterable[Sample]] | None = None,
    numpy: Any = (),
    replace: bool = False,
) -> Op | Callable[[Callable[..., Any]], Op]:
    """Make an op of a forward, and register it. Called directly, or as a decorator.

    Parameters
    ----------
    forward : numpy.ufunc or callable
        Computes the output from plain ndarrays. Its parameters without a default are the array inputs, all others are
        attributes.
    name : str, optional
        The op's name; the forward's by default.
    aliases : sequence of str
        Other names for it.
    inputs : str or sequence of str, optional
        The names of the array inputs, where defaults do not tell; ``"*arrays"`` for one parameter that is a sequence of
        arrays.
    saves : str or sequence of str
        What the gradients read, so that nothing else is kept: words among the inputs' names, ``inputs`` and ``output``; a
        list gives it for each input's gradient. Shapes and dtypes can always be read.
    broadcasts : bool, optional
        Whether a gradient may have the output's shape, to be summed by the engine. True for ufuncs.
    multiple : bool
        Whether the forward returns a tuple of arrays.
    differentiable : bool
        False: the op gives plain NumPy results and is not recorded.
    samples : callable, optional
        Returns sample calls (`Sample`) for the generated tests.
    numpy : callable or tuple of callables
        The NumPy functions that run this op when they meet an Array.
    replace : bool
        Whether an op of the same name may be replaced.

    Returns
    -------
    Op
        The op, which is called as the forward is. Give it gradients with ``Op.gradient``.

    Raises
    ------
    DuplicateRegistrationError
        A name is taken.
    RegistrationError
        The forward or the declarations do not make an op.

    Examples
    --------
    >>> import numpy as np
    >>> import mixgrad
    >>> @mixgrad.op(saves="x")
    ... def cube(x):
    ...     return x**3
    >>> cube.gradient(lambda g, x, out: g * 3 * x**2)
    <mixgrad.Op 'cube'>
    >>> float(mixgrad.grad(cube)(2.0))
    12.0
    >>> mixgrad.unregister("cube")
    """

    def make(function: Callable[..., Any]) -> Op:
        return _make(
            function,
            name=name,
            aliases=aliases,
            inputs=inputs,
            saves=saves,
            broadcasts=broadcasts,
            multiple=multiple,
            differentiable=differentiable,
            samples=samples,
            numpy=numpy,
            replace=replace,
        )

    return make if forward is None else make(forward)


def declare_native(
    name: str, signature: str, doc: str, saves: str, broadcasts: bool, multiple: bool, origin: str, replace: bool
) -> Op:
    """Register an op whose forward is native. Called by the core, for what C++ declares.

    Parameters
    ----------
    name, saves, broadcasts, multiple, replace
        As for `op`.
    signature : str
        The parameters, as they stand between the parentheses of a Python function.
    doc : str
        The docstring.
    origin : str
        The plug-in, with file and line.
    """
    names: dict[str, Any] = {}
    try:
        # A function to be read, never called: its signature is the op's.
        exec(f"def declared({signature}): ...", {"__builtins__": {}}, names)  # noqa: S102  its text comes with native code
    except (SyntaxError, NameError):
        msg = (
            f"op '{name}' ({origin}) is declared with the signature {signature!r}, which Python does not take; write parameters "
            'as in Python, defaults as literals, such as "x, y, axis=None, *, scale=1.0"'
        )
        raise RegistrationError(msg) from None
    stub = names["declared"]
    stub.__name__, stub.__doc__, stub.__module__ = name, doc, "mixgrad.ops"
    return _make(
        stub,
        name=name,
        aliases=(),
        inputs=None,
        saves=saves,
        broadcasts=broadcasts,
        multiple=multiple,
        differentiable=True,
        samples=None,
        numpy=(),
        replace=replace,
        native=origin,
    )


def register_op(name: str, **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Register a new op with a Python forward, by decorator. Takes the options of `op`.

    Parameters
    ----------
    name : str
        The op's name.
    **options
        As for `op`.

    Returns
    -------
    callable
        The decorator; it gives the `Op`.

    Examples
    --------
    >>> import numpy as np
    >>> import mixgrad
    >>> @mixgrad.register_op("softsign_example")
    ... def softsign(x):
    ...     return x / (1 + np.abs(x))
    >>> @mixgrad.register_gradient("softsign_example")
    ... def softsign_gradient(op, g):
    ...     (x,) = op.inputs
    ...     return g / (1 + abs(x)) ** 2
    >>> float(mixgrad.grad(softsign)(1.0))
    0.25
    >>> mixgrad.unregister("softsign_example")
    """
    if not isinstance(name, str):
        msg = (
            f'register_op is called with a name, @register_op("{getattr(name, "__name__", "name")}"), not with {name!r}'
        )
        raise RegistrationError(msg)
    make: Callable[[Callable[..., Any]], Op] = op(name=name, **options)
    return make


# --- gradients -------------------------------------------------------------------------------------------------------


def _passed(function: Callable[..., Any], target: Op, leading: int) -> list[int]:
    """The places of the attributes that a per-argument gradient names; checks that it takes what it is called with."""
    attributes: Sequence[str] = target.attributes
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return list(range(len(attributes)))
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < leading and not takes_any:
        shape = ", ".join(["g", *(["index", "*arrays"] if target.variadic else target.inputs), "out", *attributes])
        msg = (
            f"a gradient of op '{target.name}' given per input is called as ({shape}), but {_origin(function)} takes "
            f"{len(positional)} positional argument{'s' if len(positional) != 1 else ''}. A gradient of all inputs at once, (op, g), is "
            f'registered with @mixgrad.register_gradient("{target.name}")'
        )
        raise GradientCountError(msg)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(range(len(attributes)))
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} | {p.name for p in positional[leading:]}
    return [i for i, attribute in enumerate(attributes) if attribute in named]


def _gradient(
    self: Op,
    *functions: Callable[..., Any] | None,
    argument: int | None = None,
    differentiable: bool = True,
    when: Callable[[Metadata], bool] | None = None,
    replace: bool = False,
) -> Any:
    """Register the op's Python gradient.

    ``multiply.gradient(f, g)`` gives one function per input, called as ``(g, *inputs, out, **attributes)``; None says that an
    input's gradient is zero. ``@multiply.gradient()`` registers the whole gradient, called as ``(op, g)``;
    ``@multiply.gradient(argument=0)`` that of one input.

    Parameters
    ----------
    *functions : callable or None
        One per input; for an op on a list of arrays one for all, called as ``(g, index, *arrays, out, **attributes)``.
    argument : int, optional
        The input that the (one) function belongs to.
    differentiable : bool
        False: first order only; higher-order derivatives then use another implementation, or are an error.
    when : callable, optional
        A condition on the call's `Metadata`; outside it, this gradient declines.
    replace : bool
        Whether a gradient that is there may be replaced.

    Returns
    -------
    Op or decorator
    """

    def register_whole(function: Function) -> Function:
        _core.set_gradient(self, function, [], differentiable, when, _origin(function), False, replace)
        return function

    def register_one(function: Function | None) -> Function | None:
        index = cast(int, argument)
        passed = [] if function is None else _passed(function, self, len(self.inputs) + 2)
        origin = caller(2) if function is None else _origin(function)
        _core.set_gradient(self, None, [(index, function, passed)], differentiable, when, origin, False, replace)
        return function

    if not functions:
        return register_whole if argument is None else register_one
    if argument is not None:
        if len(functions) != 1:
            msg = f"op '{self.name}': argument={argument} takes one function, {len(functions)} were given"
            raise GradientCountError(msg)
        register_one(functions[0])
        return self
    expected = 1 if self.variadic else len(self.inputs)
    if len(functions) != expected:
        what = "one function for all of its list" if self.variadic else f"one per input ({', '.join(self.inputs)})"
        msg = f"op '{self.name}' takes {what}, but {len(functions)} gradient functions were given"
        raise GradientCountError(msg)
    leading = 3 if self.variadic else len(self.inputs) + 2
    rows = [(i, f, [] if f is None else _passed(f, self, leading)) for i, f in enumerate(functions)]
    first = next((f for f in functions if f is not None), None)
    origin = caller(2) if first is None else _origin(first)
    _core.set_gradient(self, None, rows, differentiable, when, origin, self.variadic, replace)
    return self


def _signature(self: Op) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if isinstance(self.forward, np.ufunc):
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.inputs])
    return inspect.signature(self.forward)


_core.install_op_methods({"gradient": _gradient, "__signature__": property(_signature)})


def register_gradient(
    name: str,
    *,
    argument: int | None = None,
    differentiable: bool = True,
    when: Callable[[Metadata], bool] | None = None,
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Register the Python gradient of an op found by name. A decorator; ``Op.gradient`` by another road.

    Parameters
    ----------
    name : str
        The op's name or alias.
    argument : int, optional
        Register the gradient of this input only, called as ``(g, *inputs, out, **attributes)``. By default the function is
        the whole gradient: called as ``(op, g)``, it returns one value per input.
    differentiable : bool
        False: first order only.
    when : callable, optional
        A condition on the call's `Metadata`.
    replace : bool
        Whether a gradient that is there may be replaced.

    Raises
    ------
    UnknownOpError
        No op has this name; the message gives near names.
    DuplicateRegistrationError
        The op has a Python gradient already; the message gives both places.

    Examples
    --------
    >>> import mixgrad
    >>> @mixgrad.register_op("product_example", broadcasts=True)
    ... def product(x, y):
    ...     return x * y
    >>> @mixgrad.register_gradient("product_example")
    ... def product_gradient(op, g):
    ...     x, y = op.inputs
    ...     return g * y, g * x
    >>> [float(g) for g in mixgrad.grad(product, (0, 1))(2.0, 5.0)]
    [5.0, 2.0]
    >>> mixgrad.unregister("product_example")
    """
    return registry[name].gradient(argument=argument, differentiable=differentiable, when=when, replace=replace)


def unregister(name: str, what: Literal["op", "forward", "gradient"] = "op", language: Language = "python") -> None:
    """Remove an op, or one implementation of it.

    Parameters
    ----------
    name : str
        The op's name or alias.
    what : {"op", "forward", "gradient"}
        What to remove.
    language : {"python", "native"}
        Whose forward or gradient.

    Raises
    ------
    UnknownOpError
        No op has this name, or it has no such implementation.
    """
    target = registry[name]
    if not _core.unregister(target, what, language):
        msg = f"op '{name}' has no {language} {what} to unregister"
        raise UnknownOpError(msg)
    if what == "op":
        _protocol().no_longer(target)


# --- overrides and preferences ---------------------------------------------------------------------------------------

_overrides: contextvars.ContextVar[tuple[Any, ...] | None] = contextvars.ContextVar("mixgrad_overrides", default=None)
_core.set_override_variable(_overrides)
_core.set_package_folder(os.path.dirname(__file__) + os.sep)  # noqa: PTH120  pathlib costs at import


def record(
    target: Op | None,
    *,
    language: Language | None = None,
    gradient: Callable[..., Any] | None = None,
    differentiable: bool = True,
    when: Callable[[Metadata], bool] | None = None,
    forward: Callable[..., Any] | None = None,
    origin: str,
) -> tuple[Any, ...]:
    """What is put in force, as the dispatcher reads it: for one op, or None for all.

    `gradient` is called as ``(op, g)`` in place of the gradient, `forward` as ``(op, language, inputs, outputs, where)``
    after a forward has run.
    """
    number = None if language is None else _LANGUAGES.index(language)
    return target, number, gradient, differentiable, when, origin, forward


@contextlib.contextmanager
def in_force(records: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """Put records before those in force in this context; counted, since the core looks only while there are any."""
    current = _overrides.get()
    for record in records:
        current = (current, *record)
    _core.overrides_changed(1)
    token = _overrides.set(current)
    try:
        yield
    finally:
        _core.overrides_changed(-1)
        _overrides.reset(token)


def override_gradient(
    name: str | Op,
    gradient: Callable[..., Any],
    *,
    differentiable: bool = True,
    when: Callable[[Metadata], bool] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Replace an op's gradient inside a ``with`` block, in this thread and asyncio task only.

    It holds for the ops recorded inside the block, and for gradients taken inside it. Inside the function,
    ``op.native(g)`` and ``op.python(g)`` call the gradients that are replaced, and ``op.next(g)`` what would run without
    the override: the gradient, or an outer override.

    Parameters
    ----------
    name : str or Op
        The op; an alias overrides the op it stands for.
    gradient : callable
        Called as ``(op, g)``; returns one value per input.
    differentiable : bool
        False: first order only; higher-order derivatives inside the block are then an error.
    when : callable, optional
        A condition on the call's `Metadata`; outside it, the override declines.

    Examples
    --------
    >>> import mixgrad
    >>> def shout(op, g):
    ...     print("mul:", float(g))
    ...     return op.native(g)
    >>> with mixgrad.override_gradient("mul", shout):
    ...     gradient = mixgrad.grad(lambda x: x * 3.0)(2.0)
    mul: 1.0
    >>> float(gradient)
    3.0
    """
    target = name if isinstance(name, Op) else registry[name]
    if not callable(gradient):
        msg = f"override_gradient('{target.name}', ...) takes a function (op, g), not {gradient!r}"
        raise RegistrationError(msg)
    origin = _origin(gradient)
    return in_force([record(target, gradient=gradient, differentiable=differentiable, when=when, origin=origin)])


def prefer(language: Language, *names: str | Op) -> contextlib.AbstractContextManager[None]:
    """Prefer one language's implementations inside a ``with`` block, in this thread and asyncio task only.

    Parameters
    ----------
    language : {"python", "native"}
        Which implementation runs where there is one that takes the call; otherwise the other one does.
    *names : str or Op
        For these ops only; all when none is given.

    Examples
    --------
    >>> import mixgrad
    >>> with mixgrad.prefer("python", "mul"):
    ...     print(float(mixgrad.grad(lambda x: x * x)(3.0)))
    6.0
    """
    if language not in _LANGUAGES:
        msg = f"prefer takes 'native' or 'python', not {language!r}"
        raise RegistrationError(msg)
    targets: list[Op | None] = [name if isinstance(name, Op) else registry[name] for name in names] or [None]
    origin = caller(2)
    return in_force([record(target, language=language, origin=origin) for target in targets])


# --- looking at it ---------------------------------------------------------------------------------------------------


class Registry(Mapping[str, Op]):
    """All ops by name. A mapping, which prints as a table.

    Examples
    --------
    >>> import mixgrad
    >>> mixgrad.registry["mul"]
    <mixgrad.Op 'multiply'>
    >>> "multiply" in mixgrad.registry
    True
    """

    def __getitem__(self, name: str) -> Op:
        if not _core.has_op(name):
            # A plug-in may bring it.
            plugins.load_plugins()
        return _core.find_op(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _core.has_op(name)

    def __iter__(self) -> Iterator[str]:
        return (o.name for o in _core.ops())

    def __len__(self) -> int:
        return len(_core.ops())

    def rows(self) -> list[dict[str, Any]]:
        """One row per op: its forwards and gradients, and which gradient would run.

        Returns
        -------
        list of dict
            With the keys op, aliases, forward, gradient, runs, native_calls, python_calls.

        Examples
        --------
        >>> import mixgrad
        >>> [row["runs"] for row in mixgrad.registry.rows() if row["op"] == "multiply"]
        ['native']
        """
        rows = []
        for o in _core.ops():
            has = _core.implementations(o)
            gradients = has["gradient"]
            runs = "-"
            if not o.differentiable:
                runs = "not differentiable"
            elif gradients:
                chosen = [c[0] for c in _core.explain_gradient(o, [], False) if c[3]]
                runs = chosen[0] if chosen else "-"
            rows.append(
                {
                    "op": o.name,
                    "aliases": o.aliases,
                    "forward": tuple(has["forward"]),
                    "gradient": tuple(gradients),
                    "runs": runs,
                    "native_calls": gradients.get("native", {}).get("calls", 0),
                    "python_calls": gradients.get("python", {}).get("calls", 0),
                }
            )
        return rows

    def __repr__(self) -> str:
        rows = [
            (r["op"], ", ".join(r["aliases"]), " + ".join(r["forward"]), " + ".join(r["gradient"]) or "-", r["runs"])
            for r in self.rows()
        ]
        header = ("op", "aliases", "forward", "gradient", "runs")
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [header, *rows]
        ]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

    def explain(self, name: str | Op, *inputs: Any, recorded: bool = False) -> str:
        """Say which gradient would run for an op, and why.

        Parameters
        ----------
        name : str or Op
            The op.
        *inputs : array_like
            Inputs of a call, whose dtypes and shapes the implementations are asked about. None: the general case.
        recorded : bool
            Ask for a backward pass that is itself recorded (higher-order derivatives).

        Returns
        -------
        str
            The candidates in order, each with the reason why it runs or not.

        Examples
        --------
        >>> import mixgrad
        >>> print(mixgrad.registry.explain("mul"))  # doctest: +ELLIPSIS
        op 'multiply' (aliases: mul)
          forward
            runs   native  numpy.multiply's own loops
                   python  numpy.multiply
          gradient
            runs   native  mixgrad (ops/math.cpp:...): the first that takes this call
                   python  ...: not needed: the one above runs
        """
        o = name if isinstance(name, Op) else self[name]
        has = _core.implementations(o)
        aliases = f" (aliases: {', '.join(o.aliases)})" if o.aliases else ""
        lines = [f"op '{o.name}'{aliases}", "  forward"]
        for i, (language, row) in enumerate(has["forward"].items()):
            lines.append(f"    {'runs ' if i == 0 else '     '}  {language}  {row['origin']}")
        lines.append("  gradient")
        if not o.differentiable:
            lines.append("    none: the op is declared not differentiable, and is not recorded")
            return "\n".join(lines)
        if inputs and not o.variadic and len(inputs) != len(o.inputs):
            msg = f"explain('{o.name}', ...) was given {len(inputs)} inputs; the op has {len(o.inputs)} ({', '.join(o.inputs)})"
            raise UnsupportedError(msg)
        for language, origin, verdict, chosen in _core.explain_gradient(o, list(inputs), recorded):
            place = f"{origin}: " if origin else ""
            lines.append(f"    {'runs ' if chosen else '     '}  {language}  {place}{verdict}")
        return "\n".join(lines)


registry = Registry()
