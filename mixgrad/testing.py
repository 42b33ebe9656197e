# SPDX-License-Identifier: Apache-2.0
"""Checks of gradients, for mixgrad's own tests and for yours: against differences, native against Python, and leaks."""

from __future__ import annotations

import functools
import gc
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad._tree import flatten, is_leaf, paths
from mixgrad.errors import CheckError
from mixgrad.registry import prefer, registry
from mixgrad.transforms import vjp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mixgrad.registry import Sample

__all__ = ["assert_no_leaks", "check_gradient", "check_parity", "sample_call"]

ELEMENTS = 128
"""How many elements of one input are checked one by one; of a larger input this many at random, and one random direction."""


def check_gradient(
    f: Callable[..., Any],
    *args: Any,
    order: int = 1,
    rtol: float = 1e-8,
    atol: float | None = None,
    signs: bool = True,
    seed: int = 0,
) -> None:
    """Checks the gradient of a function against central differences, in double precision.

    All float and complex arguments are checked, each element by itself, with a random gradient arriving at the output. The
    differences are extrapolated, and their own error is estimated and allowed for. The gradient must also come out the same
    when it is taken again, and when what arrives is not contiguous. Where the function has a kink, any value between
    its one-sided derivatives is right; where it jumps or is not finite, nothing is checked.

    Parameters
    ----------
    f : callable
        An op, or any function of arrays (or containers of them) that returns arrays.
    *args
        Where to check it. Single precision is made double; other dtypes are passed on as they are.
    order : int
        2 checks second derivatives as well, and that the gradient is linear in what arrives.
    rtol, atol : float
        The allowed difference. `atol` is `rtol` times the input's largest gradient when left out.
    signs : bool
        Whether to check at the negative arguments too, if the function is finite there: a gradient that is wrong for
        negative numbers only is a common mistake.
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
    points = [[leaves[i] for i in where]]
    if signs:
        negative = [-leaf for leaf in points[0]]
        if _finite(of_checked, negative):
            points.append(negative)
    checked = 0
    for point in points:
        checked += _check_first(subject, point, rng)
        if order == 2:
            checked += _check_first(_second(subject, point), _with_upstream(of_checked, point, rng), rng)
    if checked == 0 and any(leaf.size for leaf in points[0]):
        raise CheckError(f"{_name(f)} is not finite, or jumps, at these arguments: there was nothing to check")


class _Subject:
    """A function of arrays that is checked, and how it is called in a report."""

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        inputs: Sequence[str],
        rtol: float,
        atol: float | None,
        title: str = "gradient",
    ) -> None:
        self.name, self.f, self.inputs, self.rtol, self.atol, self.title = name, f, inputs, rtol, atol, title

    def fail(self, text: str) -> CheckError:
        return CheckError(f"{self.title} of {self.name}: {text}")


def _check_first(subject: _Subject, point: list[Any], rng: np.random.Generator) -> int:
    """Compares all gradients at a point with differences; how many elements could be compared."""
    before = [leaf.copy() for leaf in point]
    value, pull = vjp(subject.f, *point)
    outputs, structure = flatten(value)
    outputs = [np.asarray(y) for y in outputs]
    upstream = [_upstream(y, rng) for y in outputs]
    used = [i for i, y in enumerate(outputs) if y.dtype.kind in "fc"]

    def take(g: list[Any]) -> list[Any]:
        found = pull(structure.unflatten(g))
        return [np.asarray(x) for x in (found if len(point) > 1 else (found,))]

    gradients = take(upstream)
    _check_form(subject, point, gradients)
    for one, other in zip(gradients, take(upstream), strict=True):
        # Rounding may depend on where the memory lies, and on nothing else.
        scale = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        if not np.allclose(one, other, rtol=1e-13, atol=1e-13 * scale, equal_nan=True):
            raise subject.fail(
                "taking it twice gives two results; a gradient must not depend on anything but its arguments"
            )
    for layout, change in _LAYOUTS.items():
        for name, one, other in zip(subject.inputs, gradients, take([change(g) for g in upstream]), strict=True):
            if not np.allclose(one, other, rtol=1e-10, atol=1e-12, equal_nan=True):
                raise subject.fail(f"that of {name} is another when what arrives at the output is {layout}")
    for name, leaf, old in zip(subject.inputs, point, before, strict=True):
        if not np.array_equal(leaf, old, equal_nan=True):
            raise subject.fail(f"{name} was changed on the way")

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

    count = 0
    for i, (name, gradient) in enumerate(zip(subject.inputs, gradients, strict=True)):
        count += _compare(subject, name, projected, point, i, gradient, rng)
    return count


def _check_form(subject: _Subject, point: list[Any], gradients: list[Any]) -> None:
    for name, leaf, gradient in zip(subject.inputs, point, gradients, strict=True):
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            raise subject.fail(
                f"that of {name} has shape {gradient.shape} and dtype {gradient.dtype}; the input has {leaf.shape} and {leaf.dtype}"
            )


def _compare(
    subject: _Subject,
    name: str,
    projected: Callable[..., tuple[float, float]],
    point: list[Any],
    number: int,
    gradient: Any,
    rng: np.random.Generator,
) -> int:
    leaf = point[number]
    finite = np.abs(gradient[np.isfinite(gradient)])
    scale = float(finite.max(initial=0.0))
    atol = subject.rtol * scale + 1e-14 if subject.atol is None else subject.atol

    def along(direction: Any, step: float) -> tuple[float, float]:
        return projected(*point[:number], leaf + step * direction, *point[number + 1 :])

    flat = np.arange(leaf.size)
    if leaf.size > ELEMENTS:
        flat = np.sort(rng.choice(leaf.size, ELEMENTS, replace=False))
    wrong: list[str] = []
    count = 0
    for k in flat:
        index = np.unravel_index(k, leaf.shape)
        for unit in (1.0, 1j) if leaf.dtype.kind == "c" else (1.0,):
            direction = np.zeros_like(leaf)
            direction[index] = unit
            # df/dx - i df/dy: the derivative along i is minus the imaginary part.
            found = float((gradient[index] * unit).real)
            verdict = _derivative(functools.partial(along, direction), float(abs(leaf[index])))
            if verdict is None:
                continue
            count += 1
            low, high, error = verdict
            allowed = subject.rtol * max(abs(low), abs(high), abs(found)) + atol + error
            if not low - allowed <= found <= high + allowed:
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
    if leaf.size > ELEMENTS:
        direction = rng.standard_normal(leaf.shape) / np.sqrt(leaf.size)
        verdict = _derivative(functools.partial(along, direction), 1.0)
        if verdict is not None and verdict[0] == verdict[1]:
            found = float((gradient * direction).sum().real)
            allowed = subject.rtol * abs(found) + atol + verdict[2]
            if abs(found - verdict[0]) > allowed:
                raise subject.fail(
                    f"that of {name}, of shape {leaf.shape}, is wrong along a random direction: it gives {found:.17g}, differences "
                    f"{verdict[0]:.17g}, give or take {allowed:.1g}"
                )
    return count


def _derivative(along: Callable[[float], tuple[float, float]], size: float) -> tuple[float, float, float] | None:
    """The derivative of ``along`` at 0 as an interval, and its own error; None where it has none.

    ``along`` gives a value and its rounding error.
    At a kink the interval lies between the one-sided derivatives.
    """
    middle, _ = along(0.0)
    if not (np.isfinite(size) and np.isfinite(middle)):
        return None
    best: tuple[float, float, float] | None = None
    for relative in (1e-2, 1e-3, 1e-5):
        step = relative * max(size, 0.1)
        steps = (step, step / 2, step / 4)
        right, left = [along(h) for h in steps], [along(-h) for h in steps]
        values = np.array([value for value, _ in right + left])
        if not np.isfinite(values).all():
            continue
        noise = 2 * max(rounding for _, rounding in right + left) / steps[-1]
        forward = [(r[0] - middle) / h for r, h in zip(right, steps, strict=True)]
        backward = [(middle - l[0]) / h for l, h in zip(left, steps, strict=True)]
        gaps = [abs(f - b) for f, b in zip(forward, backward, strict=True)]
        scale = max(map(abs, forward + backward))
        if gaps[2] > 0.7 * gaps[0] and gaps[2] > 1e-5 * scale + 8 * noise:
            # The one-sided derivatives do not approach each other: a kink, or a jump if they grow.
            if gaps[2] > 1.5 * gaps[0]:
                continue
            bounds = forward[2], backward[2]
            slack = abs(forward[2] - forward[0]) + abs(backward[2] - backward[0]) + noise
            best = _better(best, (min(bounds), max(bounds), 2 * slack))
            continue
        central = [(f + b) / 2 for f, b in zip(forward, backward, strict=True)]
        once = [(4 * central[1] - central[0]) / 3, (4 * central[2] - central[1]) / 3]
        twice = (16 * once[1] - once[0]) / 15
        error = 3 * abs(twice - once[1]) + noise
        first, last = abs(central[1] - central[0]), abs(central[2] - central[1])
        if 3 * last > first:
            # Not the convergence of a smooth function, which the extrapolation takes for granted.
            error = max(error, 4 * last)
        best = _better(best, (twice, twice, error))
        if error < 1e-9 * scale:
            break
    return best


def _better(old: tuple[float, float, float] | None, new: tuple[float, float, float]) -> tuple[float, float, float]:
    return new if old is None or new[2] < old[2] else old


def _upstream(y: Any, rng: np.random.Generator) -> Any:
    """Random numbers of both signs, away from zero, like an output."""
    g = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    if y.dtype.kind == "c":
        g = g + 1j * rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    return np.asarray(g).astype(y.dtype if y.dtype.kind in "fc" else np.float64)


def _reversed(g: Any) -> Any:
    return np.ascontiguousarray(g[::-1])[::-1] if g.ndim else g


def _strided(g: Any) -> Any:
    if not g.ndim:
        return g
    wide = np.full((*g.shape[:-1], 2 * g.shape[-1]), np.nan, g.dtype)
    wide[..., ::2] = g
    return wide[..., ::2]


_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in Fortran order": lambda g: np.array(g, order="F"),
    "in reverse order in memory": _reversed,
    "every other element in memory": _strided,
}


def _with_upstream(f: Callable[..., Any], point: list[Any], rng: np.random.Generator) -> list[Any]:
    outputs, _ = flatten(f(*point))
    return point + [_upstream(np.asarray(y), rng) for y in outputs if np.asarray(y).dtype.kind in "fc"]


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
    return _Subject(
        subject.name, first, [*subject.inputs, *arriving], subject.rtol, subject.atol, "second-order gradient"
    )


def _finite(f: Callable[..., Any], point: list[Any]) -> bool:
    try:
        with np.errstate(all="ignore"):
            outputs, _ = flatten(f(*point))
        return all(np.all(np.isfinite(np.asarray(y))) for y in outputs)
    except Exception:  # noqa: BLE001  the function may refuse negative numbers in any way it likes
        return False


def _double(leaf: Any) -> Any:
    if type(leaf) is _core.Array:
        leaf = _core.value(leaf)
    if not is_leaf(leaf):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind not in "fc":
        return leaf
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _argument_name(path: str) -> str:
    number, _, rest = path.removeprefix("[").partition("]")
    return f"input {number}{rest}"


def _name(f: Any) -> str:
    return getattr(f, "name", None) or getattr(f, "__qualname__", None) or repr(f)


def check_parity(op: Any, samples: Iterable[Sample] | None = None, *, order: int = 2, rtol: float | None = None) -> int:
    """Checks an op's native implementations against its Python ones, over its sample inputs.

    Values, dtypes and shapes must agree, of the output (when both forwards exist) and of every input's gradient, up to
    the rounding of the dtype; with ``order=2`` also of the gradients' own gradients.

    Parameters
    ----------
    op : Op or str
        The op, or its name.
    samples : iterable of Sample, optional
        The calls to compare; the op's own samples when left out.
    order : int
        1 or 2.
    rtol : float, optional
        The allowed relative difference; 200 times the rounding error of the dtype when left out.

    Returns
    -------
    int
        In how many samples both gradients ran: a native one may decline some.

    Raises
    ------
    CheckError
        Its text is the report. Also when there are not two implementations to compare, or the native one declined every sample.

    Examples
    --------
    >>> from mixgrad.testing import check_parity
    >>> check_parity("multiply") > 0
    True
    """
    op = registry[op] if isinstance(op, str) else op
    there = _core.implementations(op)
    pairs = [what for what in ("forward", "gradient") if {"native", "python"} <= set(there[what])]
    if not pairs:
        listed = "; ".join(f"{what}: {' and '.join(there[what]) or 'none'}" for what in ("forward", "gradient"))
        raise CheckError(f"op '{op.name}' has nothing to compare, native with Python ({listed})")
    if not all(row["differentiable"] for row in there["gradient"].values()):
        order = 1
    compared = 0
    for number, sample in enumerate((op.samples or tuple)() if samples is None else samples):
        compared += _compare_languages(op, sample, f"op '{op.name}', sample {number} ({_shown(sample)})", order, rtol)
    if not compared:
        raise CheckError(f"op '{op.name}': the native {pairs[-1]} declined every sample, so nothing was compared")
    return compared


def _compare_languages(op: Any, sample: Any, title: str, order: int, rtol: float | None) -> int:
    runs = {}
    ran = False
    for language in ("python", "native"):
        before = _calls(op)
        with np.errstate(all="ignore"), prefer(language, op.name):
            runs[language] = list(_results(op, sample, order))
        after = _calls(op)
        if language == "native":
            ran = after != before
    for (what, expected), (_, found) in zip(runs["python"], runs["native"], strict=True):
        _same(f"{title}: {what}", expected, found, rtol)
    return int(ran)


def _calls(op: Any) -> tuple[int, ...]:
    there = _core.implementations(op)
    return tuple(there[what]["native"]["calls"] for what in ("forward", "gradient") if "native" in there[what])


def _results(op: Any, sample: Any, order: int) -> Iterator[tuple[str, Any]]:
    """Output, gradients and second-order gradients of one call, in a fixed order."""
    f, arrays = sample_call(op, sample)
    window = _core.Window()
    window.start()
    try:
        outputs, targets, watched = _record(window, f, arrays)
        for i, y in enumerate(outputs):
            yield f"output {i}", _plain(y)
        if not targets or not watched:
            return
        rng = np.random.default_rng(0)
        for i, g in enumerate(window.gradient(targets, watched, [_upstream(_core.value(y), rng) for y in targets])):
            yield f"the gradient of input {i}", None if g is None else _plain(g)
    finally:
        window.close()
    if order == 2:
        yield from _second_results(f, arrays)


def _second_results(f: Callable[..., Any], arrays: list[Any]) -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(0)
    outer, inner = _core.Window(), _core.Window()
    outer.start()
    try:
        sources = [outer.watch(array) for array in arrays]
        inner.start()
        _, targets, watched = _record(inner, f, sources)
        upstream = [outer.watch(_upstream(_core.value(y), rng)) for y in targets]
        gradients = inner.gradient(targets, watched, upstream)
        outer.stop()
        again = [g for g in gradients if type(g) is _core.Array and outer.depends(g)]
        if not again:
            return
        seconds = outer.gradient(again, sources + upstream, [_upstream(_core.value(g), rng) for g in again])
        for i, g in enumerate(seconds):
            name = f"input {i}" if i < len(sources) else f"what arrives at output {i - len(sources)}"
            yield f"the second-order gradient of {name}", None if g is None else _plain(g)
    finally:
        inner.close()
        outer.close()


def _record(window: _core.Window, f: Callable[..., Any], sources: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, those that can be differentiated, and the sources as they were watched."""
    watched = [window.watch(source) for source in sources]
    result = f(*watched)
    window.stop()
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    return outputs, [y for y in outputs if type(y) is _core.Array and window.depends(y)], watched


