# SPDX-License-Identifier: Apache-2.0
"""Translates Python gradients into C++: the block, its parity test, and the proof that both agree."""

from __future__ import annotations

import inspect
import json
import keyword
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad.errors import MissingGradientError
from mixgrad.migrate.tracing import Node, Traced, TracedFloat, TracedInt, Tracer, UntranslatableError
from mixgrad.registry import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mixgrad.registry import Op, Sample

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
_FUSED = {
    "absolute": "abs",
    **{
        name: cpp
        for name, cpp in _FUNCTIONS.items()
        if name
        not in ("ceil", "floor", "logaddexp", "logaddexp2", "reciprocal", "rint", "square", "trunc", "fmax", "fmin")
    },
}
"""Functions that C++ has for the numbers of a loop too."""
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
    complex: bool


class _Entry:
    """The ``op`` of a gradient of all inputs at once."""

    def __init__(self, op: Op, inputs: list[Traced], outputs: Any, attributes: dict[str, Any]) -> None:
        self.name, self.inputs, self.attributes = op.name, tuple(inputs), attributes
        self.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        self.output = self.outputs[0]

    def needs_gradient(self, _: int) -> bool:
        return True


def _trace(op: Op, sample: Sample) -> _Program:
    bound = inspect.signature(op).bind(*sample.args, **sample.attributes)
    bound.apply_defaults()
    inputs = [np.asarray(bound.arguments[name]) for name in op.inputs]
    inputs = [x.astype(np.float64) if x.dtype.kind in "iu" and i == 0 else x for i, x in enumerate(inputs)]
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
    attributes = {name: _attribute(name, value) for name, value in given.items()}
    results, taken = _results(op, arguments, out, g, attributes)
    return _Program(results, given, taken, any(x.dtype.kind == "c" for x in (*inputs, *found)))


def _attribute(name: str, value: Any) -> Any:
    if type(value) is int:
        return TracedInt(value, Node("attribute", name, value=value))
    if type(value) is float:
        return TracedFloat.of(value, Node("attribute", name, value=value))
    return value


