# SPDX-License-Identifier: Apache-2.0
"""Every check of the project, as `.ci/run` and the docs call it: `nox -s tests`, `nox -s lint`, ..."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
BUILD_REQUIRES = [*nox.project.load_toml("pyproject.toml")["build-system"]["requires"], "cmake>=3.21", "ninja"]


def install(session: nox.Session, *extras: str, options: tuple[str, ...] = ()) -> None:
    """Install mixgrad editable; the build is kept in build/SESSION, so that only what changed is compiled again."""
    session.install(*BUILD_REQUIRES)
    session.install(
        "--no-build-isolation",
        f"--config-settings=build-dir=build/{session.name}",
        "--config-settings=cmake.define.MIXGRAD_STRICT=ON",
        *(f"--config-settings={option}" for option in options),
        "-e",
        f".[{','.join(extras)}]",
    )


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run the tests; arguments go to pytest."""
    install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(reuse_venv=True)
def native(session: nox.Session) -> None:
    """Run the C++ tests of the core, plain and with sanitizers; arguments go to ctest. Needs doctest's header."""
    session.install(*BUILD_REQUIRES, *nox.project.load_toml("pyproject.toml")["project"]["dependencies"])
    sanitized = ("-DCMAKE_BUILD_TYPE=Debug", "-DMIXGRAD_SANITIZE=ON")
    for folder, options in (("build/native", ()), ("build/native-sanitize", sanitized)):
        python = f"-DPython_EXECUTABLE={session.virtualenv.bin}/python"
        on = ("-DMIXGRAD_STRICT=ON", "-DMIXGRAD_TESTS=ON")
        session.run("cmake", "-S", "native", "-B", folder, "-G", "Ninja", python, *on, *options)
        session.run("cmake", "--build", folder, "--target", "mixgrad_tests")
        # Verbose: the report has doctest's counts, also where all passes.
        session.run("ctest", "--test-dir", folder, "--verbose", *session.posargs)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Check the formatting and style of Python and C++, and the spelling; `-- fix` mends what can be mended."""
    session.install(*nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["lint"])
    fix = session.posargs == ["fix"]
    native = sorted(
        str(path)
        for folder in ("native", "tests/native", "examples/plugins")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".h", ".hpp", ".cpp"}
    )
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("clang-format", *(["-i"] if fix else ["--dry-run", "--Werror"]), *native)
    session.run("codespell")


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """Check the types, and the stub of the extension against the extension."""
    install(session, "test", "types")
    session.run("mypy")
    session.run(
        "python", "-m", "mypy.stubtest", "mixgrad._core", "--allowlist", ".ci/stubtest-allowlist.txt", *session.posargs
    )


@nox.session(reuse_venv=True)
def sanitize(session: nox.Session) -> None:
    """Run the tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer."""
    (site,) = Path(session.virtualenv.location).glob("lib/python3*/site-packages")
    preload = site / "_sanitizer_preload.pth"
    preload.unlink(missing_ok=True)  # pip needs no sanitizer
    install(
        session,
        "test",
        options=("cmake.build-type=Debug", "cmake.define.MIXGRAD_SANITIZE=ON"),
    )
    shutil.copy(ROOT / ".ci" / "sanitizer_preload.py", site / "_sanitizer_preload.py")
    preload.write_text("import _sanitizer_preload\n")
    # Left out: what works in processes of its own, where no sanitizer is, and what repeats the same native calls at length.
    skipped = [
        "tests/packaging",
        "tests/debug/test_view.py",
        "tests/migrate/test_translation.py",
        "tests/testing/test_mutation.py",
    ]
    # A report ends the process: captured by pytest, it would be lost.
    session.run(
        "python",
        "-m",
        "pytest",
        "--timeout=1800",
        "--capture=sys",
        *(f"--ignore={path}" for path in skipped),
        *session.posargs,
    )


@nox.session(reuse_venv=True)
def build(session: nox.Session) -> None:
    """Build the sdist, the wheel from it, and test the wheel from an empty folder, with nothing else installed."""
    session.install("build", "pytest")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run("python", "-m", "build")
    (wheel,) = (ROOT / "dist").glob("*.whl")
    session.install("--force-reinstall", str(wheel))
    with tempfile.TemporaryDirectory() as empty, session.chdir(empty):
        shutil.copy(ROOT / "tests" / "packaging" / "test_installed.py", empty)
        session.run("python", "-m", "pytest", "-ra", "--import-mode=importlib", "test_installed.py")


@nox.session(reuse_venv=True, requires=["build"])
def examples(session: nox.Session) -> None:
    """Run every example, the demo and the registry's table, with the wheel, as a user does."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    session.install("--force-reinstall", f"mixgrad[examples] @ {wheel.as_uri()}")
    with tempfile.TemporaryDirectory() as empty, session.chdir(empty):
        for example in sorted((ROOT / "examples").glob("*.py")):
            session.run("python", str(example))
        session.run("python", "-m", "mixgrad", "demo", *session.posargs)
        session.run("python", "-m", "mixgrad", "registry", silent=True)
        session.run("python", "-m", "mixgrad", "registry", "--explain", "mul")


@nox.session(reuse_venv=True)
def checklist(session: nox.Session) -> None:
    """Prove again what docs/checklist.md says of mixgrad's native gradients; `-- --run` writes it."""
    install(session, "cli")
    page = ("--format", "markdown", "--output", "docs/checklist.md")
    session.run("python", "-m", "mixgrad", "checklist", *(session.posargs or ["--check"]), *page)


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Run the benchmarks against NumPy, and against autograd and torch where those are installed."""
    install(session, "bench")
    session.run("python", "tests/benchmarks/run.py", *session.posargs)


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Check the pages: their links, and that their examples print what they say."""
    install(session, "test")
    session.run("python", "-m", "pytest", "tests/packaging/test_pages.py", *session.posargs)
