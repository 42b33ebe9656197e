# SPDX-License-Identifier: Apache-2.0
"""The settings of a project that moves its gradients: the table ``[tool.mixgrad]`` of its pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from mixgrad.errors import RegistrationError, SettingsError, UnknownOpError
from mixgrad.migrate.promotion import State, set_promotion

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Settings", "load_settings"]


@dataclass(frozen=True)
class Settings:
    """What a project says of its gradients.

    Attributes
    ----------
    require_native : tuple of str
        Ops that must have a native gradient which takes some of their samples.
    promotion : mapping of str to {"off", "shadow", "on"}
        The promotion state of ops, as `mixgrad.set_promotion` takes it.
    checklist : Path
        Where the checklist is kept.
    modules : tuple of str
        What is imported first, so that its ops exist.
    path : Path or None
        The file that says so; None when there is none.
    """

    require_native: tuple[str, ...] = ()
    promotion: Mapping[str, State] = field(default_factory=dict)
    checklist: Path = Path("docs/checklist.json")
    modules: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the modules belong to; mixgrad itself when there are none."""
        return tuple(dict.fromkeys(module.partition(".")[0] for module in self.modules)) or ("mixgrad",)

    def import_modules(self) -> None:
        """Import the modules.

        Raises
        ------
        SettingsError
            One of them does not exist. Any other error of theirs arrives as it was.
        """
        for module in self.modules:
            try:
                import_module(module)
            except ModuleNotFoundError as error:
                if not error.name or not f"{module}.".startswith(f"{error.name}."):
                    raise
                msg = f"{self.path}: [tool.mixgrad] modules names '{module}', which cannot be imported: {error}"
                raise SettingsError(msg) from None

    def apply(self) -> None:
        """Import the modules, and set the promotion states.

        Raises
        ------
        SettingsError
            A module or an op does not exist, or an op has no such state.
        """
        self.import_modules()
        for op, state in self.promotion.items():
            try:
                set_promotion(op, state, origin=f"{self.path} [tool.mixgrad]")
            except (UnknownOpError, RegistrationError) as error:
                msg = f"{self.path}: [tool.mixgrad] promotion = {{ {op} = {state!r} }}: {error}"
                raise SettingsError(msg) from None


def load_settings(path: str | PathLike[str] | None = None) -> Settings:
    """Read the table ``[tool.mixgrad]`` of a pyproject.toml.

    Parameters
    ----------
    path : path-like, optional
        The file. When left out: the nearest pyproject.toml that has the table, from the working folder upwards; when there
        is none, the settings are the defaults.

    Returns
    -------
    Settings
        Nothing is imported or set before `Settings.apply` is called.

    Raises
    ------
    SettingsError
        There is no such file or table, or it says what mixgrad does not understand.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from mixgrad.migrate import load_settings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pyproject.toml")
    ...     _ = file.write_text('[tool.mixgrad]\\nrequire-native = ["mul"]\\npromotion = { exp = "shadow" }\\n')
    ...     settings = load_settings(file)
    >>> settings.require_native, settings.promotion
    (('mul',), {'exp': 'shadow'})
    """
    if path is not None:
        given = Path(path)
        table = _table(given)
        if table is None:
            msg = f"{given} has no table [tool.mixgrad]; its keys are {', '.join(_READERS)}"
            raise SettingsError(msg)
        return _settings(given, table)
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        table = _table(file) if file.is_file() else None
        if table is not None:
            return _settings(file, table)
    return Settings()


def _table(path: Path) -> Any:
    """The table as it was read, None if there is none."""
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        try:
            import tomli as tomllib  # noqa: PLC0415  an extra
        except ImportError:
            msg = f"reading {path} needs tomli, which the extra 'cli' brings: pip install 'mixgrad[cli]'"
            raise SettingsError(msg) from None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read as TOML: {error}"
        raise SettingsError(msg) from None
    tool = content.get("tool", {})
    return tool.get("mixgrad") if isinstance(tool, dict) else None


def _settings(path: Path, table: Any) -> Settings:
    if not isinstance(table, dict):
        msg = f"{path}: tool.mixgrad is {table!r}; it is a table of {', '.join(_READERS)}"
        raise SettingsError(msg)
    values: dict[str, Any] = {"path": path}
    for key, value in table.items():
        if key not in _READERS:
            msg = f"{path}: [tool.mixgrad] has the key {key!r}; known are {', '.join(_READERS)}"
            raise SettingsError(msg)
        read, wanted = _READERS[key]
        try:
            values[key.replace("-", "_")] = read(value)
        except TypeError:
            msg = f"{path}: [tool.mixgrad] {key} = {value!r}; it is {wanted}"
            raise SettingsError(msg) from None
    # A relative path is one beside the file.
    values["checklist"] = path.parent / values.get("checklist", Settings.checklist)
    return Settings(**values)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_name(name) for name in value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _states(value: Any) -> dict[str, State]:
    if not isinstance(value, dict) or not all(state in get_args(State) for state in value.values()):
        raise TypeError
    return cast("dict[str, State]", value)


_READERS: dict[str, tuple[Any, str]] = {
    "require-native": (_names, 'a list of ops, such as ["mul"]'),
    "promotion": (_states, f'a table of ops and states ({", ".join(get_args(State))}), such as {{ mul = "shadow" }}'),
    "checklist": (lambda value: Path(_name(value)), 'a path, such as "docs/checklist.json"'),
    "modules": (_names, 'a list of modules, such as ["black_scholes"]'),
}
"""For each key: what reads its value, and what the value is."""
