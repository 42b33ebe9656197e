# SPDX-License-Identifier: Apache-2.0
"""Builds native gradients and verifies them: a process of its own, so that nothing else meets them."""

from __future__ import annotations

import json
import pickle
import sys
from importlib import import_module

from mixgrad import cpp
from mixgrad.migrate.verify import OpReport, verify
from mixgrad.registry import registry


def main() -> None:
    task = pickle.load(sys.stdin.buffer)
    for module in task["modules"]:
        import_module(module)
    # Before anything is loaded: they need only the forward and Python's gradient.
    for name, samples in task["samples"].items():
        registry[name].samples = lambda samples=samples: samples
    cpp.load([task["path"]], name="scaffold", replace=True)
    sys.stdout.write(f"\n{json.dumps({op.op: _verdict(op) for op in verify(task['samples']).ops})}\n")


def _verdict(op: OpReport) -> tuple[str, dict[str, float]]:
    """What is wrong, and the largest error in each dtype in which the native gradient ran."""
    failure = "\n".join(op.failures) or ("" if op.proved else op.native.detail or "there is nothing to compare")
    return failure, {dtype: parity.error for dtype, parity in op.parity.items() if parity.status == "passed"}


if __name__ == "__main__":
    main()
