# SPDX-License-Identifier: Apache-2.0
"""The source distribution holds the project's files and nothing that lies beside them."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from scikit_build_core.build import build_sdist

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sdist_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("sdist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build_sdist(str(folder))
    with tarfile.open(folder / name) as archive:
        return {Path(member).relative_to(Path(member).parts[0]).as_posix() for member in archive.getnames()}


def test_top_level(sdist_files: set[str]) -> None:
    assert {file.partition("/")[0] for file in sdist_files} == {
        ".ci",
        ".clang-format",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "docs",
        "examples",
        "mixgrad",
        "native",
        "noxfile.py",
        "pyproject.toml",
        "pytest_mixgrad",
        "tests",
    }


def test_only_sources(sdist_files: set[str]) -> None:
    suffixes = {Path(file).suffix for file in sdist_files - {".ci/run", ".clang-format", "LICENSE", "PKG-INFO"}}
    assert suffixes <= {
        ".cmake",
        ".cpp",
        ".h",
        ".hpp",
        ".html",
        ".in",
        ".json",
        ".md",
        ".py",
        ".pyi",
        ".toml",
        ".txt",
        ".typed",
    }


def test_every_tracked_source_is_in(sdist_files: set[str]) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout, and git")
    command = ["git", "-c", "safe.directory=*", "ls-files", "mixgrad", "native", "pytest_mixgrad", "tests"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {file for file in tracked if (ROOT / file).exists()} <= sdist_files