def sample_call(op: Any, sample: Sample) -> tuple[Callable[..., Any], list[Any]]:
    """One sample call of an op as a function of its float and complex arrays, and these arrays.

    >>> from mixgrad import registry, Sample
    >>> f, arrays = sample_call(registry["sum"], Sample(np.ones((2, 3)), axis=1))
    >>> len(arrays), f(2 * arrays[0])
    (1, array([6., 6.]))
    """
    bound = inspect.signature(op).bind(*sample.args, **sample.attributes)
    given = {name: bound.arguments[name] for name in op.inputs if name in bound.arguments}
    leaves, structure = flatten(given)
    where = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc"
    ]

    def call(*sources: Any) -> Any:
        full = list(leaves)
        for i, source in zip(where, sources, strict=True):
            full[i] = source
        bound.arguments.update(structure.unflatten(full))
        return op(*bound.args, **bound.kwargs)

    call.__qualname__ = op.name
    return call, [leaves[i] for i in where]


def _plain(value: Any) -> Any:
    return _core.value(value) if type(value) is _core.Array else np.asarray(value)


def _same(title: str, expected: Any, found: Any, rtol: float | None) -> None:
    if expected is None or found is None:
        if (expected is None) == (found is None) or not np.any(found if expected is None else expected):
            return
        raise CheckError(f"{title}: Python gives {_brief(expected)}, native {_brief(found)}")
    if expected.shape != found.shape or expected.dtype != found.dtype:
        raise CheckError(
            f"{title}: Python gives {expected.dtype} of shape {expected.shape}, native {found.dtype} of shape {found.shape}"
        )
    if expected.dtype.kind not in "fc":
        close = expected == found
    else:
        tolerance = 200 * np.finfo(expected.dtype).eps if rtol is None else rtol
        scale = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
        with np.errstate(all="ignore"):
            close = np.isclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not np.all(close):
        first = tuple(map(int, np.argwhere(~np.asarray(close))[0]))
        wrong = int(np.size(close) - np.count_nonzero(close))
        raise CheckError(
            f"{title}: {wrong} of {np.size(close)} elements differ; first element {list(first)}: Python gives {expected[first]!s}, native "
            f"{found[first]!s}"
        )


def _brief(value: Any) -> str:
    return "nothing (zero)" if value is None else f"an array of shape {value.shape}"


def _shown(sample: Any) -> str:
    leaves, _ = flatten(tuple(sample.args))
    parts = [
        f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, (np.ndarray, np.generic)) else repr(leaf)
        for leaf in leaves
    ]
    return ", ".join(parts + [f"{name}={value!r}" for name, value in sample.attributes.items()])


@contextmanager
def assert_no_leaks() -> Iterator[None]:
    """For a ``with`` block: after it, mixgrad's live buffers, arrays, entries and tapes are as many as before.

    Arrays made before the block may be used in it; what the block makes must be gone at its end.

    Examples
    --------
    >>> import mixgrad
    >>> from mixgrad.testing import assert_no_leaks
    >>> with assert_no_leaks():
    ...     _ = mixgrad.grad(lambda x: x * x)(2.0)
    """
    gc.collect()
    before = _core.counters()
    yield
    gc.collect()
    after = _core.counters()
    more = {name: after[name] - count for name, count in before.items() if after[name] > count}
    if more:
        listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in more.items())
        raise CheckError(
            f"the block left behind {listed}. Something still holds an Array or a Tape: a global, a closure, an exception's traceback"
        )
