# SPDX-License-Identifier: Apache-2.0
"""The table [tool.mixgrad]: what it may say, where it is found, and what is said of mistakes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import mixgrad
from mixgrad.errors import SettingsError
from mixgrad.migrate import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FULL = """
[project]
name = "project"

[tool.mixgrad]
require-native = ["mul", "sin"]
promotion = { tan = "shadow", exp = "off", sin = "on" }
checklist = "proof/checklist.json"
modules = ["settings_example.ops", "json"]
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "pyproject.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that FULL names: one that can be imported, and one that cannot once its file is gone."""
    (tmp_path / "settings_example").mkdir()
    (tmp_path / "settings_example" / "__init__.py").touch()
    (tmp_path / "settings_example" / "ops.py").write_text("import mixgrad\nimported = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("settings_example", "settings_example.ops"):
        sys.modules.pop(name, None)
    for op in ("tan", "exp"):
        mixgrad.set_promotion(op, "on")


def test_all_keys(write: Callable[[str], Path]) -> None:
    path = write(FULL)
    settings = load_settings(path)
    assert settings == Settings(
        require_native=("mul", "sin"),
        promotion={"tan": "shadow", "exp": "off", "sin": "on"},
        checklist=path.parent / "proof" / "checklist.json",
        modules=("settings_example.ops", "json"),
        path=path,
    )
    assert settings.packages == ("settings_example", "json")


def test_an_empty_table_is_the_defaults(write: Callable[[str], Path]) -> None:
    path = write("[tool.mixgrad]\n")
    assert load_settings(path) == Settings(checklist=path.parent / "docs" / "checklist.json", path=path)
    assert load_settings(path).packages == ("mixgrad",)


def test_the_nearest_file_that_has_the_table(
    write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(FULL)
    inner = tmp_path / "inner" / "folder"
    inner.mkdir(parents=True)
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.other]\nkey = 1\n")
    monkeypatch.chdir(inner)
    assert load_settings().path == path
    path.unlink()
    assert load_settings() == Settings()


def test_nothing_is_imported_before_apply(write: Callable[[str], Path], example: None) -> None:
    settings = load_settings(write(FULL))
    assert "settings_example" not in sys.modules
    settings.apply()
    assert sys.modules["settings_example.ops"].imported
    assert mixgrad.migrate.promotion_state("tan") == "shadow"
    assert mixgrad.migrate.promotion_state("exp") == "off"
    assert mixgrad.migrate.promotion_state("sin") == "on"
    assert f"{settings.path} [tool.mixgrad]" in mixgrad.registry.explain("exp")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.mixgrad]\nrequire = 1",
            r"has the key 'require'; known are require-native, promotion, checklist, modules",
        ),
        ("[tool.mixgrad]\nrequire-native = 'mul'", r"require-native = 'mul'; it is a list of ops, such as \[\"mul\"\]"),
        ("[tool.mixgrad]\nmodules = [1]", r"modules = \[1\]; it is a list of modules"),
        ("[tool.mixgrad]\nmodules = ['']", r"modules = \[''\]; it is a list of modules"),
        ("[tool.mixgrad]\nchecklist = 3", "checklist = 3; it is a path"),
        ("[tool.mixgrad]\npromotion = { mul = 'maybe' }", r"promotion = .*'maybe'.*states \(off, shadow, on\)"),
        ("[tool.mixgrad]\npromotion = { mul = ['on'] }", r"promotion = .*states \(off, shadow, on\)"),
        ("[tool.mixgrad]\npromotion = 'on'", "promotion = 'on'; it is a table"),
        ("[tool]\nmixgrad = 3", "tool.mixgrad is 3; it is a table of require-native"),
        ("[tool.other]", r"has no table \[tool.mixgrad\]; its keys are require-native"),
        ("[tool.mixgrad", "cannot be read as TOML"),
        ("tool = 3", r"has no table \[tool.mixgrad\]"),
    ],
)
def test_what_is_not_understood(write: Callable[[str], Path], text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml cannot be read as TOML: .*No such file"):
        load_settings(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modules = ['no_such_module.ops']", "modules names 'no_such_module.ops', which cannot be imported"),
        ("promotion = { multipy = 'on' }", r"promotion = \{ multipy = 'on' \}: no op named 'multipy'.*'multiply'"),
    ],
)
def test_what_is_not_there(write: Callable[[str], Path], text: str, message: str) -> None:
    settings = load_settings(write(f"[tool.mixgrad]\n{text}\n"))
    with pytest.raises(SettingsError, match=message):
        settings.apply()


def test_a_modules_own_error_arrives_as_it_was(write: Callable[[str], Path], example: None, tmp_path: Path) -> None:
    (tmp_path / "settings_example" / "ops.py").write_text("import nothing_of_this_name\n")
    settings = load_settings(write("[tool.mixgrad]\nmodules = ['settings_example.ops']\n"))
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        settings.apply()
