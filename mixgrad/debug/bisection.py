# SPDX-License-Identifier: Apache-2.0
"""Finds the op whose gradient makes a computation's gradient wrong, and the implementation that is to blame."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad._difference import difference
from mixgrad._tree import flatten
from mixgrad.debug.comparison import compare_call, origins, plain
from mixgrad.debug.saved_calls import call_again
from mixgrad.registry import in_force, prefer, record, registry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Blame", "bisect"]


@dataclass(frozen=True)
class Blame:
    """Which gradient is to blame: what `bisect` found. Printed, it is a paragraph.

    Attributes
    ----------
    op : str
        The op; empty if no single one is to blame.
    implementation, origin : str
        "native" or "python", or "override", and who registered it.
    where : tuple of (str, int) or None
        File and line of the first call that is wrong by itself.
    runs : int
        How often the computation was run.
    checks : int
        How many single gradient calls were checked.
    """

    op: str
    implementation: str
    origin: str
    where: tuple[str, int] | None
    runs: int
    checks: int
    text: str

    def __str__(self) -> str:
        return self.text


def bisect(
    f: Callable[..., Any], *args: Any, bad: float | Callable[[tuple[Any, ...]], Any] | None = None, seed: int = 0
) -> Blame:
    """Finds the op, and its implementation, whose gradient is wrong in a computation.

    Where Python's gradients give a good result, the native ones are switched off by halves until one is left: about
    log2(ops) runs. Where they do not, every gradient call is checked by itself against differences of its op's forward.

    Parameters
    ----------
    f : callable
        A function of arrays; its gradient is that of the sum of what it returns.
    *args
        Its arguments; all float and complex arrays in them are sources.
    bad : float or callable, optional
        What makes the gradient wrong. A number: more than this relative difference from differences of `f` along a random
        direction. A function: it gets the tuple of gradients, and returns whether they are bad, as
        ``lambda gradients: np.isnan(gradients[0]).any()``. None: another result than Python's gradients give, or, where the
        two agree, than differences give (1e-6).
    seed : int
        For the random directions.

    Returns
    -------
    Blame
        With ``op`` empty when the gradient is bad and each call by itself is right.

    Raises
    ------
    ValueError
        The gradient is not bad, or not the same in two runs.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> def wrong(op, g):
    ...     return (-g * np.cos(op.inputs[0]),)
    >>> def model(x):
    ...     return np.sum(np.sin(x) * np.exp(x))
    >>> with mixgrad.override_gradient("sin", wrong):
    ...     blame = mixgrad.debug.bisect(model, np.array([1.0, 2.0]))
    >>> blame.op, blame.implementation
    ('sin', 'override')
    """
    return _Search(f, args, bad, np.random.default_rng(seed)).run()


class _Search:
    """One search: the computation, how it is judged, and what it has cost."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], bad: Any, rng: np.random.Generator) -> None:
        self.f, self.bad, self.rng = f, bad, rng
        self.leaves, self.structure = flatten(args)
        self.where = [i for i, leaf in enumerate(self.leaves) if _is_source(leaf)]
        if not self.where:
            raise ValueError("bisect was given no float or complex argument, so there is no gradient to look at")
        self.runs = self.checks = 0
        self.ops: list[str] = []

    def call(self, sources: list[Any]) -> list[Any]:
        leaves = list(self.leaves)
        for i, source in zip(self.where, sources, strict=True):
            leaves[i] = source
        outputs, _ = flatten(self.f(*self.structure.unflatten(leaves)))
        return outputs

    def gradients(self, *, look: bool = False) -> tuple[Any, ...]:
        """The gradients of the sources; with `look` the ops whose native gradient ran are noted."""
        self.runs += 1
        window = _core.Window()
        window.start()
        try:
            sources = [window.watch(self.leaves[i]) for i in self.where]
            with np.errstate(all="ignore"):
                outputs = self.call(sources)
                window.stop()
                if look:
                    entries = window.entries()
                    self.ops = list(dict.fromkeys(e["op"] for e in entries if e["runs"] == "native"))
                targets = [y for y in outputs if type(y) is _core.Array and window.depends(y)]
                ones = [np.ones(y.shape, y.dtype) for y in targets]
                found = window.gradient(targets, sources, ones)
        finally:
            window.close()
        return tuple(np.zeros(s.shape, s.dtype) if g is None else plain(g) for g, s in zip(found, sources, strict=True))

    def run(self) -> Blame:
        natural = self.gradients(look=True)
        if any(difference(one, other) is not None for one, other in zip(natural, self.gradients(), strict=True)):
            raise ValueError(
                "bisect: two runs with the same arguments give different gradients, so nothing can be compared. Fix the seed of "
                "whatever is random in the computation, inside of it"
            )
        with prefer("python"):
            python = self.gradients()
        is_bad = self.judge(natural, python)
        if not is_bad(natural):
            raise ValueError("bisect: the gradient is not bad at these arguments, so there is nothing to find")
        if is_bad(python):
            return self.look_locally()
        return self.halve(is_bad)

    def judge(self, natural: tuple[Any, ...], python: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool]:
        if callable(self.bad):
            return lambda gradients: bool(self.bad(gradients))
        if self.bad is None and any(_differ(p, n) for p, n in zip(python, natural, strict=True)):
            return lambda gradients: any(_differ(p, g) for p, g in zip(python, gradients, strict=True))
        return functools.partial(self.off, 1e-6 if self.bad is None else float(self.bad))

    def off(self, tolerance: float, gradients: tuple[Any, ...]) -> bool:
        """Whether gradients differ from differences of `f` along a random direction."""

        def value(sources: list[Any]) -> float:
            self.runs += 1
            return float(sum(np.sum(np.asarray(plain(y))).real for y in self.call(sources)))

        return _is_off([_wide(self.leaves[i]) for i in self.where], list(gradients), value, tolerance, self.rng)

    def cost(self) -> str:
        return f"Found in {self.runs} runs and {self.checks} local check{'' if self.checks == 1 else 's'}."

    def halve(self, is_bad: Callable[[tuple[Any, ...]], bool]) -> Blame:
        """One of the native gradients is to blame: the rest are switched off by halves."""
        suspects = [name for name in self.ops if "python" in _core.implementations(registry[name])["gradient"]]
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            # Only this half runs native.
            with prefer("python"), prefer("native", *half):
                found = is_bad(self.gradients())
            suspects = half if found else rest
        return self.confirm(suspects[0])

    def confirm(self, name: str) -> Blame:
        """Compares all calls of the op with Python."""
        native, _ = origins(name)
        first: list[tuple[tuple[str, int] | None, str]] = []
        calls = Counter[str]()

        def compared(op: _core.Entry, g: Any) -> Any:
            found = op.next(g)
            calls["all"] += 1
            different = compare_call(op, found, op.python(g, recorded=False), None, None)
            if different is not None:
                calls["wrong"] += 1
                if not first:
                    first.append((op.where, f"the gradient of input {different[0]}, {different[1].text}"))
            return found

        with in_force([record(registry[name], gradient=compared, origin="mixgrad.debug.bisect")]):
            self.gradients()
        self.checks += calls["all"]
        if not first:
            text = (
                f"The result is good when op '{name}' alone runs its Python gradient, but none of its {calls['all']} calls differs from "
                f"Python by itself: rounding that the computation makes larger, perhaps. {self.cost()}"
            )
            return Blame("", "", "", None, self.runs, self.checks, text)
        where, details = first[0]
        text = (
            f"The native gradient of op '{name}' ({native}) is to blame: the result is good when that op alone runs its Python "
            f"gradient. {calls['wrong']} of its {calls['all']} calls differ{'s' if calls['wrong'] == 1 else ''} from Python"
        )
        text += f'; the first{_at(where)}: {details}. {self.cost()} Until it is right, use mixgrad.prefer("python", "{name}").'
        return Blame(name, "native", native, where, self.runs, self.checks, text)

    def look_locally(self) -> Blame:
        """Checks every gradient call by itself, since Python's are bad as well."""
        found: list[tuple[str, str, str, tuple[str, int] | None, str]] = []

        def checked(op: _core.Entry, g: Any) -> Any:
            language, origin = op.runs
            gradients = op.next(g)
            self.checks += 1
            wrong = "" if found else _wrong_by_itself(op, g, gradients, self.rng)
            if wrong:
                found.append((op.name, language, origin, op.where, wrong))
            return gradients

        with in_force([record(None, gradient=checked, origin="mixgrad.debug.bisect")]):
            self.gradients()
        if not found:
            text = (
                "The gradient is bad, also with Python's gradients alone, but every single gradient call is right by itself. The "
                "computation may jump here, or lose its gradient (np.asarray, float, integers). " + self.cost()
            )
            return Blame("", "", "", None, self.runs, self.checks, text)
        name, language, origin, where, wrong = found[0]
        text = (
            f"The {language} gradient of op '{name}' ({origin}) is to blame{_at(where)}: {wrong}. Native and Python gradients "
            f"alike give a bad result, so each call was checked by itself. {self.cost()}"
        )
        return Blame(name, language, origin, where, self.runs, self.checks, text)


