# SPDX-License-Identifier: Apache-2.0
"""``python -m mixgrad new-plugin``: a complete small package that brings an op and its gradients."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

__all__ = ["new_plugin"]

TEMPLATES = Path(__file__).parent / "templates" / "plugin"


def new_plugin(name: str, folder: Path) -> list[Path]:
    """Write a package that builds and passes its tests as it is.

    Parameters
    ----------
    name : str
        The distribution's name; the module's is the same with underscores.
    folder : Path
        Where to write it; new or empty.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ValueError
        The name is none for a package, or the folder holds something.
    """
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        msg = f"{name!r} is no name for a package: letters, digits and hyphens, beginning with a letter"
        raise ValueError(msg)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} exists and is not an empty folder; choose another, or empty it"
        raise ValueError(msg)
    written = []
    for template in sorted(TEMPLATES.rglob("*.in")):
        target = folder / str(template.relative_to(TEMPLATES).with_suffix("")).replace("MODULE", module)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(template.read_text().replace("@NAME@", name).replace("@MODULE@", module))
        written.append(target)
    return written
