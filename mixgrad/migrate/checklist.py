# SPDX-License-Identifier: Apache-2.0
"""The checklist: which gradients are native, and what is proved of them. Every tick is the result of a check that was run."""

from __future__ import annotations

import datetime as dt
import html
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import mixgrad
from mixgrad import _core
from mixgrad.errors import SettingsError
from mixgrad.migrate.sources import native_digest, python_digest
from mixgrad.migrate.verify import MARKS, OpReport, package_of, proof_cells, verify
from mixgrad.registry import Op, registry

__all__ = [
    "differences",
    "dump",
    "is_other_text",
    "load",
    "lost_ticks",
    "percent_proved",
    "render",
    "run_checks",
    "summary",
    "table",
    "voids",
    "write",
]

Content = dict[str, Any]
"""A checklist, as its JSON file has it."""

HEADER = (
    "op",
    "Python gradient",
    "native forward",
    "native gradient",
    "parity",
    "second order",
    "leak-free",
    "speed-up",
    "samples",
)

MEASURED = frozenset({"date", "detail", "elements", "error", "ratio", "speed_up", "where"})
"""What may differ between two runs that prove the same."""

# --- making it -------------------------------------------------------------------------------------------------------


def run_checks(packages: Iterable[str]) -> Content:
    """Run all checks on the ops of some packages.

    Examples
    --------
    >>> run_checks(["no_such_package"])["ops"]
    {}
    """
    packages = tuple(packages)
    ops = sorted((op for op in registry.values() if package_of(op) in packages), key=lambda op: op.name)
    proofs = {report.op: report for report in verify(op for op in ops if _has_native(op)).ops}
    return {
        "about": "written by `python -m mixgrad checklist --run`, never by hand",
        "packages": list(packages),
        "versions": _versions(packages),
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "ops": {op.name: _facts(op) | _proof(proofs.get(op.name)) for op in ops},
    }


def _has_native(op: Op) -> bool:
    return "native" in _core.implementations(op)["gradient"]


def _facts(op: Op) -> dict[str, Any]:
    there = _core.implementations(op)
    return {
        "differentiable": op.differentiable,
        "forward": list(there["forward"]),
        "gradient": list(there["gradient"]),
        "samples": 0 if op.samples is None else len(list(op.samples())),
        "source": _sources(op),
    }


def _sources(op: Op) -> dict[str, str | None]:
    return {"Python": python_digest(op), "C++": native_digest(op, package_of(op))}


