# SPDX-License-Identifier: Apache-2.0
"""The proof that a native gradient may stand in for the Python one: every claim is a check that was run."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np

from mixgrad import _core
from mixgrad._difference import largest_error
from mixgrad._tree import flatten
from mixgrad.errors import CheckError, UnknownOpError
from mixgrad.registry import Op, Sample, prefer, registry
from mixgrad.testing import assert_no_leaks, check_gradient, check_parity, sample_call
from mixgrad.transforms import vjp

__all__ = ["HEADER", "MARKS", "Check", "OpReport", "Parity", "Report", "SpeedUp", "package_of", "proof_cells", "verify"]

MARKS = {"passed": "✓", "failed": "✗", "skipped": "-"}

HEADER = ("op", "parity", "second order", "leak-free", "speed-up", "native gradient")

DTYPES = ("float32", "float64", "complex64", "complex128")

LARGE = 50_000
"""How many elements the largest array of a timed call has, where the sample can be enlarged."""

REPEATS = 3
"""How often all samples run again in the search for leaks."""


@dataclass(frozen=True)
class Check:
    """What became of a check.

    Attributes
    ----------
    status : {"passed", "failed", "skipped"}
        Skipped: it could not be run, which proves nothing and refutes nothing.
    detail : str
        Why it failed or was skipped.
    """

    status: Literal["passed", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True)
class Parity(Check):
    """Whether the native gradients of one dtype are those of Python.

    Attributes
    ----------
    samples, declined : int
        How many samples were compared, and how many the native gradient left to Python.
    error : float
        The largest difference, relative to the largest element.
    where : str
        The sample and the input that have it.
    """

    samples: int = 0
    declined: int = 0
    error: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class SpeedUp:
    """The Python gradient's time in units of the native one's, and the size of the largest array. Never part of a verdict."""

    ratio: float
    elements: int


@dataclass(frozen=True)
class OpReport:
    """All that was found of one op.

    Attributes
    ----------
    op, native_origin : str
        The op's name, and who registered its native gradient.
    tests : Check
        Whether there are samples to try it with.
    native : Check
        Whether there is a native gradient, and it takes some of the samples.
    parity : dict of str to Parity
        For each dtype of the samples.
    second_order : Check
        The native gradient's own gradients: against those of Python, and against differences for one sample.
    leak_free : Check
        Whether all that the core counts is as it was after repeated runs.
    speed_up : SpeedUp or None
        None where there are not two gradients to time.
    """

    op: str
    native_origin: str
    tests: Check
    native: Check
    parity: dict[str, Parity]
    second_order: Check
    leak_free: Check
    speed_up: SpeedUp | None

    @property
    def proved(self) -> bool:
        """Whether native and Python gradients agree in every dtype in which the native one runs, and in one at least."""
        found = {parity.status for parity in self.parity.values()}
        return "passed" in found and "failed" not in found

    @property
    def failures(self) -> list[str]:
        """The checks that failed, in words."""
        checks = {
            "tests": self.tests,
            "native gradient": self.native,
            **{f"parity in {dtype}": parity for dtype, parity in self.parity.items()},
            "second order": self.second_order,
            "leak-free": self.leak_free,
        }
        return [f"{self.op}: {name}: {check.detail}" for name, check in checks.items() if check.status == "failed"]


@dataclass(frozen=True)
class Report:
    """What `verify` found, op by op.

    Attributes
    ----------
    ops : tuple of OpReport
        One for each op.
    unknown : tuple of str
        For each name in `require` that no op has, what is to be said of it.
    """

    ops: tuple[OpReport, ...]
    unknown: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """The checks that failed, in words."""
        return [*self.unknown, *(failure for op in self.ops for failure in op.failures)]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def summary(self) -> str:
        """The numbers in one line."""
        proved = sum(op.proved for op in self.ops)
        return f"{len(self.ops)} ops verified, {proved} with parity proved, {len(self.failures)} checks failed"

    def table(self) -> list[tuple[str, ...]]:
        """A row of texts for each op, under `HEADER`."""
        return [(op.op, *proof_cells(asdict(op)), op.native_origin) for op in self.ops]

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.failures])


def verify(
    ops: Iterable[str | Op] | None = None,
    *,
    package: str | Iterable[str] | None = None,
    require: Iterable[str] = (),
    rtol: float | None = None,
) -> Report:
    """Check native gradients: against Python's in every dtype, to second order, and for leaks; and time them.

    Parameters
    ----------
    ops : iterable of str or Op, optional
        The ops; all that have a native gradient when left out.
    package : str or iterable of str, optional
        Only the ops that these packages registered.
    require : iterable of str
        Ops that are verified in any case: it is a failure if one has no native gradient, or one that declines all samples.
    rtol : float, optional
        The allowed relative difference; 200 times the rounding error of the dtype when left out.

    Returns
    -------
    Report

    Raises
    ------
    UnknownOpError
        One of `ops` does not exist.

    Examples
    --------
    >>> from mixgrad.migrate import verify
    >>> report = verify(["mul", "exp"])
    >>> print(report)
    2 ops verified, 2 with parity proved, 0 checks failed
    >>> list(report.ops[0].parity)
    ['float32', 'float64', 'complex64', 'complex128']
    """
    if ops is None:
        chosen = [op for op in registry.values() if "native" in _core.implementations(op)["gradient"]]
    else:
        chosen = [op if isinstance(op, Op) else registry[op] for op in ops]
    if package is not None:
        packages = {package} if isinstance(package, str) else set(package)
        chosen = [op for op in chosen if package_of(op) in packages]
    required, unknown = [], []
    for name in require:
        try:
            required.append(registry[name])
        except UnknownOpError as error:
            unknown.append(f"{name}: required to be native: {error}")
    with np.errstate(all="ignore"):
        reports = tuple(_verified(op, op in required, rtol) for op in dict.fromkeys([*chosen, *required]))
    return Report(reports, tuple(unknown))


def package_of(op: Op) -> str:
    """The package that registered an op: of its samples, its forward, or its gradient, the first that tells.

    >>> package_of(registry["mul"])
    'mixgrad'
    """
    there = _core.implementations(op)
    if "python" not in there["forward"]:
        # Declared in C++: "package (file.cpp:1)".
        return str(there["forward"]["native"]["origin"]).partition(" (")[0].replace("-", "_")
    modules = [getattr(op.samples, "__module__", None), getattr(op.forward, "__module__", None)]
    file = there["gradient"].get("python", {}).get("origin", "").rpartition(":")[0]
    modules += [
        name for name, module in list(sys.modules.items()) if file and getattr(module, "__file__", None) == file
    ]
    packages = [module.partition(".")[0] for module in modules if module]
    # NumPy registers nothing: its functions are forwards of others' ops.
    return next((package for package in packages if package not in {"numpy", "functools"}), "mixgrad")


def proof_cells(proof: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Parity, second order, leak-free and speed-up of an `OpReport` that has been made a dict, as short texts."""

    def one(dtype: str, parity: Mapping[str, Any]) -> str:
        error = f" {parity['error']:.0e}".replace("0e+00", "0") if parity["status"] == "passed" else ""
        return f"{MARKS[parity['status']]} {dtype}{error}"

    parities = ", ".join(one(dtype, parity) for dtype, parity in proof["parity"].items())
    speed_up = f"{proof['speed_up']['ratio']:.1f}" if proof["speed_up"] else ""
    second_order, leak_free = (MARKS[proof[check]["status"]] for check in ("second_order", "leak_free"))
    return parities or MARKS["skipped"], second_order, leak_free, speed_up


