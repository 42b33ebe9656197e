# SPDX-License-Identifier: Apache-2.0
"""Builds native gradients and compares them with Python's: a process of its own, so that nothing else meets them."""

from __future__ import annotations

import json
import sys
from importlib import import_module

from mixgrad import cpp
from mixgrad.errors import CheckError
from mixgrad.registry import registry
from mixgrad.testing import check_parity


def main() -> None:
    task = json.load(sys.stdin)
    for module in task["modules"]:
        import_module(module)
    cpp.load([task["path"]], name="scaffold", replace=True)
    verdicts = {}
    for name in task["ops"]:
        try:
            check_parity(registry[name])
            verdicts[name] = ""
        except CheckError as error:
            verdicts[name] = str(error)
    sys.stdout.write(f"\n{json.dumps(verdicts)}\n")


if __name__ == "__main__":
    main()
