# SPDX-License-Identifier: Apache-2.0
"""Translates Python gradients into C++: the block, its parity test, and the proof that both agree."""

from __future__ import annotations

import inspect
import json
import keyword
import os
import pickle
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad.errors import MissingGradientError
from mixgrad.migrate.tracing import Node, Traced, TracedFloat, TracedInt, Tracer, UntranslatableError
from mixgrad.registry import Sample, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mixgrad.registry import Op

__all__ = ["Scaffold", "scaffold", "translate"]

_OPERATORS = {
    "add": ("+", 5),
    "subtract": ("-", 5),
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "less": ("<", 4),
    "less_equal": ("<=", 4),
    "greater": (">", 4),
    "greater_equal": (">=", 4),
    "equal": ("==", 3),
    "not_equal": ("!=", 3),
    "logical_and": ("&", 2),
    "logical_or": ("|", 1),
}
_TRUTHS = {
    *(name for name, (_, level) in _OPERATORS.items() if level < 5),
    *("isnan", "isinf", "isfinite", "logical_not", "bitwise_and", "bitwise_or", "invert"),
}
"""What gives a truth for each element."""
_INTEGER_OPERATORS = {"add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "floordiv": ("/", 6), "mod": ("%", 6)}
_NUMBER_OPERATORS = {"add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "truediv": ("/", 6)}
_PREFIX = {"negative": "-", "logical_not": "!"}
_SAME = {"positive", "astype", "bitwise_not"}
_ALIASES = {
    "invert": "logical_not",
    "bitwise_not": "logical_not",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
}
_FUNCTIONS = {
    "conjugate": "conj",
    **{
        name: name
        for name in [
            "absolute",
            "arccos",
            "arccosh",
            "arcsin",
            "arcsinh",
            "arctan",
            "arctan2",
            "arctanh",
            "cbrt",
            "ceil",
            "conj",
            "cos",
            "cosh",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "fmax",
            "fmin",
            "hypot",
            "imag",
            "isfinite",
            "isinf",
            "isnan",
            "log",
            "log10",
            "log1p",
            "log2",
            "logaddexp",
            "logaddexp2",
            "maximum",
            "minimum",
            "power",
            "real",
            "reciprocal",
            "relu",
            "rint",
            "sigmoid",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "square",
            "tan",
            "tanh",
            "trunc",
            "where",
        ]
    },
}
"""Functions that C++ has for arrays; all of them take arrays alone."""
_FUSED = {**_FUNCTIONS, "absolute": "abs"}
"""Functions that C++ has for the numbers of a loop too."""
_SYMMETRIC = {"fmax", "fmin", "logaddexp", "logaddexp2", "maximum", "minimum"}
"""Those of them that need one of the loop's own numbers in the first place."""
_COMPLEX = {
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "conj", "conjugate", "cos", "cosh", "exp", "exp2"),
    *("expm1", "log", "log10", "log1p", "log2", "power", "reciprocal", "sign", "sin", "sinh", "sqrt", "square", "tan"),
    *("tanh", "where"),
}
"""Those of them that it has for the complex numbers of a loop."""
_WIDTH = 100
_WORDS = frozenset(
    [
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "operator",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "op",
        "g",
    ]
)


# --- one traced call ----------------------------------------------------------------------------------------------------


@dataclass
class _Program:
    """What a gradient did on one sample: an expression per input; None is zero, a text says why there is none."""

    results: list[Node | str | None]
    attributes: dict[str, Any]
    looked_at: set[str]
    inputs: list[Any]
    outputs: tuple[Any, ...]
    varied: bool
    body: str = ""

    @property
    def complex(self) -> bool:
        return any(x.dtype.kind == "c" for x in (*self.inputs, *self.outputs))


class _Attributes(Mapping[str, Any]):
    """Attributes, and which of them were looked at."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self.looked_at: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            self.looked_at.add(name)
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


class _Entry:
    """The ``op`` of a gradient of all inputs at once."""

    def __init__(self, op: Op, inputs: list[Traced], outputs: Any, attributes: Mapping[str, Any]) -> None:
        self.name, self.inputs, self.attributes = op.name, tuple(inputs), attributes
        self.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        self.output = self.outputs[0]

    def needs_gradient(self, _: int) -> bool:
        return True


def _trace(op: Op, sample: Sample, *, varied: bool = False) -> _Program:
    bound = _bound(op, sample)
    inputs = [np.asarray(bound.arguments[name]) for name in op.inputs]
    inputs = [x.astype(np.float64) if x.dtype.kind in "iu" and i == 0 else x.view() for i, x in enumerate(inputs)]
    for x in inputs:
        # As on the tape.
        x.flags.writeable = False
    given = {name: bound.arguments[name] for name in op.attributes}
    with np.errstate(all="ignore"):
        found = op(*inputs, **given) if not isinstance(op.forward, np.ufunc) else op(*inputs)
    found = tuple(np.asarray(y) for y in (found if isinstance(found, (tuple, list)) else (found,)))
    arguments = [
        Traced(Node("input", name, (i,), value=x)) for i, (name, x) in enumerate(zip(op.inputs, inputs, strict=True))
    ]
    outputs = tuple(Traced(Node("output", str(i), value=y)) for i, y in enumerate(found))
    rng = np.random.default_rng(0)
    upstream = tuple(
        Traced(Node("g", str(i), value=rng.uniform(0.5, 1.5, y.shape).astype(y.dtype))) for i, y in enumerate(found)
    )
    out, g = (outputs, upstream) if op.multiple else (outputs[0], upstream[0])
    attributes = _Attributes({name: _attribute(name, value) for name, value in given.items()})
    results = _results(op, arguments, out, g, attributes)
    return _Program(results, given, attributes.looked_at, inputs, found, varied)


def _bound(op: Op, sample: Sample) -> inspect.BoundArguments:
    bound = inspect.signature(op).bind(*sample.args, **sample.attributes)
    bound.apply_defaults()
    return bound


# --- the same call, a little different ----------------------------------------------------------------------------------

_CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda a: np.resize(np.roll(a, 1), [n + (n > 1) for n in a.shape]),
    lambda a: np.resize(np.roll(a, 1), [n + (n > 0) for n in a.shape]),
    lambda a: np.stack([a, a]),
    lambda a: a.astype(np.float32) if a.dtype == np.float64 else a,
    lambda a: a * (1 + 0.25j) if a.dtype.kind == "f" else a,
)
"""Longer axes and other numbers, one axis more, single precision, complex numbers."""
_OTHERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    bool: lambda value: (not value,),
    int: lambda value: (value + 1, value - 1),
    float: lambda value: (1.25 * value + 0.25,),
    type(None): lambda _: (0, 0.5, True),
}
"""Other values of an attribute."""


def variations(op: Op, sample: Sample, attributes: Iterable[str]) -> Iterator[Sample]:
    """Calls that differ from a sample in one respect. The op may refuse some of them."""
    arguments = _bound(op, sample).arguments
    for change in _CHANGES:
        yield Sample(
            **{
                name: change(np.asarray(value)) if name in op.inputs or isinstance(value, np.ndarray) else value
                for name, value in arguments.items()
            }
        )
    for name in attributes:
        for other in _OTHERS.get(type(arguments[name]), lambda _: ())(arguments[name]):
            yield Sample(**{**arguments, name: other})


def _programs(op: Op, samples: Iterable[Sample]) -> Iterator[_Program]:
    """What the gradient does on the samples and on their variations: what decides about it must show as a difference."""
    for sample in samples:
        try:
            program = _trace(op, sample)
        except (TypeError, ValueError, FloatingPointError):
            # Samples of another dtype than the op takes with plain arrays.
            continue
        yield program
        for variation in variations(op, sample, sorted(program.looked_at)):
            try:
                yield _trace(op, variation, varied=True)
            except Exception:  # noqa: BLE001, S112  the op itself refuses what makes no sense
                continue


def _attribute(name: str, value: Any) -> Any:
    if type(value) is int:
        return TracedInt(value, Node("attribute", name, value=value))
    if type(value) is float:
        return TracedFloat.of(value, Node("attribute", name, value=value))
    return value


def _results(op: Op, inputs: list[Traced], out: Any, g: Any, attributes: _Attributes) -> list[Node | str | None]:
    """What is returned for each input."""
    whole, functions = _python_gradient(op)
    tracer = Tracer()
    if whole is not None:
        try:
            returned = tracer.run(whole, _Entry(op, inputs, out, attributes), g)
        except Exception as error:  # noqa: BLE001  whatever stops it is the gap
            return [_gap(error)] * len(inputs)
        returned = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [_result(one) for one in returned]
    results: list[Node | str | None] = []
    for function in functions:
        if function is None:
            results.append(None)
            continue
        parameters = inspect.signature(function).parameters
        taken = {name: attributes[name] for name in attributes if name in parameters}
        try:
            results.append(_result(tracer.run(function, g, *inputs, out, **taken)))
        except Exception as error:  # noqa: BLE001  whatever stops it is the gap
            results.append(_gap(error))
    return results


def _python_gradient(op: Op) -> tuple[Callable[..., Any] | None, list[Callable[..., Any] | None]]:
    found = _core.python_gradient(op)
    if found is None:
        raise MissingGradientError(
            f"op '{op.name}' has no Python gradient of all its inputs to translate; register one with "
            f'@mixgrad.register_gradient("{op.name}")'
        )
    return found


def _result(value: Any) -> Node | str | None:
    if value is None or isinstance(value, Traced):
        return None if value is None else value.node
    return f"it returns {value!r:.80}, which does not depend on g"


def _gap(error: Exception) -> str:
    return str(error) if isinstance(error, UntranslatableError) else f"{type(error).__name__}: {error}"


# --- writing C++ --------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes the expressions of one gradient, and the statements that they need before them."""

    def __init__(self, op: Op, attributes: dict[str, Any], *, fused: bool) -> None:
        self.op, self.attributes, self.fused = op, attributes, fused
        self.statements: list[str] = []
        self.constants: dict[str, float] = {}
        self.reads: set[str] = set()
        self.functions: set[str] = set()
        self._texts: dict[Node, str] = {}
        self._written: dict[str, str] = {}
        self._uses: dict[Node, int] = {}
        self._taken = {_name(name) for name in op.inputs} | {"g", "out", "op"}

    def count(self, node: Any) -> None:
        """How often each value is used: what is used twice gets a statement of its own."""
        if isinstance(node, (tuple, list)):
            for item in node:
                self.count(item)
        if not isinstance(node, Node):
            return
        self._uses[node] = self._uses.get(node, 0) + 1
        if self._uses[node] == 1:
            self.count((*node.arguments, *node.keywords.values()))

    def result(self, node: Node) -> str:
        """What is returned: it needs no name if nothing else uses it."""
        if self._uses[node] == 1:
            node.variable = ""
        return self.array(node)

    def array(self, value: Any, level: int = 0) -> str:
        """An array, or a number where C++ takes either; in brackets if it binds less than `level`."""
        if not isinstance(value, Node):
            if not isinstance(value, np.inexact):
                return _literal(value)
            # A number of NumPy's has a dtype, unlike Python's: that of the output, where gradients make one.
            if self.fused and len(self.op.inputs) > 1:
                raise UntranslatableError("a number with a dtype decides that of a loop over inputs of several dtypes")
            number = _literal(value)
            return number if self.fused else f"scalar(op.output_dtype(), {_bare(number)})"
        if value in self._texts:
            return self._texts[value]
        if value.kind == "g":
            return "g" if value.name == "0" else f"op.upstream({value.name})"
        if value.kind == "input":
            self.reads.add(value.name)
            return _name(value.name)
        if value.kind == "output":
            self.reads.add("out")
            return "out" if value.name == "0" else f"op.output({value.name})"
        if value.kind == "constant":
            self.constants[value.name] = value.value
            return _name(value.name)
        if isinstance(value.value, (int, float)) and not isinstance(value.value, np.generic):
            return self.number(value, level)
        if value.kind == "item":
            raise UntranslatableError(f"an op with several outputs ('{value.arguments[0].name}') inside a gradient")
        text, own = self.call(value)
        if (value.variable or self._uses.get(value, 0) > 1) and own:
            # What two gradients compute alike is computed once.
            name = self._written.get(text) or self.variable(value)
            if text not in self._written:
                self.statements.append(f"const {'auto' if self.fused else 'Array'} {name} = {text};")
                self._written[text] = name
            self._texts[value] = name
            return name
        return f"({text})" if own < level else text

    def variable(self, node: Node) -> str:
        name = base = _name(node.variable or "part")
        number = 2
        while name in self._taken or name in _FUNCTIONS.values():
            name, number = f"{base}{number}", number + 1
        self._taken.add(name)
        return name

    def call(self, node: Node) -> tuple[str, int]:
        """A call's text, and how tightly it binds."""
        name = _ALIASES.get(node.name, node.name)
        arguments = node.arguments
        if name in _SAME and len(arguments) == 1:
            return self.array(arguments[0], 9), 9
        plain = not node.keywords
        if name in ("logical_and", "multiply") and plain and any(one is True for one in arguments):
            (other,) = [one for one in arguments if one is not True]
            return self.array(other, 9), 9
        if name in _OPERATORS and plain and len(arguments) == 2:
            sign, level = _OPERATORS[name]
            # Which of & and == binds closer is nothing to wonder about.
            inner = (level, level + 1) if level >= 5 else (5, 5) if level >= 3 else (7, 7)
            return f"{_bare(self.array(arguments[0], inner[0]))} {sign} {self.array(arguments[1], inner[1])}", level
        if name in _PREFIX and plain and len(arguments) == 1:
            return f"{_PREFIX[name]}{self.array(arguments[0], 8)}", 7
        functions = _FUSED if self.fused else _FUNCTIONS
        if self.fused and name == "where" and not (isinstance(arguments[0], Node) and arguments[0].name in _TRUTHS):
            raise UntranslatableError("a condition that is no comparison has no form for the numbers of a loop")
        if name in functions and plain:
            self.functions.add(name)
            if self.fused and name in _SYMMETRIC and not isinstance(arguments[0], Node):
                arguments = arguments[::-1]
            return f"{functions[name]}({', '.join(_bare(self.array(one)) for one in arguments)})", 9
        if self.fused:
            raise UntranslatableError(f"`{name}` has no form for the numbers of a loop")
        if name in ("reshape", "broadcast_to") and plain and len(arguments) == 2:
            return f"{name}({self.array(arguments[0])}, {self.shape(arguments[1])})", 9
        if name == "concatenate" and isinstance(arguments[0], tuple):
            axis = node.keywords.get("axis", arguments[1] if len(arguments) > 1 else 0)
            return f"concatenate({{{', '.join(map(self.array, arguments[0]))}}}, {self.integer(axis)})", 9
        if name == "zeros_like" and plain:
            return f"zeros_like({self.array(arguments[0])})", 9
        if name == "zeros" and plain and len(arguments) == 2:
            return f"zeros(op.output_dtype(), {self.shape(arguments[0])})", 9
        return self.by_name(name, node), 9

    def by_name(self, name: str, node: Node) -> str:
        """A call of an op that C++ has no function for."""
        if name not in registry:
            raise UntranslatableError(f"`{name}` is no op")
        other = registry[name]
        if other.variadic or other.multiple:
            raise UntranslatableError(f"`{name}` takes or gives several arrays")
        bound = inspect.signature(other).bind(*node.arguments, **node.keywords)
        inputs = [self.array(bound.arguments[key]) for key in other.inputs]
        defaults = {key: one.default for key, one in inspect.signature(other).parameters.items()}
        attributes = []
        for key in other.attributes:
            if key not in bound.arguments:
                continue
            value = bound.arguments[key]
            if self.is_own(key, value):
                attributes.append(f'op.pass("{key}")')
            elif not (isinstance(value, (str, bool, type(None))) and value == defaults[key]):
                attributes.append(f'{{"{key}", {self.option(value)}}}')
        listed = f", {{{', '.join(attributes)}}}" if attributes else ""
        return f'call("{other.name}", {{{", ".join(inputs)}}}{listed})'

    def is_own(self, name: str, value: Any) -> bool:
        """Whether a value is that attribute of the op itself."""
        if isinstance(value, Node):
            return value.kind == "attribute" and value.name == name
        return name in self.attributes and _same(self.attributes[name], value)

    def option(self, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if value is None:
            return "std::nullopt"
        if isinstance(value, str):
            return json.dumps(value)
        raw = value.value if isinstance(value, Node) else value
        if isinstance(raw, tuple) or (isinstance(value, Node) and value.kind == "shape"):
            return self.shape(value)
        if isinstance(raw, (int, float)):
            return self.integer(value) if isinstance(raw, int) else self.number(value)
        raise UntranslatableError(f"{value!r:.60} is no attribute that C++ can give")

    def shape(self, value: Any) -> str:
        """A shape, or a list of axes."""
        if isinstance(value, tuple):
            return f"Shape{{{', '.join(map(self.integer, value))}}}"
        if isinstance(value, Node) and value.kind == "call" and value.name == "kept":
            shape, axis = value.arguments
            return f"kept({self.span(shape)}, {self.axes(axis, shape)})"
        return f"Shape({self.span(value)})"

    def span(self, value: Any) -> str:
        if not isinstance(value, Node) or value.kind != "shape":
            raise UntranslatableError("a shape that is computed in Python")
        (of,) = value.arguments
        if of.kind == "input":
            index = of.arguments[0]
            return f"op.input_shape({index or ''})"
        if of.kind in ("output", "g"):
            return f"op.output_shape({of.name if of.name != '0' else ''})"
        return f"{self.array(of, 9)}.shape()"

    def axes(self, axis: Any, shape: Any) -> str:
        if not self.is_own("axis", axis):
            raise UntranslatableError("axes that are computed in Python")
        return f'op.axes("axis", {self.span(shape)}.size())'

    def integer(self, value: Any, level: int = 0) -> str:
        if not isinstance(value, Node):
            if not isinstance(value, (int, np.integer)):
                raise UntranslatableError(f"{value!r:.60} in the place of an integer")
            return str(int(value)) if value >= 0 or not level else f"({int(value)})"
        if value.kind == "attribute":
            return f'op.attribute<std::int64_t>("{value.name}")'
        if value.kind == "item":
            return f"{self.span(value.arguments[0])}[{value.name}]"
        if value.kind in ("ndim", "size"):
            of = Node("shape", "", value.arguments)
            text = f"{self.span(of)}.size()" if value.kind == "ndim" else f"Shape({self.span(of)}).product()"
            return f"static_cast<std::int64_t>({text})" if value.kind == "ndim" else text
        if value.name in _INTEGER_OPERATORS and len(value.arguments) == 2:
            sign, own = _INTEGER_OPERATORS[value.name]
            text = f"{self.integer(value.arguments[0], own)} {sign} {self.integer(value.arguments[1], own + 1)}"
            return f"({text})" if own < level else text
        if value.name == "neg":
            return f"-{self.integer(value.arguments[0], 7)}"
        if value.name == "count" and value.arguments[2] is True:
            return f"count({self.span(value.arguments[0])}, {self.axes(value.arguments[1], value.arguments[0])})"
        raise UntranslatableError(f"an integer that `{value.name}` computes")

    def number(self, value: Any, level: int = 0) -> str:
        if not isinstance(value, Node):
            return _literal(value)
        if self.fused:
            raise UntranslatableError("a number of a loop depends on a shape or an attribute")
        if value.kind == "attribute":
            return f'op.attribute<double>("{value.name}")'
        if value.name == "neg":
            return f"-{self.number(value.arguments[0], 7)}"
        if value.name in _NUMBER_OPERATORS and len(value.arguments) == 2:
            sign, own = _NUMBER_OPERATORS[value.name]
            text = f"{self.number(value.arguments[0], own)} {sign} {self.number(value.arguments[1], own + 1)}"
            return f"({text})" if own < level else text
        return f"static_cast<double>({self.integer(value)})"


def _same(attribute: Any, value: Any) -> bool:
    return attribute is value or (
        type(attribute) is type(value)
        and isinstance(value, (bool, int, float, str, tuple, type(None)))
        and bool(attribute == value)
    )


def _name(name: str) -> str:
    return f"{name}_" if (name in _WORDS and name not in ("g", "op")) or keyword.iskeyword(name) else name


def _bare(text: str) -> str:
    """A negative number without brackets, where no sign stands before it."""
    return re.sub(r"^\((-[^()]*)\)$", r"\1", text)


def _literal(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "1.0" if value else "0.0"
    if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
        value = value.real
    if isinstance(value, (int, float, np.integer, np.floating)):
        number = float(value)
        if not np.isfinite(number):
            sign = "-" if number < 0 else ""
            return f"{sign}std::numeric_limits<double>::{'quiet_NaN' if np.isnan(number) else 'infinity'}()"
        text = repr(number)
        return f"({text})" if number < 0 else text
    if isinstance(value, (complex, np.complexfloating)):
        return f"Complex<double>{{{float(value.real)!r}, {float(value.imag)!r}}}"
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf":
        return _literal(value[()])
    raise UntranslatableError(f"a constant {type(value).__name__}, {value!r:.60}")


# --- one gradient -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaffold:
    """A Python gradient in C++. Printed, it is a summary.

    Attributes
    ----------
    op : str
        The op's name.
    source : str
        The C++ block that registers the gradient.
    test : str
        A Python module that tests its parity.
    gaps : list of str
        What could not be translated: there the C++ gradient declines, and Python's runs.
    files : list of Path
        What was written.
    proof : str
        What the check said: empty if it was not run, or passed.
    proved : bool
        Whether it was built and passed the check.
    parity : dict of str to float
        The largest difference from Python in each dtype that was compared, relative to the largest element.
    """

    op: str
    source: str
    test: str
    gaps: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    proof: str = ""
    proved: bool = False
    parity: dict[str, float] = field(default_factory=dict)

    @property
    def translated(self) -> bool:
        """Whether there are no gaps but calls that are recognised and left to Python."""
        return all(gap.startswith(_DECLINES) for gap in self.gaps)

    @property
    def fused(self) -> bool:
        """Whether it is written as one loop per input."""
        return "static const Elementwise " in self.source

    def __str__(self) -> str:
        gaps = [gap for gap in self.gaps if not gap.startswith(_DECLINES)]
        form = " as one loop per input" * self.fused
        lines = [
            f"op '{self.op}': translated{form}" + (f", with {len(gaps)} gap{'s' * (len(gaps) > 1)}" if gaps else "")
        ]
        lines += [f"  gap: {gap}" if gap in gaps else f"  {gap}" for gap in self.gaps]
        lines += [f"  wrote {file}" for file in self.files]
        errors = ", ".join(f"{dtype} ({error:.0e})".replace("0e+00", "0") for dtype, error in self.parity.items())
        lines.append(f"  built; parity proved: {errors}" if self.proved else f"  {self.proof or 'not built'}")
        return "\n".join(lines)


def translate(op: Op, samples: Iterable[Sample] | None = None, *, fuse: bool = False) -> tuple[str, list[str]]:
    """The C++ block of an op's Python gradient, and what is missing from it."""
    if op.variadic:
        return _block(op, None, ["it takes a list of arrays: one statement per op cannot say what is done for each"]), [
            "an op on a list of arrays"
        ]
    given = list(_samples(op, samples))
    _python_gradient(op)
    with warnings.catch_warnings():
        # Variations leave the range that a gradient is made for.
        warnings.simplefilter("ignore")
        programs = list(_programs(op, given))
    if not programs:
        raise ValueError(f"op '{op.name}' has no sample calls to trace; give some: op(..., samples=...) or samples=")
    texts: dict[str, _Text] = {}
    for program in programs:
        text = _write(op, program, fuse=fuse)
        program.body = text.body
        texts[text.body] = text

    def rank(text: _Text) -> tuple[bool, int, int]:
        varied = [program.varied for program in programs if program.body == text.body]
        return not text.gaps, varied.count(False), varied.count(True)

    best = max(texts.values(), key=rank)
    same, others = ([p for p in programs if (p.body == best.body) is mine] for mine in (True, False))
    # Where nothing is translated, nothing needs to be told apart.
    guards, gaps = _guards(op, same, others) if len(best.gaps) < len(op.inputs) else ([], [])
    if best.fused and any(not _is_complex_guard(guard) for guard in guards):
        # Loops cannot decline.
        return translate(op, given)
    best.complex = best.functions <= _COMPLEX and any(program.complex for program in same)
    return _block(op, best, guards), best.gaps + ([] if best.fused else gaps)


@dataclass
class _Text:
    """The body of one gradient: what differs from sample to sample if it is no translation of all."""

    body: str
    constants: dict[str, float]
    gaps: list[str]
    fused: bool
    functions: set[str] = field(default_factory=set)
    complex: bool = False


def _write(op: Op, program: _Program, *, fuse: bool) -> _Text:
    if fuse:
        try:
            return _write_fused(op, program)
        except UntranslatableError:
            pass
    taken = {name: value for name, value in program.attributes.items() if name in program.looked_at}
    writer = _Writer(op, taken, fused=False)
    for result in program.results:
        writer.count(result)
    returned, gaps = [], []
    for i, result in enumerate(program.results):
        if isinstance(result, str):
            gaps.append(f"the gradient of {op.inputs[i]}: {result}")
            returned.append(f"Array() /* GAP: {_comment(result)} */")
            continue
        try:
            returned.append("Array()" if result is None else writer.result(result))
        except UntranslatableError as error:
            gaps.append(f"the gradient of {op.inputs[i]}: {error}")
            returned.append(f"Array() /* GAP: {_comment(str(error))} */")
    lines = []
    if gaps:
        lines += [f"// GAP: {_comment(gap)}" for gap in gaps]
        needed = " || ".join(f"op.needs_gradient({i})" for i, text in enumerate(returned) if "GAP" in text)
        lines.append(f"if ({needed}) return decline;")
    names = [_name(name) for name in op.inputs]
    if any(name in writer.reads for name in op.inputs):
        if len(names) == 1:
            lines.append(f"const Array {names[0]} = op.input();")
        else:
            lines.append(f"auto [{', '.join(names)}] = op.inputs<{len(names)}>();")
    if "out" in writer.reads:
        lines.append("const Array out = op.output();")
    lines += writer.statements
    lines.append(_return(returned))
    return _Text(_hoist("\n".join(lines)), writer.constants, gaps, False)


def _return(values: list[str]) -> str:
    if len(values) == 1:
        return f"return {values[0]};"
    line = f"return {{{', '.join(values)}}};"
    return line if len(line) <= _WIDTH else "return {\n    " + ",\n    ".join(values) + ",\n};"


def _hoist(body: str) -> str:
    """Shapes and axes that are asked for more than once get a name."""
    for pattern, kind, name in (
        (r"op\.input_shape\(\d*\)", "auto", "shape"),
        (r'op\.axes\("axis", \w+\.size\(\)\)', "std::uint64_t", "axes"),
    ):
        for number, asked in enumerate(dict.fromkeys(re.findall(pattern, body))):
            if body.count(asked) > 1:
                own = f"{name}{number + 1 if number else ''}"
                lines = body.replace(asked, own).splitlines()
                first = next(i for i, line in enumerate(lines) if re.search(rf"\b{own}\b", line))
                lines.insert(first, f"const {kind} {own} = {asked};")
                body = "\n".join(lines)
    return body


def _write_fused(op: Op, program: _Program) -> _Text:
    if not op.broadcasts or op.multiple or program.attributes:
        raise UntranslatableError("it is not element-wise")
    lambdas, constants, functions = [], {}, set()
    for result in program.results:
        if isinstance(result, str):
            raise UntranslatableError(result)
        if result is None:
            lambdas.append("nullptr")
            continue
        writer = _Writer(op, {}, fused=True)
        writer.count(result)
        text = writer.array(result)
        constants.update(writer.constants)
        functions |= writer.functions
        everything = " ".join([text, *writer.statements])
        parameters = ["g", *map(_name, op.inputs), "out"]
        listed = ", ".join(f"auto {p}" if re.search(rf"\b{p}\b", everything) else "auto" for p in parameters)
        lines = [*writer.statements, f"return {text};"]
        body = f" {lines[0]} " if len(lines) == 1 else "".join(f"\n      {line}" for line in lines) + "\n    "
        lambdas.append(f"[]({listed}) {{{body}}}")
    return _Text(",\n    ".join(lambdas), constants, [], True, functions)


_DECLINES = "it declines where"


def _guards(op: Op, same: list[_Program], others: list[_Program]) -> tuple[list[str], list[str]]:
    """Where the block declines: calls for which the gradient does something else, or might."""
    guards, gaps = [], []
    body, everything = same[0].body, [*same, *others]
    conditions = list(_conditions(op, same[0]))

    def add(guard: _Guard, verb: str = "does") -> None:
        nonlocal others
        guards.append(f"if ({guard.test}) return decline;")
        gaps.append(f"{_DECLINES} {guard.what}: Python {verb} something else there")
        others = [program for program in others if not guard.holds(program)]

    for guard in conditions:
        if any(map(guard.holds, others)) and not any(map(guard.holds, same)):
            add(guard)
        elif guard.attribute and f'"{guard.attribute}"' not in body and not any(map(guard.holds, everything)):
            # It was looked at, and no call with another value could be tried.
            add(guard, "might do")
    for guard in conditions:
        # Rather than all calls, some are left to Python that it would take, if none of them is a sample.
        if others and all(map(guard.holds, others)) and not any(guard.holds(p) for p in same if not p.varied):
            add(guard)
    if others:
        return ["return decline;  // GAP: shapes or values decide what the Python gradient does"], [
            "it is not the same for all sample calls: shapes or values decide what it does"
        ]
    return guards, gaps


@dataclass
class _Guard:
    """A condition in C++ and in words: that something is not as in one call. Of an attribute, or of arrays."""

    test: str
    what: str
    of: Callable[[_Program], Any]
    one: _Program
    attribute: str = ""

    def holds(self, program: _Program) -> bool:
        return bool(self.of(program) != self.of(self.one))


def _conditions(op: Op, one: _Program) -> Iterator[_Guard]:
    """Conditions that do not hold for this call."""
    if not one.complex:
        dtypes = ["op.output_dtype()", *(f"op.input_dtype({i})" for i in range(len(op.inputs)))]
        test = " || ".join(f"is_complex({dtype})" for dtype in dtypes)
        yield _Guard(test, "a dtype is complex", lambda program: program.complex, one)
    for name in filter(one.looked_at.__contains__, op.attributes):
        value = one.attributes[name]
        if test := _KIND_TESTS.get(_kind(value), "").format(name):
            # An integer of another kind declines where it is read.
            tried = "" if type(value) is int else name
            yield _Guard(test, f"{name} is not {_kind(value)}", partial(_kind_of, name), one, tried)
        if type(value) in _VALUE_TESTS:
            test = f'op.attribute<{_VALUE_TESTS[type(value)]}>("{name}") != {json.dumps(value)}'
            yield _Guard(test, f"{name} is not {value!r}", partial(_value_of, name), one, name)
    dtype = one.outputs[0].dtype
    if dtype.kind == "f":
        test = f"op.output_dtype() != Dtype::{dtype.name}"
        yield _Guard(test, f"the dtype is not {dtype.name}", lambda program: program.outputs[0].dtype, one)
    for i, x in enumerate(one.inputs):
        test = f"op.input_shape({i or ''}).size() != {x.ndim}"
        what = f"{op.inputs[i]} does not have {x.ndim} {'axis' if x.ndim == 1 else 'axes'}"
        yield _Guard(test, what, partial(_ndim_of, i), one)


def _kind_of(name: str, program: _Program) -> str:
    return _kind(program.attributes[name])


def _value_of(name: str, program: _Program) -> tuple[str, str]:
    value = program.attributes[name]
    return _kind(value), repr(value)


def _ndim_of(i: int, program: _Program) -> int:
    return int(program.inputs[i].ndim)


_KIND_TESTS = {
    "None": '!op.is_none("{}")',
    "True": '!op.is("{}", true)',
    "False": '!op.is("{}", false)',
    "int": 'op.attribute("{}").kind != MIXGRAD_ATTRIBUTE_INT',
}
_VALUE_TESTS = {int: "std::int64_t", float: "double", str: "std::string"}


def _is_complex_guard(guard: str) -> bool:
    return guard.startswith("if (is_complex(")


def _kind(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else type(value).__name__


def _comment(text: str) -> str:
    return " ".join(text.replace("*/", "* /").split())


def _block(op: Op, text: _Text | None, guards: Sequence[str]) -> str:
    found = _core.python_gradient(op)
    functions = [] if found is None else [f for f in (found[0], *found[1]) if f is not None]
    code = getattr(functions[0], "__code__", None) if functions else None
    origin = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else "Python"
    lines = [f"// The gradient of {op.name}, as in {origin}."]
    if text is None:
        body = "\n".join([f"// GAP: {guard}" for guard in guards] + ["return decline;"])
        return "\n".join([*lines, f"MIXGRAD_REGISTER_GRADIENT({op.name}) {{", *_indent(body), "}"])
    lines += [f"static constexpr double {_name(name)} = {value!r};" for name, value in text.constants.items()]
    if text.fused:
        return "\n".join(
            [
                *lines,
                f'static const Elementwise {op.name}_{{"{op.name}",{"" if text.complex else " real_only,"}',
                f"    {text.body}}};",
            ]
        )
    stops = any(guard.startswith("return") for guard in guards)
    body = "\n".join(guards) if stops else "\n".join([*guards, text.body])
    return "\n".join([*lines, f"MIXGRAD_REGISTER_GRADIENT({op.name}) {{", *_indent(body), "}"])


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


_HEAD = "#include <mixgrad/mixgrad.hpp>\n\nusing namespace mixgrad;\n\n"
_TEST = '''"""The native gradient of {op} beside the Python one."""

from pathlib import Path

{imports}import mixgrad
from mixgrad.migrate import verify


def test_{name}() -> None:
    # Where the package builds it, this line can go.
    mixgrad.cpp.load(Path(__file__).with_name("{op}.cpp"), replace=True)
    report = verify(["{op}"])
    assert report.passed, report
    assert report.ops[0].proved
'''


def scaffold(
    op: str | Op,
    into: str | Path | None = None,
    *,
    fuse: bool = False,
    samples: Iterable[Sample] | None = None,
    modules: Sequence[str] = (),
    prove: bool = True,
) -> Scaffold:
    """Translate an op's Python gradient into C++, build it, and compare the two.

    The gradient runs on stand-ins, which note what it does with them, for all sample calls and for variations of them: other
    shapes, numbers, dtypes and attributes. What is the same for all is written as C++, with the names of the Python code.
    Where an attribute, a dtype or a number of axes decides what it does, the C++ gradient declines all but one case. Where
    nothing so simple does, and for data-dependent control flow and functions that are no ops, there is a gap: the C++ gradient
    declines and Python's runs.

    Parameters
    ----------
    op : str or Op
        The op.
    into : path, optional
        A folder for ``OP.cpp`` and ``test_OP.py``; nothing is written when left out.
    fuse : bool
        Write an element-wise gradient as one loop per input (`Elementwise`), where its functions allow that.
    samples : iterable of Sample, optional
        Calls to trace; the op's own when left out.
    modules : sequence of str
        What registers the op: imported by the test, and before the check. The module of its forward when left out.
    prove : bool
        Build it, and verify it in a process of its own, on the samples and on variations of them.

    Returns
    -------
    Scaffold

    Examples
    --------
    >>> from mixgrad.migrate import scaffold
    >>> print(scaffold("tan", prove=False).source)
    #include <mixgrad/mixgrad.hpp>
    <BLANKLINE>
    using namespace mixgrad;
    <BLANKLINE>
    // The gradient of tan, as in math.py:...
    MIXGRAD_REGISTER_GRADIENT(tan) {
      const Array out = op.output();
      return g * (1.0 + out * out);
    }
    <BLANKLINE>
    """
    target = op if isinstance(op, _core.Op) else registry[op]
    given = list(_samples(target, samples))
    source, gaps = translate(target, given, fuse=fuse)
    source = f"{_HEAD}{source}\n"
    modules = modules or [name for name in [_module(target)] if name.partition(".")[0] not in ("mixgrad", "__main__")]
    imports = "".join(f"import {module}\n" for module in modules)
    test = _TEST.format(op=target.name, name=re.sub(r"\W", "_", target.name), imports=imports)
    files: list[Path] = []
    if into is not None:
        folder = Path(into)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{target.name}.cpp", folder / f"test_{target.name}.py"]
        for path in files:
            if path.exists():
                raise FileExistsError(f"{path} exists; nothing was written. Remove it, or choose another folder")
        for path, text in zip(files, (source, test), strict=True):
            path.write_text(text, encoding="utf-8")
    made = Scaffold(target.name, source, test, gaps, files)
    if not prove:
        return made
    if _module(target) == "__main__" and not modules:
        # The process that proves it cannot import it.
        return replace(
            made, proof="not built: a program's own op; move it to a module, and name that (modules=, --module)"
        )
    proof, parity = prove_parity({target.name: source}, modules, {target.name: given})[target.name]
    return replace(made, proof=proof, proved=not proof, parity=parity)


def _samples(op: Op, samples: Iterable[Sample] | None) -> Iterable[Sample]:
    return (op.samples or tuple)() if samples is None else samples


def _module(op: Op) -> str:
    """The module that registers an op: NumPy's functions are forwards of others' ops."""
    functions = [
        op.forward,
        *(f for part in _python_gradient(op) for f in (part if isinstance(part, list) else [part])),
    ]
    modules = (getattr(function, "__module__", None) for function in functions)
    return next((name for name in modules if name and name.partition(".")[0] != "numpy"), "mixgrad")


def proving_calls(op: Op, samples: Iterable[Sample]) -> list[Sample]:
    """The samples, and those variations of some that the op and its Python gradient take."""
    given = list(samples)
    found = []
    for sample in given[:_VARIED]:
        for variation in variations(op, sample, op.attributes):
            try:
                program = _trace(op, variation)
            except Exception:  # noqa: BLE001, S112  the op itself refuses what makes no sense
                continue
            if not any(isinstance(result, str) for result in program.results):
                found.append(variation)
    return given + found


_VARIED = 3
"""How many samples are varied for the proof."""


def prove_parity(
    sources: dict[str, str],
    modules: Sequence[str] = (),
    samples: dict[str, list[Sample]] | None = None,
) -> dict[str, tuple[str, dict[str, float]]]:
    """Builds gradients by the names of their ops, and verifies them in another process.

    Returns what is wrong with each, which is nothing if it agrees with Python's, and the largest error by dtype.
    """
    calls = {name: (samples or {}).get(name, _samples(registry[name], None)) for name in sources}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = {name: proving_calls(registry[name], given) for name, given in calls.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaffold.cpp"
        # One translation unit: the headers are read once. Constants of one name do not meet.
        parts = [f"namespace part{i} {{\n{text.removeprefix(_HEAD)}}}\n" for i, text in enumerate(sources.values())]
        path.write_text(_HEAD + "".join(parts), encoding="utf-8")
        task = pickle.dumps({"modules": list(modules), "path": str(path), "samples": calls})
        done = subprocess.run(
            [sys.executable, "-m", "mixgrad.migrate.proof"],
            input=task,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
    if done.returncode:
        return dict.fromkeys(sources, (f"not built: {done.stderr.decode().strip() or done.returncode}", {}))
    return {name: tuple(verdict) for name, verdict in json.loads(done.stdout.splitlines()[-1]).items()}