# --- one op ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A sample, and what the native gradient did with it."""

    number: int
    sample: Sample
    f: Callable[..., Any]
    arrays: list[Any]
    ran: bool

    @property
    def dtype(self) -> str:
        return str(np.result_type(*self.arrays))


def _verified(op: Op, required: bool, rtol: float | None) -> OpReport:
    gradients = _core.implementations(op)["gradient"]
    samples = [] if op.samples is None else _with_float32(op, list(op.samples()))
    tests = Check("passed") if samples else Check("failed", "it has no samples to try it with: give it samples=")
    if "native" not in gradients or not samples:
        native = Check("skipped") if "native" in gradients else Check("failed", "it has no native gradient")
        unknown = Check("skipped", native.detail or tests.detail)
        return OpReport(op.name, "", tests, native, {}, unknown, unknown, None)
    calls = list(_calls(op, samples))
    ran = [call for call in calls if call.ran]
    both = ran if "python" in gradients else []
    declined = f"the native gradient declines all {len(calls)} samples"
    native = Check("passed") if ran else Check("failed" if required else "skipped", declined)
    return OpReport(
        op.name,
        gradients["native"]["origin"],
        tests,
        native,
        _parities(op, calls, rtol) if "python" in gradients else {},
        _second_order(op, ran, bool(both), rtol) if ran else Check("skipped", native.detail),
        _attempt(lambda: _look_for_leaks(op, ran)) if ran else Check("skipped", native.detail),
        _speed_up(op, both),
    )