def _proof(report: OpReport | None) -> dict[str, Any]:
    if report is None:
        return {}
    found = asdict(report)
    for parity in found["parity"].values():
        parity["error"] = float(f"{parity['error']:.0e}")
    speed_up = report.speed_up and {"ratio": round(report.speed_up.ratio, 1), "elements": report.speed_up.elements}
    kept = {key: found[key] for key in ("tests", "native", "parity", "second_order", "leak_free")}
    return {"proved": report.proved, **kept, "speed_up": speed_up}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Of mixgrad and the packages, and of NumPy its first two numbers."""
    found = {"mixgrad": mixgrad.__version__, "numpy": ".".join(np.__version__.split(".")[:2])}
    distributions = metadata.packages_distributions()
    for package in packages:
        version = getattr(sys.modules.get(package), "__version__", None)
        if version is None and package in distributions:
            version = metadata.version(distributions[package][0])
        found[package] = str(version or "unknown")
    return found


# --- its file --------------------------------------------------------------------------------------------------------


def dump(content: Content) -> str:
    """The text of its file: JSON with a line for each op, so that a difference shows which op changed."""
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in content["ops"].items())
    head = json.dumps({key: value for key, value in content.items() if key != "ops"}, indent=2)
    return f'{head[:-2]},\n  "ops": {{\n{rows}\n  }}\n}}\n'


def load(path: Path, packages: Iterable[str]) -> Content | None:
    """Read its file; None if there is none.

    Raises
    ------
    SettingsError
        The file is no checklist, or one of other packages.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = {"date", "ops", "packages", "versions"} - set(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        msg = f"{path} is not a checklist: {error}"
        raise SettingsError(msg) from None
    if missing:
        msg = f"{path} is not a checklist: it lacks {', '.join(sorted(missing))}"
        raise SettingsError(msg)
    found = content["packages"]
    if found != list(packages):
        msg = (
            f"{path} is the checklist of {', '.join(found)}, not of {', '.join(packages)}; give --settings or --package"
        )
        raise SettingsError(msg)
    return dict(content)


def write(path: Path, text: str) -> None:
    """Write a file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def is_other_text(path: Path, text: str) -> bool:
    """Whether a file is not there or says something else."""
    return not path.is_file() or path.read_text(encoding="utf-8") != text


def voids(content: Content) -> dict[str, str]:
    """The ops whose ticks no longer hold, and why: their sources or the versions are others now."""
    versions = _versions(content["packages"])
    other = [
        f"checked with {name} {version}, this is {versions.get(name)}"
        for name, version in content["versions"].items()
        if versions.get(name) != version
    ]
    reasons = {}
    for name, row in content["ops"].items():
        if name not in registry:
            reasons[name] = "there is no such op"
            continue
        now = _sources(registry[name])
        changed = [f"its source in {kind} has changed" for kind in now if now[kind] != row["source"].get(kind)]
        if other or changed:
            reasons[name] = "; ".join(other + changed)
    return reasons


# --- comparing two ---------------------------------------------------------------------------------------------------


def differences(old: Content, new: Content) -> list[str]:
    """What differs in more than times, dates, speed and the size of errors, in words.

    Nor does NumPy's version count: the checks have just been run with this one.
    """
    before, after = (dict(_flat({"versions": c["versions"], "": c["ops"]})) for c in (old, new))
    return [
        f"{key}: was {before.get(key, 'not there')}, is {after.get(key, 'not there')}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and key != "versions numpy"
    ]


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            # At the outside stand the ops' names, whatever they are.
            if not path or key not in MEASURED:
                yield from _flat(inner, (*path, key) if key else path)
    else:
        yield " ".join(path), value


def lost_ticks(old: Content, new: Content) -> list[str]:
    """What was proved and is not any more, in words."""
    return [
        f"{name} has lost {tick}: {_checks(new['ops'].get(name, {})).get(tick, _GONE)['detail']}"
        for name, row in old["ops"].items()
        for tick, check in _checks(row).items()
        if check["status"] == "passed" and _checks(new["ops"].get(name, {})).get(tick, _GONE)["status"] != "passed"
    ]


_GONE = {"status": "skipped", "detail": "it is not there"}


def _checks(row: Mapping[str, Any]) -> dict[str, Any]:
    """The checks of a row that were run, by what they prove."""
    checks = {
        "samples": row.get("tests"),
        "the native gradient": row.get("native"),
        **{f"parity in {dtype}": parity for dtype, parity in row.get("parity", {}).items()},
        "second order": row.get("second_order"),
        "leak-free": row.get("leak_free"),
    }
    return {name: check for name, check in checks.items() if check}


# --- showing it ------------------------------------------------------------------------------------------------------


def _counts(content: Content, void: Mapping[str, str]) -> tuple[int, int, int]:
    """Differentiable ops, those with a native gradient, and those with one that is proved and not void."""
    rows = {name: row for name, row in content["ops"].items() if row["differentiable"]}
    native = sum("native" in row["gradient"] for row in rows.values())
    proved = sum(row.get("proved", False) and name not in void for name, row in rows.items())
    return len(rows), native, proved


def percent_proved(content: Content, void: Mapping[str, str]) -> float:
    """How many per cent of the differentiable ops have a proved native gradient."""
    differentiable, _, proved = _counts(content, void)
    return 100 * proved / differentiable if differentiable else 100.0


def summary(content: Content, void: Mapping[str, str]) -> str:
    """Its numbers in one sentence."""
    differentiable, native, proved = _counts(content, void)
    return (
        f"Of {len(content['ops'])} ops {differentiable} are differentiable. {native} of them have a native gradient, "
        f"{proved} with parity proved: {percent_proved(content, void):.0f} %."
    )


def table(content: Content, void: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Its rows, as text, under `HEADER`."""
    return [_cells(name, row, void.get(name)) for name, row in content["ops"].items()]


def _cells(name: str, row: Mapping[str, Any], void: str | None) -> tuple[str, ...]:
    def there(what: str, language: str) -> str:
        return MARKS["passed" if language in row[what] else "skipped"]

    python = there("gradient", "python") if row["differentiable"] else "not differentiable"
    cells = (name, python, there("forward", "native"), there("gradient", "native"))
    if "native" not in row["gradient"]:
        return (*cells, "", "", "", "", str(row["samples"]))
    if void is not None:
        return (*cells, f"void: {void}", "void", "void", "", str(row["samples"]))
    return (*cells, *proof_cells(row), str(row["samples"]))


def _remarks(content: Content) -> list[str]:
    """Why a check failed or was not run."""
    return [
        f"{name}: {what}: {check['detail']}"
        for name, row in content["ops"].items()
        for what, check in _checks(row).items()
        if check["detail"]
    ]


def _about(content: Content) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"Checked on {content['date']} with {versions}."


LEGEND = (
    "Parity: for each dtype of the samples, ✓ with the largest difference between the native and the Python gradient (relative "
    "to the largest element), - where the native one leaves all samples to Python. Second order: the gradients' own gradients "
    "agree, and agree with differences. Leak-free: all that the core counts is as before after repeated runs. Speed-up: the "
    "Python gradient's time in units of the native one's, on the machine that ran the checks. A tick is void when the op's "
    "Python source, the file that registers its native gradient, or a version is another."
)


def _markdown(content: Content, void: Mapping[str, str]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rows = [line(HEADER), line(["---"] * len(HEADER)), *map(line, table(content, void))]
    remarks = [f"- {remark}" for remark in _remarks(content)]
    title = f"# Checklist of {', '.join(content['packages'])}"
    parts = [title, summary(content, void), _about(content), "\n".join(rows), LEGEND]
    if remarks:
        parts += ["Not passed, and why:", "\n".join(remarks)]
    return "\n\n".join(parts) + "\n"


def _html(content: Content, void: Mapping[str, str]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    title = html.escape(f"Checklist of {', '.join(content['packages'])}")
    rows = "\n".join([line("th", HEADER), *(line("td", cells) for cells in table(content, void))])
    remarks = "\n".join(f"<li>{html.escape(remark)}</li>" for remark in _remarks(content))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body { font-family: sans-serif } td, th { padding: 0.1em 0.8em; text-align: left }</style></head>\n"
        f"<body>\n<h1>{title}</h1>\n<p>{html.escape(summary(content, void))} {html.escape(_about(content))}</p>\n"
        f"<table>\n{rows}\n</table>\n<p>{html.escape(LEGEND)}</p>\n<ul>\n{remarks}\n</ul>\n</body>\n</html>\n"
    )


def _json(content: Content, void: Mapping[str, str]) -> str:
    return json.dumps({**content, "void": void}, indent=2) + "\n"


_FORMATS: dict[str, Callable[[Content, Mapping[str, str]], str]] = {
    "markdown": _markdown,
    "html": _html,
    "json": _json,
}


def render(content: Content, void: Mapping[str, str], form: str) -> str:
    """The checklist as a text: "markdown", "html" or "json"."""
    return _FORMATS[form](content, void)
