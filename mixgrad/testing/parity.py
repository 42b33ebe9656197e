# SPDX-License-Identifier: Apache-2.0
"""Native implementations against Python ones."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core
from mixgrad._difference import difference
from mixgrad._tree import flatten
from mixgrad.errors import CheckError
from mixgrad.registry import prefer, registry
from mixgrad.testing._numeric import random_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mixgrad.registry import Sample

__all__ = ["check_parity", "sample_call", "shown"]


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
        title = f"op '{op.name}', sample {number} ({shown(sample)})"
        compared += _compare_languages(op, sample, pairs[-1], title, order, rtol)
    if not compared:
        raise CheckError(f"op '{op.name}': the native {pairs[-1]} declined every sample, so nothing was compared")
    return compared


def _compare_languages(op: Any, sample: Any, what_runs: str, title: str, order: int, rtol: float | None) -> int:
    """Whether the native implementation ran, of the forward or the gradient, and gave what Python gives."""
    runs = {}
    ran = False
    for language in ("python", "native"):
        before = _calls(op, what_runs)
        with np.errstate(all="ignore"), prefer(language, op.name):
            runs[language] = list(_results(op, sample, order))
        after = _calls(op, what_runs)
        if language == "native":
            ran = after != before
    for (what, expected), (_, found) in zip(runs["python"], runs["native"], strict=True):
        different = difference(expected, found, rtol)
        if different is not None:
            raise CheckError(f"{title}: {what}: {different.text}")
    return int(ran)


def _calls(op: Any, what: str) -> int:
    return int(_core.implementations(op)[what]["native"]["calls"])


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
        for i, g in enumerate(window.gradient(targets, watched, [random_like(_core.value(y), rng) for y in targets])):
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
        upstream = [outer.watch(random_like(_core.value(y), rng)) for y in targets]
        gradients = inner.gradient(targets, watched, upstream)
        outer.stop()
        again = [g for g in gradients if type(g) is _core.Array and outer.depends(g)]
        if not again:
            return
        seconds = outer.gradient(again, sources + upstream, [random_like(_core.value(g), rng) for g in again])
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
    names = [name for name in op.inputs if name in bound.arguments]
    leaves, structure = flatten([bound.arguments[name] for name in names])
    where = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc"
    ]

    def call(*sources: Any) -> Any:
        full = list(leaves)
        for i, source in zip(where, sources, strict=True):
            full[i] = source
        given = dict(zip(names, structure.unflatten(full), strict=True))
        made = inspect.BoundArguments(bound.signature, {**bound.arguments, **given})
        return op(*made.args, **made.kwargs)

    call.__qualname__ = op.name
    return call, [leaves[i] for i in where]


def _plain(value: Any) -> Any:
    return _core.value(value) if type(value) is _core.Array else np.asarray(value)


def shown(sample: Any) -> str:
    leaves, _ = flatten(tuple(sample.args))
    parts = [
        f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, (np.ndarray, np.generic)) else repr(leaf)
        for leaf in leaves
    ]
    return ", ".join(parts + [f"{name}={value!r}" for name, value in sample.attributes.items()])