def _with_float32(op: Op, samples: list[Sample]) -> list[Sample]:
    """The samples, and where none of them is in single precision, those in double precision once more in single."""
    dtypes = [{leaf.dtype for leaf in sample_call(op, sample)[1]} for sample in samples]
    if any(np.dtype(np.float32) in found for found in dtypes):
        return samples
    single = [
        _changed(sample, lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf)
        for sample, found in zip(samples, dtypes, strict=True)
        if found == {np.dtype(np.float64)}
    ]
    return samples + single


def _changed(sample: Sample, change: Callable[[Any], Any]) -> Sample:
    leaves, structure = flatten(sample.args)
    arrays = (np.ndarray, np.generic)
    return Sample(
        *structure.unflatten([change(leaf) if isinstance(leaf, arrays) else leaf for leaf in leaves]),
        **sample.attributes,
    )


def _calls(op: Op, samples: Sequence[Sample]) -> Iterator[_Call]:
    """The samples with something to differentiate, and whether the native gradient takes them."""
    for number, sample in enumerate(samples):
        f, arrays = sample_call(op, sample)
        if not arrays:
            continue
        before = _core.implementations(op)["gradient"]["native"]
        failed = _attempt(functools.partial(_gradients, op, "native", f, arrays)).status == "failed"
        after = _core.implementations(op)["gradient"]["native"]
        ran = failed or after["calls"] > before["calls"]
        if ran or after["declined"] > before["declined"]:
            yield _Call(number, sample, f, arrays, ran)


def _attempt(check: Callable[[], Any]) -> Check:
    try:
        check()
    except CheckError as error:
        return Check("failed", str(error))
    except Exception as error:  # noqa: BLE001  whatever a gradient raises, its check has failed
        return Check("failed", f"{type(error).__name__}: {error}")
    return Check("passed")


