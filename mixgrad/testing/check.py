# SPDX-License-Identifier: Apache-2.0
"""A gradient against central differences, and against everything that gradients meet in use."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mixgrad import _core
from mixgrad._tree import flatten, is_leaf, paths
from mixgrad.errors import CheckError, MissingGradientError
from mixgrad.registry import in_force, record
from mixgrad.testing._layouts import LAYOUTS
from mixgrad.testing._numeric import derivative, random_like
from mixgrad.testing.leaks import left_since
from mixgrad.transforms import vjp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["check_gradient"]

ELEMENTS = 128
"""How many elements of one input are checked one by one; of a larger input this many at random, and one random direction."""

FEWER = 8
"""The same away from the arguments that were given."""

SCALES = {"30 times": 30.0, "a thirtieth of": 1 / 30}


def check_gradient(
    f: Callable[..., Any],
    *args: Any,
    order: int = 1,
    rtol: float = 1e-8,
    atol: float | None = None,
    signs: bool = True,
    variants: bool = True,
    seed: int = 0,
) -> None:
    """Checks the gradient of a function against central differences, in double precision, and its behaviour in use.

    All float and complex arguments are checked, each element by itself, with a random gradient arriving at the output. The
    differences are extrapolated, and their own error is estimated and allowed for. Where the function has a kink, any value
    between its one-sided derivatives is right; where it jumps or is not finite, nothing is checked.

    The gradient must also be linear in what arrives; come out the same when it is taken again, and however what arrives lies
    in memory (strided, transposed, reversed, broadcast, read-only); change nothing that it is given, and keep none of it;
    and not lose digits on the way in single precision. In single precision it must agree with itself.

    Parameters
    ----------
    f : callable
        An op, or any function of arrays (or containers of them) that returns arrays.
    *args
        Where to check it. Single precision is made double; other dtypes are passed on as they are.
    order : int
        2 checks second derivatives as well.
    rtol, atol : float
        The allowed difference. `atol` is `rtol` times the input's largest gradient when left out.
    signs : bool
        Whether to check at the negative arguments too, if the function is finite there: a gradient that is wrong for
        negative numbers only is a common mistake.
    variants : bool
        Whether to check also at larger and smaller arguments, with arrays of no elements, with single numbers and in single
        precision, each if the function takes that without a warning.
    seed : int
        For the random numbers.

    Raises
    ------
    CheckError
        Its text is the report.

    Examples
    --------
    >>> import numpy as np
    >>> from mixgrad.testing import check_gradient
    >>> check_gradient(np.multiply, np.array([1.0, 2.0]), 3.0, order=2)
    """
    if order not in (1, 2):
        raise ValueError(f"order is 1 or 2, not {order}; check a gradient's own gradient by giving the gradient as f")
    rng = np.random.default_rng(seed)
    leaves, structure = flatten(args)
    leaves = [_double(leaf) for leaf in leaves]
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc"]
    names = [_argument_name(path) for path in paths(args)]
    if not where:
        raise CheckError(f"{_name(f)} was given no float or complex argument, so there is no gradient to check")

    def of_checked(*checked: Any) -> Any:
        full = list(leaves)
        for i, leaf in zip(where, checked, strict=True):
            full[i] = leaf
        return f(*structure.unflatten(full))

    subject = _Subject(_name(f), of_checked, [names[i] for i in where], rtol, atol)
    point = [leaves[i] for i in where]
    _check_leaks(subject, point, rng)
    checked = 0
    for at, there, scale, most in _points(of_checked, point, signs, variants):
        here = subject._replace(at=at, scale=scale)
        with np.errstate(all="ignore") if at else contextlib.nullcontext():
            checked += _check_values(here, there, rng, most)
            if order == 2 and most == ELEMENTS:
                checked += _check_values(_second(here, there), _with_upstream(of_checked, there, rng), rng, most)
            if scale == 1.0:
                _check_use(here, there, rng)
    if variants:
        _check_single(subject, point, rng)
    if checked == 0 and any(leaf.size for leaf in point):
        raise CheckError(f"{_name(f)} is not finite, or jumps, at these arguments: there was nothing to check")


class _Subject(NamedTuple):
    """A function of arrays that is checked, and how it is called in a report."""

    name: str
    f: Callable[..., Any]
    inputs: Sequence[str]
    rtol: float
    atol: float | None
    title: str = "gradient"
    at: str = ""
    scale: float = 1.0

    def fail(self, text: str) -> CheckError:
        return CheckError(f"{self.title} of {self.name}{self.at}: {text}")


class _Taken:
    """A function evaluated at a point, and its gradients for what arrives."""

    def __init__(self, subject: _Subject, point: list[Any], rng: np.random.Generator) -> None:
        self.subject, self.point, self.rng = subject, point, rng
        try:
            value, self.pull = vjp(subject.f, *point)
        except Exception as error:
            if subject.at:
                # Plain arrays it takes there.
                raise subject.fail(f"recording it fails: {type(error).__name__}: {error}") from error
            raise
        outputs, self.structure = flatten(value)
        self.outputs = [np.asarray(y) for y in outputs]

    def upstream(self) -> list[Any]:
        return [random_like(y, self.rng) for y in self.outputs]

    def take(self, g: list[Any]) -> list[Any]:
        """The gradients, when nothing that they are computed from was changed."""
        given = [*self.point, *g]
        before = [np.array(x) for x in given]
        try:
            found = self.pull(self.structure.unflatten(g))
        except (CheckError, MissingGradientError):
            raise
        except Exception as error:
            raise self.subject.fail(f"it fails: {type(error).__name__}: {error}") from error
        for name, x, old in zip((*self.subject.inputs, *["what arrives"] * len(g)), given, before, strict=True):
            if not np.array_equal(x, old, equal_nan=True):
                raise self.subject.fail(f"it writes into {name}")
        return [np.asarray(x) for x in (found if len(self.point) > 1 else (found,))]


# --- other points ----------------------------------------------------------------------------------------------------


def _points(
    f: Callable[..., Any], point: list[Any], signs: bool, variants: bool
) -> Iterator[tuple[str, list[Any], float, int]]:
    """Where to check: in words, the arguments, their scale, and how many elements. The function takes all but the first."""
    yield "", point, 1.0, ELEMENTS
    if signs:
        # A complex number is turned by a little less than half: branch cuts lie on the axis.
        negative = [-leaf * np.exp(0.1j) if leaf.dtype.kind == "c" else -leaf for leaf in point]
        if _takes(f, negative):
            yield " at the negative arguments", negative, 1.0, ELEMENTS
        elif len(point) > 1:
            # As many of them as the function takes.
            for i, leaf in enumerate(negative):
                one = [*point[:i], leaf, *point[i + 1 :]]
                if _takes(f, one):
                    yield f" with number {i} of its arguments negative", one, 1.0, FEWER
    if not variants:
        return
    for words, scale in SCALES.items():
        scaled = [leaf * scale for leaf in point]
        if _takes(f, scaled):
            yield f" at {words} the arguments", scaled, scale, FEWER
    for words, candidates in (
        ("with arrays of no elements", _empties(point)),
        ("with single numbers", _numbers(point)),
    ):
        taken = next((candidate for candidate in candidates if _takes(f, candidate)), None)
        if taken is not None:
            yield f" {words}", taken, 1.0, FEWER


def _empties(point: list[Any]) -> Iterator[list[Any]]:
    """Without elements, all axes of one length at a time: those belong together."""
    if all(leaf.size for leaf in point):
        for length in dict.fromkeys(n for leaf in point for n in leaf.shape):
            yield [leaf[tuple(slice(0 if n == length else None) for n in leaf.shape)] for leaf in point]


def _numbers(point: list[Any]) -> Iterator[list[Any]]:
    if any(leaf.ndim for leaf in point) and all(leaf.size for leaf in point):
        yield [leaf.reshape(-1)[0].reshape(()) for leaf in point]


def _takes(f: Callable[..., Any], point: list[Any]) -> bool:
    """Whether a function takes these arguments without a complaint of any kind, and is finite there."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            outputs, _ = flatten(f(*point))
        return all(np.all(np.isfinite(np.asarray(y))) for y in outputs)
    except Exception:  # noqa: BLE001  the function may refuse them in any way it likes
        return False


