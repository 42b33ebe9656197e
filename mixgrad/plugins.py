# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: packages that bring ops and gradients of their own, found by their entry points.

A package declares, in its pyproject.toml, a module that registers its ops when it is imported, or a function that does so::

    [project.entry-points."mixgrad.plugins"]
    options = "mixgrad_options"
"""

from __future__ import annotations

import warnings

from mixgrad.errors import DuplicateRegistrationError, PluginWarning

__all__ = ["load_plugins"]

GROUP = "mixgrad.plugins"

_loaded: dict[str, bool] = {}
_loading = False


def load_plugins() -> list[str]:
    """Load the plug-ins that are installed, each once. Done by itself when an op is asked for that is not known.

    A plug-in that fails is a `PluginWarning` that names it.

    Returns
    -------
    list of str
        The names of those that are loaded.

    Examples
    --------
    >>> import mixgrad
    >>> names = mixgrad.load_plugins()
    """
    global _loading  # noqa: PLW0603  a plug-in's own look-ups must not begin again
    if not _loading:
        _loading = True
        try:
            _load_new()
        finally:
            _loading = False
    return sorted(name for name, works in _loaded.items() if works)


def _load_new() -> None:
    from importlib.metadata import entry_points  # noqa: PLC0415  costs more than all of mixgrad's own imports

    for entry in entry_points(group=GROUP):
        if entry.name in _loaded:
            continue
        _loaded[entry.name] = False
        try:
            target = entry.load()
            if ":" in entry.value:
                target()
        except DuplicateRegistrationError:
            # Two plug-ins claim one op: somebody has to choose, and the message names both.
            raise
        except Exception as error:  # noqa: BLE001  whatever a stranger's package raises
            warnings.warn(
                f"the mixgrad plug-in '{entry.name}' ({entry.value}) could not be loaded: {type(error).__name__}: {error}",
                PluginWarning,
                stacklevel=4,
            )
        else:
            _loaded[entry.name] = True