def _gradients(op: Op, language: Literal["native", "python"], f: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    """The gradients of all arrays, for the same random numbers in every run."""
    with prefer(language, op):
        pull, upstream = _recorded(f, arrays)
        found = pull(upstream)
    return list(found) if len(arrays) > 1 else [found]


def _recorded(f: Callable[..., Any], arrays: list[Any]) -> tuple[Callable[[Any], Any], Any]:
    """The backward pass of a call, and what may arrive at its output."""
    value, pull = vjp(f, *arrays)
    outputs, structure = flatten(value)
    rng = np.random.default_rng(0)
    return pull, structure.unflatten([rng.uniform(0.5, 1.5, np.shape(y)).astype(np.asarray(y).dtype) for y in outputs])


def _parities(op: Op, calls: list[_Call], rtol: float | None) -> dict[str, Parity]:
    by_dtype = {dtype: [call for call in calls if call.dtype == dtype] for dtype in DTYPES}
    return {dtype: _parity(op, of_dtype, rtol) for dtype, of_dtype in by_dtype.items() if of_dtype}


def _parity(op: Op, calls: list[_Call], rtol: float | None) -> Parity:
    ran = [call for call in calls if call.ran]
    declined = len(calls) - len(ran)
    if not ran:
        return Parity("skipped", f"the native gradient declines all {declined} samples", declined=declined)
    check = _attempt(lambda: check_parity(op, [call.sample for call in ran], order=1, rtol=rtol))
    if check.status == "failed":
        return Parity("failed", check.detail, len(ran), declined)
    error, number, i = max(
        (largest_error(python, native), call.number, i)
        for call in ran
        for i, (python, native) in enumerate(
            zip(*(_gradients(op, language, call.f, call.arrays) for language in ("python", "native")), strict=True)
        )
    )
    return Parity("passed", "", len(ran), declined, error, f"sample {number}, gradient {i}" if error else "")


def _second_order(op: Op, ran: list[_Call], both: bool, rtol: float | None) -> Check:
    if not _core.implementations(op)["gradient"]["native"]["differentiable"]:
        return Check("skipped", "the native gradient is first order only: higher derivatives run the Python one")
    if both:
        check = _attempt(lambda: check_parity(op, [call.sample for call in ran], order=2, rtol=rtol))
        if check.status == "failed":
            return check
    double = [call for call in ran if call.dtype in {"float64", "complex128"} and any(a.size for a in call.arrays)]
    if not double:
        return Check("skipped", "no sample in double precision to compare with differences")

    def against_differences() -> None:
        with prefer("native", op):
            check_gradient(double[0].f, *double[0].arrays, order=2, signs=False, variants=False)

    return _attempt(against_differences)


def _look_for_leaks(op: Op, ran: list[_Call]) -> None:
    def run() -> None:
        for call in ran:
            _gradients(op, "native", call.f, call.arrays)

    run()  # what is made once and kept is no leak
    with assert_no_leaks():
        for _ in range(REPEATS):
            run()


# --- time ------------------------------------------------------------------------------------------------------------


def _speed_up(op: Op, both: list[_Call]) -> SpeedUp | None:
    """Measured on a sample that its op lets be enlarged: in double precision, and the largest, where there is a choice."""

    def rank(call: _Call) -> tuple[bool, bool, int]:
        largest = max(call.arrays, key=np.size)
        return largest.size > 1, call.dtype == "float64", largest.size

    ranked = sorted(both, key=rank, reverse=True)
    for sample in [*(_enlarged(call.sample) for call in ranked), *(call.sample for call in ranked)]:
        # Whatever an op says to a call that it does not take.
        with contextlib.suppress(Exception):
            return _timed(op, sample)
    return None


def _enlarged(sample: Sample) -> Sample:
    """The sample with its arrays repeated along every axis."""
    leaves = [leaf for leaf in flatten(sample.args)[0] if isinstance(leaf, np.ndarray)]
    largest = max(leaves, key=np.size, default=np.array(0.0))
    times = round((LARGE / max(largest.size, 1)) ** (1 / max(largest.ndim, 1)))
    return _changed(sample, lambda leaf: np.tile(leaf, (times,) * np.ndim(leaf)))


def _timed(op: Op, sample: Sample) -> SpeedUp:
    f, arrays = sample_call(op, sample)
    pull, upstream = _recorded(f, arrays)

    times: dict[Literal["python", "native"], list[float]] = {"python": [], "native": []}
    # Once a block of this size has been freed, malloc keeps smaller ones: page faults are not the gradients' time.
    np.ones(16 * LARGE)
    # In turns: what else the machine does meets both.
    for _ in range(15):
        for language, measured in times.items():
            with prefer(language, op):
                start = perf_counter()
                pull(upstream)
                measured.append(perf_counter() - start)
    return SpeedUp(min(times["python"]) / min(times["native"]), max(map(np.size, arrays)))