# --- values ----------------------------------------------------------------------------------------------------------


def _check_values(subject: _Subject, point: list[Any], rng: np.random.Generator, most: int) -> int:
    """Compares all gradients at a point with differences; how many elements could be compared."""
    taken = _Taken(subject, point, rng)
    upstream = taken.upstream()
    used = [i for i, y in enumerate(taken.outputs) if y.dtype.kind in "fc"]
    gradients = taken.take(upstream)
    for name, leaf, gradient in zip(subject.inputs, point, gradients, strict=True):
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            raise subject.fail(
                f"that of {name} has shape {gradient.shape} and dtype {gradient.dtype}; the input has {leaf.shape} and {leaf.dtype}"
            )

    def projected(*leaves: Any) -> tuple[float, float]:
        """The real function whose gradient it is, and its rounding error."""
        with np.errstate(all="ignore"):
            found, _ = flatten(subject.f(*leaves))
        value = error = 0.0
        for i in used:
            y = np.asarray(found[i])
            terms = (upstream[i] * y).real
            value += float(terms.sum())
            error += float(2 * np.finfo(y.dtype).eps * np.abs(terms).sum())
        return value, error

    return sum(_compare(subject, projected, point, i, gradient, rng, most) for i, gradient in enumerate(gradients))


def _compare(
    subject: _Subject,
    projected: Callable[..., tuple[float, float]],
    point: list[Any],
    number: int,
    gradient: Any,
    rng: np.random.Generator,
    most: int,
) -> int:
    name, leaf = subject.inputs[number], point[number]
    finite = np.abs(gradient[np.isfinite(gradient)])
    scale = float(finite.max(initial=0.0))
    atol = subject.rtol * scale + 1e-14 if subject.atol is None else subject.atol

    def along(direction: Any, step: float) -> tuple[float, float]:
        return projected(*point[:number], leaf + step * direction, *point[number + 1 :])

    flat = np.arange(leaf.size)
    if leaf.size > most:
        flat = np.sort(rng.choice(leaf.size, most, replace=False))
    wrong: list[str] = []
    count = 0
    for k in flat:
        index = np.unravel_index(k, leaf.shape)
        for unit in (1.0, 1j) if leaf.dtype.kind == "c" else (1.0,):
            direction = np.zeros_like(leaf)
            direction[index] = unit
            # df/dx - i df/dy: the derivative along i is minus the imaginary part.
            found = float((gradient[index] * unit).real)
            verdict = derivative(
                functools.partial(along, direction), max(float(abs(leaf[index])), 0.1 * min(subject.scale, 1.0))
            )
            if verdict is None:
                continue
            low, high, error = verdict
            if subject.at and (low != high or error > 1e-3 * max(abs(low), abs(found))):
                # Far from the user's own arguments the function may be steeper than differences can tell.
                continue
            count += 1
            # There, differences lose digits too; a fault worth telling shows in the first few.
            rtol = max(subject.rtol, 1e-4) if subject.at else subject.rtol
            allowed = rtol * max(abs(low), abs(high), abs(found)) + atol + error
            if not low - allowed <= found <= high + allowed:
                if not _agree(functools.partial(along, direction), float(abs(leaf[index])), verdict):
                    continue
                part = ("real part of " if unit == 1.0 else "imaginary part of ") if leaf.dtype.kind == "c" else ""
                sign = 1.0 if unit == 1.0 else -1.0
                expected = f"{sign * low:.17g}" if low == high else f"between {low:.17g} and {high:.17g}"
                wrong.append(
                    f"{part}element {list(map(int, index))} (at {leaf[index]!s}): the gradient is {sign * found:.17g}, differences give "
                    f"{expected}, give or take {allowed:.1g}"
                )
    if wrong:
        raise subject.fail(
            f"that of {name}, of shape {leaf.shape}, is wrong at {len(wrong)} of {count} places; first {wrong[0]}"
        )
    if leaf.size > most:
        direction = rng.standard_normal(leaf.shape) / np.sqrt(leaf.size)
        verdict = derivative(functools.partial(along, direction), 1.0)
        if verdict is not None and verdict[0] == verdict[1]:
            found = float((gradient * direction).sum().real)
            allowed = subject.rtol * abs(found) + atol + verdict[2]
            if abs(found - verdict[0]) > allowed:
                raise subject.fail(
                    f"that of {name}, of shape {leaf.shape}, is wrong along a random direction: it gives {found:.17g}, differences "
                    f"{verdict[0]:.17g}, give or take {allowed:.1g}"
                )
    return count


