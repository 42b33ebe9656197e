# SPDX-License-Identifier: Apache-2.0
"""One gradient call in a file: its inputs, attributes and what arrived, to be run again."""

from __future__ import annotations

import importlib
import json
import pickle
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixgrad import _core
from mixgrad._difference import Difference, difference
from mixgrad.errors import ReplayError
from mixgrad.registry import prefer, registry

__all__ = ["Replay", "load", "replay", "save"]


def save(op: _core.Entry, g: Any, folder: Path, native: str, python: str) -> Path:
    """Writes one file for a gradient call; `op` and `g` are what its gradient was given.

    Inputs that were not saved, because no gradient reads them, are stored as nan.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    for i, value in enumerate(op.inputs):
        arrays[f"input_{i}"] = _numbers(value)
    upstream = g if isinstance(g, tuple) else (g,)
    for i, value in enumerate(upstream):
        arrays[f"g_{i}"] = _numbers(value)
    found = _core.find_op(op.name)
    about = {
        "op": op.name,
        "modules": [name for name in (found.__module__, getattr(found.forward, "__module__", None)) if name],
        "needs": [op.needs_gradient(i) for i in range(len(op.inputs))],
        "n_outputs": len(upstream),
        "where": op.where,
        "native": native,
        "python": python,
        "mixgrad": _core.__version__,
        "numpy": np.__version__,
    }
    arrays["attributes"] = np.frombuffer(pickle.dumps(op.attributes), np.uint8)
    arrays["about"] = np.array(json.dumps(about))
    path = folder / f"{op.name}-{uuid.uuid4().hex[:8]}.npz"
    with path.open("xb") as file:
        np.savez(file, **arrays)
    return path


def _numbers(value: Any) -> Any:
    if isinstance(value, _core.NotSaved):
        return np.full(value.shape, np.nan, value.dtype)
    return _core.value(value) if type(value) is _core.Array else np.asarray(value)


@dataclass(frozen=True)
class Replay:
    """What both implementations give for a call that was saved.

    Attributes
    ----------
    op : str
        The op's name.
    about : dict
        Where it was called, who registered the implementations, and the versions, when it was saved.
    native, python : list of ndarray or None
        The gradients of the inputs; None for an input that needs none.
    differences : dict
        For each input whose gradients differ, how.
    """

    op: str
    about: dict[str, Any]
    native: list[Any]
    python: list[Any]
    differences: dict[int, Difference]

    def __str__(self) -> str:
        where = self.about["where"]
        lines = [
            f"op '{self.op}'" + (f", called at {where[0]}:{where[1]}" if where else ""),
            f"  saved with mixgrad {self.about['mixgrad']}, NumPy {self.about['numpy']}",
            f"  native  {self.about['native']}",
            f"  python  {self.about['python']}",
        ]
        for i, (native, python) in enumerate(zip(self.native, self.python, strict=True)):
            if not self.about["needs"][i]:
                continue
            verdict = self.differences[i].text if i in self.differences else "the same"
            shown = next((x for x in (python, native) if x is not None), np.zeros(()))
            lines.append(f"  gradient of input {i}, {shown.dtype} of shape {shown.shape}: {verdict}")
        return "\n".join(lines)


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a file that `save` wrote, and what it says about them."""
    if Path(path).is_file() and not zipfile.is_zipfile(path):
        raise ReplayError(f"{path} is not a saved gradient call: it is no .npz file")
    try:
        with np.load(path) as file:
            arrays = dict(file)
        return arrays, json.loads(str(arrays["about"]))
    except (OSError, ValueError, KeyError) as error:
        raise ReplayError(f"{path} is not a saved gradient call: {error}") from error


def call_again(op: _core.Op, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    """The outputs of an op for its flat inputs, as an entry has them, and its attributes."""
    if op.variadic:
        result = op(inputs, **attributes)
    elif isinstance(op.forward, np.ufunc):
        result = op(*inputs)
    else:
        result = op(**dict(zip(op.inputs, inputs, strict=True)), **attributes)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def replay(path: str | Path, *, rtol: float | None = None, atol: float | None = None) -> Replay:
    """Runs both gradients of a call that was saved, and compares them.

    Load such files from people you trust only: attributes are kept as Python pickles.

    Parameters
    ----------
    path : path
        A file that `compare_gradients` or a demotion wrote.
    rtol, atol : float, optional
        The allowed difference.

    Raises
    ------
    ReplayError
        The file is none, or its op cannot be found.
    """
    arrays, about = load(path)
    for module in about["modules"]:
        if module not in ("__main__", "numpy"):
            try:
                importlib.import_module(module)
            except ImportError:
                continue
    name = about["op"]
    if name not in registry:
        tried = ", ".join(about["modules"]) or "nothing"
        raise ReplayError(
            f"{path} is about op '{name}', which is not registered after importing {tried}. Import the module that "
            "registers it first (--module on the command line)"
        )
    op = registry[name]
    inputs = [arrays[f"input_{i}"] for i in range(len(about["needs"]))]
    upstream = [arrays[f"g_{i}"] for i in range(about["n_outputs"])]
    attributes = pickle.loads(arrays["attributes"].tobytes())
    runs = {}
    for language in ("native", "python"):
        with prefer(language, op):
            runs[language] = _gradients(op, inputs, attributes, about["needs"], upstream)
    different = {}
    for i, (found, expected) in enumerate(zip(runs["native"], runs["python"], strict=True)):
        one = difference(expected, found, rtol, atol)
        if one is not None:
            different[i] = one
    return Replay(name, about, runs["native"], runs["python"], different)


def _gradients(
    op: Any, inputs: list[Any], attributes: dict[str, Any], needs: list[bool], upstream: list[Any]
) -> list[Any]:
    window = _core.Window()
    window.start()
    try:
        given = [window.watch(x) if need else x for x, need in zip(inputs, needs, strict=True)]
        with np.errstate(all="ignore"):
            outputs = call_again(op, given, attributes)
        window.stop()
        targets = [(y, g) for y, g in zip(outputs, upstream, strict=True) if type(y) is _core.Array]
        with np.errstate(all="ignore"):
            found = iter(
                window.gradient(
                    [y for y, _ in targets], [x for x in given if type(x) is _core.Array], [g for _, g in targets]
                )
            )
    finally:
        window.close()
    return [next(found) if need else None for need in needs]