def _is_source(leaf: Any) -> bool:
    return isinstance(leaf, (float, complex)) or getattr(getattr(leaf, "dtype", None), "kind", "") in ("f", "c")


def _at(where: tuple[str, int] | None) -> str:
    return f" at {where[0]}:{where[1]}" if where else ""


def _wide(x: Any) -> Any:
    x = np.asarray(x)
    return x.astype(np.result_type(x, np.float64))


def _differ(expected: Any, found: Any) -> bool:
    # Rounding adds up over many ops: the square root of the resolution.
    return difference(expected, found, rtol=float(np.sqrt(np.finfo(expected.dtype).eps))) is not None


def _wrong_by_itself(op: _core.Entry, g: Any, gradients: tuple[Any, ...], rng: np.random.Generator) -> str:
    """What is wrong with one gradient call; nothing if it is right, or cannot be checked."""
    inputs = [x if isinstance(x, _core.NotSaved) else plain(x) for x in op.inputs]
    if any(isinstance(x, _core.NotSaved) for x in inputs):
        return ""
    upstream = [plain(one) for one in (g if isinstance(g, tuple) else (g,))]
    needed = [i for i in range(len(inputs)) if op.needs_gradient(i)]
    found = [np.zeros_like(inputs[i]) if gradients[i] is None else plain(gradients[i]) for i in needed]
    given_finite = all(np.isfinite(x).all() for x in [*inputs, *upstream] if x.dtype.kind in "fc")
    if given_finite and not all(np.isfinite(x).all() for x in found):
        return "it gives nan or inf, and was given finite numbers"
    target, attributes = registry[op.name], op.attributes

    def value(sources: list[Any]) -> float:
        full = list(inputs)
        for i, source in zip(needed, sources, strict=True):
            full[i] = source
        outputs = call_again(target, full, attributes)
        return float(sum(np.sum(u * plain(y)).real for u, y in zip(upstream, outputs, strict=True)))

    narrow = any(x.dtype in (np.float32, np.complex64) for x in inputs)
    off = _is_off([_wide(inputs[i]) for i in needed], found, value, 1e-3 if narrow else 1e-6, rng)
    return "it is not what differences of the op's forward give" if off else ""


def _is_off(
    sources: list[Any],
    gradients: list[Any],
    value: Callable[[list[Any]], float],
    tolerance: float,
    rng: np.random.Generator,
) -> bool:
    """Whether gradients differ from differences of `value`, one random direction for each source."""
    from mixgrad.testing._numeric import derivative  # noqa: PLC0415  testing stands on the transforms

    for i, (source, gradient) in enumerate(zip(sources, gradients, strict=True)):
        direction = rng.standard_normal(source.shape)

        def along(step: float, i: int = i, source: Any = source, direction: Any = direction) -> tuple[float, float]:
            with np.errstate(all="ignore"):
                found = value([*sources[:i], source + step * direction, *sources[i + 1 :]])
            return found, float(np.finfo(np.float64).eps) * abs(found)

        verdict = derivative(along, float(np.max(np.abs(source), initial=0.0)))
        if verdict is None:
            continue
        low, high, error = verdict
        slope = float(np.sum(gradient * direction).real)
        scale = float(np.sum(np.abs(gradient * direction)))
        allowed = tolerance * max(abs(low), abs(high), scale) + error
        if not np.isfinite(slope) or not low - allowed <= slope <= high + allowed:
            return True
    return False