def _agree(along: Callable[[float], tuple[float, float]], size: float, verdict: tuple[float, float, float]) -> bool:
    """Whether differences with other steps say the same: of a function that oscillates faster they do not."""
    for factor in (0.377, 0.0113):
        other = derivative(along, factor * size)
        if other is None:
            return False
        slack = verdict[2] + other[2] + 1e-5 * max(abs(other[0]), abs(other[1]), abs(verdict[0]), abs(verdict[1]))
        if other[0] - slack > verdict[1] or other[1] + slack < verdict[0]:
            return False
    return True


# --- use -------------------------------------------------------------------------------------------------------------


def _check_use(subject: _Subject, point: list[Any], rng: np.random.Generator) -> None:
    """What must hold besides the values, and can be seen exactly."""
    taken = _Taken(subject, point, rng)
    upstream = taken.upstream()
    with in_force([record(None, gradient=functools.partial(_watch, subject), origin="check_gradient")]):
        gradients = taken.take(upstream)
    first = [gradient.copy() for gradient in gradients]
    for name, gradient in zip(subject.inputs, gradients, strict=True):
        if any(np.may_share_memory(gradient, other) for other in (*point, *upstream)):
            raise subject.fail(f"that of {name} shares memory with an argument, or with what arrives")
        if gradient.flags.writeable:
            gradient.fill(np.nan)
    text = "taking it twice gives two results for {}; a gradient must not depend on anything but its arguments"
    _same(subject, first, taken.take(upstream), text, 1e-13)
    for layout, change in LAYOUTS.items():
        laid = [change(g) for g in upstream]
        if any(new is not old for new, old in zip(laid, upstream, strict=True)):
            plain = [np.array(g, order="C") for g in laid]
            text = f"that of {{}} is another when what arrives at the output is {layout}"
            _same(subject, taken.take(plain), taken.take(laid), text, 1e-12)
    other = taken.upstream()
    summed = [g + h for g, h in zip(first, taken.take(other), strict=True)]
    both = taken.take([g + h for g, h in zip(upstream, other, strict=True)])
    _same(subject, summed, both, "that of {} is not linear in what arrives", 1e-9)
    _check_accumulated(subject, point, upstream, first, rng)
    _check_precision(taken, upstream, first)


