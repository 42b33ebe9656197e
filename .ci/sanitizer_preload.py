# SPDX-License-Identifier: Apache-2.0
"""Start this Python again with the sanitizer's library preloaded; installed as a .pth file by `nox -s sanitize`.

A sanitized extension needs its run-time library to be the first one of the process, and no other program wants it:
so every Python of that environment asks for it itself, and leaves LD_PRELOAD out of what its children inherit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def library(name: str) -> str:
    """The path of a library of the compiler's."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if "libasan.so" in Path("/proc/self/maps").read_text():
    os.environ.pop("LD_PRELOAD", None)
else:
    os.environ |= {
        # libstdc++ too: without it, the sanitizer finds no __cxa_throw to wrap.
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        # CPython itself leaks on purpose; our own leaks are counted by the tests (mixgrad.debug).
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