def _results(
    op: Op, inputs: list[Traced], out: Any, g: Any, attributes: dict[str, Any]
) -> tuple[list[Node | str | None], set[str]]:
    """What is returned for each input, and which attributes the gradient is given."""
    found = _core.python_gradient(op)
    if found is None:
        raise MissingGradientError(
            f"op '{op.name}' has no Python gradient of all its inputs to translate; register one with "
            f'@mixgrad.register_gradient("{op.name}")'
        )
    whole, functions = found
    tracer = Tracer()
    if whole is not None:
        try:
            returned = tracer.run(whole, _Entry(op, inputs, out, attributes), g)
        except Exception as error:  # noqa: BLE001  whatever stops it is the gap
            return [_gap(error)] * len(inputs), set(attributes)
        returned = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [_result(one) for one in returned], set(attributes)
    results: list[Node | str | None] = []
    given: set[str] = set()
    for function in functions:
        if function is None:
            results.append(None)
            continue
        parameters = inspect.signature(function).parameters
        taken = {name: value for name, value in attributes.items() if name in parameters}
        given |= set(taken)
        try:
            results.append(_result(tracer.run(function, g, *inputs, out, **taken)))
        except Exception as error:  # noqa: BLE001  whatever stops it is the gap
            results.append(_gap(error))
    return results, given


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
            if self.fused:
                raise UntranslatableError("a number with a dtype has no form for the numbers of a loop")
            return f"scalar(op.output_dtype(), {_literal(value)})"
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
            return f"{self.array(arguments[0], inner[0])} {sign} {self.array(arguments[1], inner[1])}", level
        if name in _PREFIX and plain and len(arguments) == 1:
            return f"{_PREFIX[name]}{self.array(arguments[0], 8)}", 7
        functions = _FUSED if self.fused else _FUNCTIONS
        if self.fused and name == "where" and not (isinstance(arguments[0], Node) and arguments[0].name in _TRUTHS):
            raise UntranslatableError("a condition that is no comparison has no form for the numbers of a loop")
        if name in functions and plain:
            return f"{functions[name]}({', '.join(map(self.array, arguments))})", 9
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
            raw = value.value if isinstance(value, Node) else value
            if key in self.attributes and raw is not None and _same(self.attributes[key], raw):
                attributes.append(f'op.pass("{key}")')
            elif not (isinstance(value, (str, bool, type(None))) and value == defaults[key]):
                attributes.append(f'{{"{key}", {self.option(value)}}}')
            elif key in self.attributes and _same(self.attributes[key], raw):
                attributes.append(f'op.pass("{key}")')
        listed = f", {{{', '.join(attributes)}}}" if attributes else ""
        return f'call("{other.name}", {{{", ".join(inputs)}}}{listed})'

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
        raw = axis.value if isinstance(axis, Node) else axis
        if "axis" not in self.attributes or not _same(self.attributes["axis"], raw):
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
        What the check of parity said: empty if it was not run, or passed.
    proved : bool
        Whether it was built and passed the check.
    """

    op: str
    source: str
    test: str
    gaps: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    proof: str = ""
    proved: bool = False

    def __str__(self) -> str:
        lines = [
            f"op '{self.op}': "
            + (
                "translated"
                if not self.gaps
                else f"translated, with {len(self.gaps)} gap{'s' if len(self.gaps) > 1 else ''}"
            )
        ]
        lines += [f"  gap: {gap}" for gap in self.gaps]
        lines += [f"  wrote {file}" for file in self.files]
        lines.append(f"  {'built; parity proved' if self.proved else self.proof or 'not built'}")
        return "\n".join(lines)


def translate(op: Op, samples: Iterable[Sample] | None = None, *, fuse: bool = False) -> tuple[str, list[str]]:
    """The C++ block of an op's Python gradient, and what is missing from it."""
    if op.variadic:
        return _block(op, None, ["it takes a list of arrays: one statement per op cannot say what is done for each"]), [
            "an op on a list of arrays"
        ]
    given = list(op.samples() if samples is None and op.samples is not None else samples or ())
    programs = []
    for sample in given:
        try:
            programs.append(_trace(op, sample))
        except (TypeError, ValueError, FloatingPointError):
            # Samples of another dtype than the op takes with plain arrays.
            continue
    if not programs:
        raise ValueError(f"op '{op.name}' has no sample calls to trace; give some: op(..., samples=...) or samples=")
    written: dict[str, tuple[_Text, list[_Program]]] = {}
    for program in programs:
        text = _write(op, program, fuse=fuse)
        written.setdefault(text.body, (text, []))[1].append(program)
    best, same = max(written.values(), key=lambda item: (not item[0].gaps, len(item[1])))
    others = [program for _, group in written.values() for program in group if group is not same]
    guards, gaps = _guards(op, same, others)
    return _block(op, best, guards), best.gaps + gaps


@dataclass
class _Text:
    """The body of one gradient: what differs from sample to sample if it is no translation of all."""

    body: str
    constants: dict[str, float]
    gaps: list[str]
    fused: bool


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
    lambdas, constants = [], {}
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
        everything = " ".join([text, *writer.statements])
        parameters = ["g", *map(_name, op.inputs), "out"]
        listed = ", ".join(f"auto {p}" if re.search(rf"\b{p}\b", everything) else "auto" for p in parameters)
        lines = [*writer.statements, f"return {text};"]
        body = f" {lines[0]} " if len(lines) == 1 else "".join(f"\n      {line}" for line in lines) + "\n    "
        lambdas.append(f"[]({listed}) {{{body}}}")
    return _Text(",\n    ".join(lambdas), constants, [], True)