def _same(subject: _Subject, expected: list[Any], found: list[Any], text: str, tolerance: float) -> None:
    """Finite results agree, up to rounding: that may depend on where memory lies and in which order numbers are added."""
    for name, one, other in zip(subject.inputs, expected, found, strict=True):
        finite = np.isfinite(one)
        scale = np.max(np.abs(one), initial=0.0, where=finite)
        wrong = finite & ~np.isclose(other, one, rtol=tolerance, atol=tolerance * scale + 1e-14)
        if wrong.any():
            index = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), one.shape)))
            raise subject.fail(f"{text.format(name)}: element {list(index)} is {other[index]!s} and not {one[index]!s}")


def _watch(subject: _Subject, op: _core.Entry, g: Any) -> Any:
    """Runs one gradient, and compares what it was given with what it was."""
    given = {"what arrives": g if isinstance(g, tuple) else (g,), "an input": op.inputs, "an output": op.outputs}
    seen = [(what, value) for what, values in given.items() for value in values if isinstance(value, np.ndarray)]
    before = [value.copy() for _, value in seen]
    gradients = op.next(g)
    for (what, value), old in zip(seen, before, strict=True):
        if not np.array_equal(value, old, equal_nan=value.dtype.kind in "fc"):
            raise subject.fail(f"the gradient of op '{op.name}' ({op.runs[1]}) writes into {what}")
    return gradients


