# SPDX-License-Identifier: Apache-2.0
"""``python -m mixgrad``."""

from __future__ import annotations

import sys

try:
    import rich
    import typer
except ImportError as error:
    sys.exit(f"python -m mixgrad needs {error.name}, which the extra 'cli' brings: pip install 'mixgrad[cli]'")

from mixgrad.cli import app

del rich, typer
app(prog_name="python -m mixgrad")