def _guards(op: Op, same: list[_Program], others: list[_Program]) -> tuple[list[str], list[str]]:
    """Where the block declines: attributes for which the gradient does something else."""
    guards, gaps = [], []
    if any(program.complex for program in others) and not any(program.complex for program in same):
        dtypes = ["op.output_dtype()", *(f"op.input_dtype({i})" for i in range(len(op.inputs)))]
        guards.append(f"if ({' || '.join(f'is_complex({dtype})' for dtype in dtypes)}) return decline;")
        gaps.append("it declines where a dtype is complex: Python does something else there")
        others = [program for program in others if not program.complex]
    for name in op.attributes:
        if name not in same[0].looked_at:
            continue
        mine = {_kind(program.attributes[name]) for program in same}
        theirs = {_kind(program.attributes[name]) for program in others}
        if len(mine) == 1 and not (theirs <= mine):
            (kind,) = mine
            test = {
                "None": f'!op.is_none("{name}")',
                "True": f'!op.is("{name}", true)',
                "False": f'!op.is("{name}", false)',
                "int": f'op.attribute("{name}").kind != MIXGRAD_ATTRIBUTE_INT',
            }.get(kind)
            if test is None and kind.startswith("'"):
                test = f'op.attribute<std::string>("{name}") != {json.dumps(kind[1:-1])}'
            if test is not None:
                guards.append(f"if ({test}) return decline;")
                gaps.append(f"it declines where {name} is not {kind}: Python does something else there")
                others = [program for program in others if _kind(program.attributes[name]) == kind]
    if others:
        gaps.append("it is not the same for all sample calls: shapes or values decide what it does")
        guards.append("return decline;  // GAP: shapes or values decide what the Python gradient does")
    return guards, gaps


def _kind(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    return type(value).__name__


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
            [*lines, f'static const Elementwise {op.name}_{{"{op.name}", real_only,', f"    {text.body}}};"]
        )
    stops = any(guard.startswith("return") for guard in guards)
    body = "\n".join(guards) if stops else "\n".join([*guards, text.body])
    return "\n".join([*lines, f"MIXGRAD_REGISTER_GRADIENT({op.name}) {{", *_indent(body), "}"])


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


_HEAD = "#include <mixgrad/mixgrad.hpp>\n\nusing namespace mixgrad;\n\n"
_TEST = '''"""The native gradient of {op} beside the Python one."""

{imports}import mixgrad
from mixgrad.testing import check_parity


def test_{name}() -> None:
    assert check_parity(mixgrad.registry["{op}"]) > 0
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

    The gradient runs on stand-ins, which note what it does with them: what is the same for all of the op's sample calls is
    written as C++, with the names of the Python code. Data-dependent control flow and functions that are no ops are gaps,
    where the C++ gradient declines and Python's runs.

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
        What registers the op: imported by the test, and before the check.
    prove : bool
        Build it, and compare it with Python in a process of its own.

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
    source, gaps = translate(target, samples, fuse=fuse)
    source = f"{_HEAD}{source}\n"
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
    proof = prove_parity({target.name: source}, modules)[target.name] if prove else ""
    return Scaffold(target.name, source, test, gaps, files, proof, prove and not proof)


def prove_parity(sources: dict[str, str], modules: Sequence[str] = ()) -> dict[str, str]:
    """Builds gradients by the names of their ops, and compares them with Python's in another process.

    Returns what is wrong with each: nothing if it agrees.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaffold.cpp"
        # One translation unit: the headers are read once. Constants of one name do not meet.
        parts = [f"namespace part{i} {{\n{text.removeprefix(_HEAD)}}}\n" for i, text in enumerate(sources.values())]
        path.write_text(_HEAD + "".join(parts), encoding="utf-8")
        task = json.dumps({"modules": list(modules), "path": str(path), "ops": list(sources)})
        done = subprocess.run(
            [sys.executable, "-m", "mixgrad.migrate.proof"],
            input=task,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return dict.fromkeys(sources, f"not built: {lines[-1] if lines else done.returncode}\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