def _check_accumulated(
    subject: _Subject, point: list[Any], upstream: list[Any], first: list[Any], rng: np.random.Generator
) -> None:
    """What arrives is also another's, and a gradient may be a view of it: neither may be written into."""

    def shared(*values: Any) -> Any:
        leaves, others = values[: len(point)], values[len(point) :]
        outputs, _ = flatten(subject.f(*leaves))
        return [y + other for y, other in zip(outputs, others, strict=True)], subject.f(*leaves), leaves

    direct = [random_like(leaf, rng) for leaf in point]
    names = [*subject.inputs, *["what is added to the output"] * len(upstream)]
    around = _Taken(subject._replace(f=shared, inputs=names), [*point, *upstream], rng)
    found = around.take([*upstream, *upstream, *direct])
    expected = [2 * one + g for one, g in zip(first, direct, strict=True)] + upstream
    _same(around.subject, expected, found, "the sum of what arrives at {} on its ways is wrong", 1e-12)


def _check_precision(taken: _Taken, upstream: list[Any], first: list[Any]) -> None:
    """A change too small for single precision must change the gradient as much as a larger one foretells."""
    size = np.array([float(np.sum(np.abs(g))) for g in first])
    # Where a function is flat, its slope is what rounding left of it.
    if not np.isfinite(size).all() or size.max() < 1e-10 * sum(float(np.sum(np.abs(g))) for g in upstream):
        return

    def of_arguments(step: float) -> list[Any]:
        return _Taken(taken.subject, moved(taken.point, step), taken.rng).take(upstream)

    def of_upstream(step: float) -> list[Any]:
        return taken.take(moved(upstream, step))

    def moved(values: list[Any], step: float) -> list[Any]:
        rng = np.random.default_rng(0)
        return [x * (1 + step * rng.uniform(0.5, 1.0, x.shape) * rng.choice([-1.0, 1.0], x.shape)) for x in values]

    for what, gradients in (("the arguments", of_arguments), ("what arrives", of_upstream)):
        with np.errstate(all="ignore"):
            large, smaller, tiny, least = (
                np.array([float(np.sum(np.abs(g - old))) for g, old in zip(gradients(2.0**-k), first, strict=True)])
                for k in (12, 14, 30, 50)
            )
        expected = smaller * 2.0**-16
        # Where it hardly depends on them, has a kink, or is mostly rounding, this tells nothing.
        telling = (expected > 1e-12 * size) & (large > 3 * smaller) & (large < 5.3 * smaller) & (least < expected / 64)
        for name, told, one, other in zip(taken.subject.inputs, telling, tiny, expected, strict=True):
            if told and not other / 8 < one < other * 8:
                raise taken.subject.fail(
                    f"that of {name} is not computed in double precision: a change of {what} in the tenth digit changes it by "
                    f"{one:.1g} and not by {other:.1g}"
                )


def _check_leaks(subject: _Subject, point: list[Any], rng: np.random.Generator) -> None:
    before = _core.counters()
    taken = _Taken(subject, point, rng)
    taken.take(taken.upstream())
    del taken
    left = left_since(before)
    if left:
        raise subject.fail(f"it leaves behind {left}: it keeps what it was given, or an Array")


