# SPDX-License-Identifier: Apache-2.0
"""Faults planted in a gradient, one at a time, to see which of them a test notices."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad.errors import CheckError
from mixgrad.registry import override_gradient, registry
from mixgrad.testing.check import check_gradient
from mixgrad.testing.faults import FAULTS, KEPT, Fault, plain
from mixgrad.testing.parity import sample_call, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mixgrad import _core
    from mixgrad.registry import Language, Op

__all__ = ["Mutations", "check_samples", "mutate"]


class _Planted:
    """One fault at one place, and the override that plants it."""

    def __init__(self, fault: Fault, index: int | None) -> None:
        self.fault, self.index = fault, index
        self.possible = False  # the gradient ran, and has this input
        self.different = False  # what is planted was seen to differ from what is right
        self.planted = False
        self.refused = ""
        self.broken: Exception | None = None  # a mutant of the user's that fails by itself proves nothing

    def __call__(self, op: _core.Entry, g: Any, gradients: Any) -> Any:
        """What is wrong, or None where there is no place for it."""
        i = self.index
        if i is not None and (i >= len(gradients) or gradients[i] is None):
            return None
        self.possible = True
        try:
            if i is None:
                wrong = self.fault.plant(op, g, gradients)
            else:
                one = self.fault.plant(op, g, gradients, i)
                # None is a fault of its own, where it is not the answer that there is no place.
                here = one is not None or self.fault.name == "None"
                wrong = (*gradients[:i], one, *gradients[i + 1 :]) if here else None
        except Exception as error:
            if self.fault.hidden:
                self.broken = error
            self.planted = self.different = True
            self.refused = f"{type(error).__name__}: {error}"
            raise
        if wrong is not None:
            self.planted = True
            self.different = self.different or self.fault.hidden or _differ(gradients, wrong)
        return wrong


def _differ(right: Any, wrong: Any) -> bool:
    return len(right) != len(wrong) or any(
        (one is None) != (other is None)
        or (one is not None and not np.array_equal(plain(one), plain(other), equal_nan=True))
        for one, other in zip(right, wrong, strict=True)
    )


class Mutations:
    """Which faults a test noticed. Prints as a table.

    Attributes
    ----------
    op : str
        The op's name.
    rows : list of dict
        With the keys op, fault, input (None: not of one input), result and by. The result is ``killed``, ``survived``,
        ``equal`` (the fault changes nothing for this op) or ``not applicable``. Made for ``pandas.DataFrame(rows)``.
    """

    def __init__(self, op: str, rows: list[dict[str, Any]]) -> None:
        self.op, self.rows = op, rows

    @property
    def survived(self) -> list[str]:
        """The faults that the test did not notice."""
        return [_title(row) for row in self.rows if row["result"] == "survived"]

    def __repr__(self) -> str:
        counts = {result: sum(row["result"] == result for row in self.rows) for result in ("killed", "survived")}
        lines = [f"op '{self.op}': {counts['killed']} of {sum(counts.values())} faults noticed"]
        width = max((len(_title(row)) for row in self.rows), default=0)
        for row in self.rows:
            by = textwrap.shorten(row["by"], 100, placeholder="...")
            lines.append(f"  {_title(row):{width}}  {row['result']:14}  {by}".rstrip())
        return "\n".join(lines)


def _title(row: dict[str, Any]) -> str:
    return row["fault"] if row["input"] is None else f"{row['fault']}, input {row['input']}"


def mutate(
    op: Op | str,
    check: Callable[[], Any] | None = None,
    *,
    mutants: Iterable[str] | Mapping[str, Callable[..., Any]] | None = None,
    language: Language | None = None,
) -> Mutations:
    """Plants faults in an op's gradient, one at a time, and reports which of them a test notices.

    Nothing is registered anew: each fault is an override, in this thread, for the length of one run of the test.

    Parameters
    ----------
    op : Op or str
        The op.
    check : callable, optional
        The test: called without arguments, it fails by raising. By default `check_gradient` over the op's samples.
    mutants : iterable of str or mapping, optional
        Names among `mixgrad.testing.faults.FAULTS`, or faults of your own: functions ``(op, g, gradients)`` by their
        names, which return the gradients that are wrong, or None where the fault has no place.
    language : {"native", "python"}, optional
        Plant in this implementation only, for a test that compares the two.

    Returns
    -------
    Mutations
        One row for each fault; ``survived`` lists those that the test did not notice.

    Raises
    ------
    CheckError
        The test fails without a fault, or never runs the gradient; or there is neither a test nor a sample.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> from mixgrad.testing import mutate
    >>> def test():
    ...     assert float(mixgrad.grad(np.square)(3.0)) == 6.0
    >>> mutate("square", test, mutants=["zero", "sign", "wrong where the input is negative"])
    op 'square': 2 of 3 faults noticed
      zero, input 0                               killed          AssertionError
      sign, input 0                               killed          AssertionError
      wrong where the input is negative, input 0  survived        the test has no case of it
    """
    op = registry[op] if isinstance(op, str) else op
    if check is None and op.samples is None:
        raise CheckError(f"op '{op.name}' has no samples, so mutate needs a test: mutate('{op.name}', test)")
    places = 2 if op.variadic else len(op.inputs)
    planted = [_Planted(f, i) for f in _chosen(mutants) for i in (range(places) if f.each else (None,))]

    run = check or (lambda: check_samples(op))
    _rehearse(op, run, planted, language)
    met = {id(one) for one in planted if one.different}
    if not any(one.possible for one in planted):
        raise CheckError(f"the test never runs the gradient of op '{op.name}'; there is nothing to plant a fault in")
    if check is not None and op.samples is not None and len(met) < len(planted):
        # What the test does not meet, the op's samples may.
        _rehearse(op, lambda: check_samples(op), [one for one in planted if not one.different], language)
    rows = []
    for one in planted:
        result, by = _verdict(op, run, one, id(one) in met, language)
        if one.broken is not None and "read-only" not in one.refused:
            raise CheckError(
                f"the mutant '{one.fault.name}' fails by itself, which proves nothing: {one.refused}"
            ) from one.broken
        rows.append({"op": op.name, "fault": one.fault.name, "input": one.index, "result": result, "by": by})
    return Mutations(op.name, rows)


def _chosen(mutants: Iterable[str] | Mapping[str, Callable[..., Any]] | None) -> list[Fault]:
    if mutants is None:
        return list(FAULTS)
    if isinstance(mutants, Mapping):
        return [Fault(name, plant, hidden=True) for name, plant in mutants.items()]
    known = {fault.name: fault for fault in FAULTS}
    names = [mutants] if isinstance(mutants, str) else list(mutants)
    for name in names:
        if name not in known:
            raise CheckError(f"there is no fault {name!r}; there are {', '.join(map(repr, known))}")
    return [known[name] for name in names]


def _rehearse(op: Op, run: Callable[[], Any], planted: list[_Planted], language: Language | None) -> None:
    """Runs the test with the right gradient, and asks each fault beside it whether it has a place."""

    def right(entry: _core.Entry, g: Any) -> Any:
        gradients = entry.next(g)
        if language is None or entry.runs[0] == language:
            for one in planted:
                # Those that do harm elsewhere would do it now; they have a place nearly everywhere.
                if one.fault.hidden:
                    one.possible = one.different = True
                    continue
                with contextlib.suppress(Exception):
                    one(entry, g, gradients)
        return gradients

    try:
        with override_gradient(op, right):
            run()
    except Exception as error:
        raise CheckError(
            f"the test of op '{op.name}' fails without a fault: {type(error).__name__}: {error}"
        ) from error


def _verdict(op: Op, run: Callable[[], Any], one: _Planted, met: bool, language: Language | None) -> tuple[str, str]:
    if not met:
        if one.different:
            return "survived", "the test has no case of it"
        return ("equal", "") if one.planted else ("not applicable", "")

    def wrong(entry: _core.Entry, g: Any) -> Any:
        gradients = entry.next(g)
        if language is not None and entry.runs[0] != language:
            return gradients
        changed = one(entry, g, gradients)
        return gradients if changed is None else changed

    one.planted, one.refused = False, ""
    try:
        with override_gradient(op, wrong):
            run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  pytest's own failures are no Exceptions
        if "read-only" in one.refused:
            return "killed", f"refused by the engine: {one.refused}"
        named = " ".join(f"{type(error).__name__}: {error}".split())
        return "killed", named.removeprefix("CheckError: ").removesuffix(":")
    finally:
        KEPT.clear()
    return ("survived", "") if one.planted else ("not applicable", "")


def check_samples(op: Op | str, *, order: int = 1) -> int:
    """`check_gradient` over an op's samples: those in double precision that have something to differentiate.

    Parameters
    ----------
    op : Op or str
        The op.
    order : int
        1 or 2.

    Returns
    -------
    int
        How many samples there were.

    Raises
    ------
    CheckError
        The first that is wrong, with the sample.

    Examples
    --------
    >>> from mixgrad.testing import check_samples
    >>> check_samples("exp") > 0
    True
    """
    op = registry[op] if isinstance(op, str) else op
    count = 0
    for number, sample in enumerate((op.samples or tuple)()):
        f, arrays = sample_call(op, sample)
        if not any(a.size for a in arrays) or any(a.dtype not in (np.float64, np.complex128) for a in arrays):
            continue
        count += 1
        try:
            with np.errstate(all="ignore"):
                check_gradient(f, *arrays, order=order)
        except CheckError as error:
            raise CheckError(f"{error} (sample {number} of op '{op.name}': {shown(sample)})") from error
    return count
