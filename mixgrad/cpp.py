# SPDX-License-Identifier: Apache-2.0
"""What a build of C++ gradients needs to know."""

from __future__ import annotations

from pathlib import Path

from mixgrad import _core

__all__ = ["get_include"]


def get_include() -> str:
    """The folder of mixgrad's C++ headers: ``#include <mixgrad/mixgrad.hpp>``.

    Examples
    --------
    >>> from pathlib import Path
    >>> (Path(get_include()) / "mixgrad" / "mixgrad.hpp").exists()
    True
    """
    # An installed package has them beside the extension; an editable one in the sources, beside this file's package.
    for folder in (Path(_core.__file__).parent / "include", Path(__file__).parents[1] / "native" / "include"):
        if (folder / "mixgrad" / "mixgrad.hpp").exists():
            return str(folder)
    msg = "mixgrad's C++ headers are missing from this installation"
    raise FileNotFoundError(msg)