def _check_single(subject: _Subject, point: list[Any], rng: np.random.Generator) -> None:
    """In single precision: the dtype, and the values as far as single precision goes."""
    point = [leaf.astype(_SINGLE[leaf.dtype.kind]) for leaf in point]
    if not _takes(subject.f, point):
        return
    subject = subject._replace(at=" in single precision")
    with np.errstate(all="ignore"):
        taken = _Taken(subject, point, rng)
        upstream = taken.upstream()
        found = taken.take(upstream)
        exact = [leaf.astype(_DOUBLE[leaf.dtype.kind]) for leaf in point]
        g = [one.astype(_DOUBLE[one.dtype.kind]) for one in upstream]
        expected = _Taken(subject, exact, rng).take(g)
        # What a rounding of the arguments does to it, which is no fault of the gradient.
        spread = [np.zeros(leaf.shape) for leaf in point]
        for _ in range(3):
            moved = [x * (1 + 1e-6 * rng.choice([-1.0, 1.0], x.shape)) for x in exact]
            others = _Taken(subject, moved, rng).take(g)
            spread = [np.maximum(s, np.abs(a - b)) for s, a, b in zip(spread, others, expected, strict=True)]
        for name, leaf, one, other, s in zip(subject.inputs, point, found, expected, spread, strict=True):
            if one.dtype != leaf.dtype or one.shape != leaf.shape:
                raise subject.fail(
                    f"that of {name} has dtype {one.dtype} and shape {one.shape}; the input has {leaf.dtype} and {leaf.shape}"
                )
            comparable = np.isfinite(other) & np.isfinite(s) & (np.abs(other) < np.finfo(np.float32).max / 2)
            scale = np.max(np.abs(other), initial=0.0, where=comparable)
            # Near the smallest numbers that single precision has, it has no digits.
            comparable &= scale > 1e-30
            wrong = comparable & ~(np.abs(one - other) <= 1e-4 * scale + 20 * s)
            if wrong.any():
                index = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), leaf.shape)))
                raise subject.fail(
                    f"that of {name} is not what it is in double precision: element {list(index)} is {one[index]!s} and not {other[index]!s}"
                )


_SINGLE = {"f": np.float32, "c": np.complex64}
_DOUBLE = {"f": np.float64, "c": np.complex128}


# --- second order ----------------------------------------------------------------------------------------------------


def _with_upstream(f: Callable[..., Any], point: list[Any], rng: np.random.Generator) -> list[Any]:
    outputs, _ = flatten(f(*point))
    return point + [random_like(np.asarray(y), rng) for y in outputs if np.asarray(y).dtype.kind in "fc"]


def _second(subject: _Subject, point: list[Any]) -> _Subject:
    """The gradient of a function, as a function of its arguments and of what arrives at the output."""
    count = len(point)
    outputs, structure = flatten(vjp(subject.f, *point)[0])
    used = [i for i, y in enumerate(outputs) if np.asarray(y).dtype.kind in "fc"]
    likes = [np.zeros(np.shape(y)) for y in outputs]

    def first(*values: Any) -> Any:
        _, pull = vjp(subject.f, *values[:count])
        g: list[Any] = list(likes)
        for i, one in zip(used, values[count:], strict=True):
            g[i] = one
        return pull(structure.unflatten(g))

    arriving = [f"what arrives at output {i}" if len(outputs) > 1 else "what arrives at the output" for i in used]
    return subject._replace(f=first, inputs=[*subject.inputs, *arriving], title="second-order gradient")


# --- names -----------------------------------------------------------------------------------------------------------


def _double(leaf: Any) -> Any:
    if type(leaf) is _core.Array:
        leaf = _core.value(leaf)
    if not is_leaf(leaf):
        return leaf
    array = np.asarray(leaf)
    return array.astype(_DOUBLE[array.dtype.kind]) if array.dtype.kind in "fc" else leaf


def _argument_name(path: str) -> str:
    number, _, rest = path.removeprefix("[").partition("]")
    return f"input {number}{rest}"


def _name(f: Any) -> str:
    return getattr(f, "name", None) or getattr(f, "__qualname__", None) or repr(f)
