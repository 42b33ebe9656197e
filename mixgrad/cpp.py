# SPDX-License-Identifier: Apache-2.0
"""C++ gradients from outside: compile them from a string or from files, load them, and find the headers to build against."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from mixgrad import _core
from mixgrad.errors import CompileError

__all__ = ["get_cmake_dir", "get_include", "load", "load_inline", "load_library"]

FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
)


def _beside(*candidates: str) -> Path:
    """A folder that an installed package has beside the extension, and an editable one in the sources."""
    installed, source = candidates
    for folder in (Path(_core.__file__).parent / installed, Path(__file__).parents[1] / source):
        if folder.exists():
            return folder
    msg = f"this installation of mixgrad lacks {installed}; install it again"
    raise FileNotFoundError(msg)


def get_include() -> str:
    """The folder of mixgrad's C++ headers: ``#include <mixgrad/mixgrad.hpp>``.

    Returns
    -------
    str

    Examples
    --------
    >>> from pathlib import Path
    >>> (Path(get_include()) / "mixgrad" / "mixgrad.hpp").exists()
    True
    """
    return str(_beside("include", "native/include"))


def get_cmake_dir() -> str:
    """The folder of mixgrad's CMake package: ``find_package(mixgrad CONFIG)`` with ``mixgrad_DIR`` set to it.

    Returns
    -------
    str

    Examples
    --------
    >>> from pathlib import Path
    >>> (Path(get_cmake_dir()) / "mixgradConfig.cmake").exists()
    True
    """
    return str(_beside("cmake", "native/cmake"))


def load_library(path: str | os.PathLike[str], *, name: str | None = None, replace: bool = False) -> None:
    """Load a shared library of C++ gradients, and register what it brings.

    Parameters
    ----------
    path : path-like
        The library, built against `get_include`. It stays loaded.
    name : str, optional
        Who brings it, for messages and the registry; the file's stem by default.
    replace : bool
        Whether its implementations may take the place of those that are registered.

    Raises
    ------
    PluginError
        It cannot be loaded, is no plug-in, or was built for another version of the interface.
    DuplicateRegistrationError
        It registers what is registered already; nothing of it is registered then.
    """
    path = Path(path)
    _core.load_plugin(str(path.resolve()), name or path.stem.split(".")[0], replace)


# --- compiling -------------------------------------------------------------------------------------------------------


def _compiler() -> list[str]:
    """The C++ compiler: $CXX, or the first of the usual ones."""
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        return given
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    msg = "no C++ compiler is found: set CXX, or install one (on Debian and Ubuntu: apt-get install g++)"
    raise CompileError(msg)


@cache
def _compiler_version(compiler: tuple[str, ...]) -> str:
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"the C++ compiler {shlex.join(compiler)} does not run: {done.stderr.strip()}"
        raise CompileError(msg)
    return done.stdout


@cache
def _headers_digest(include: str) -> str:
    digest = hashlib.sha256()
    for header in sorted(Path(include).rglob("*.h*")):
        digest.update(header.read_bytes())
    return digest.hexdigest()


def _cache_folder() -> Path:
    given = os.environ.get("MIXGRAD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mixgrad"


def _message(stderr: str, sources: Iterable[str]) -> str:
    """What the compiler says of the user's own lines; all of it when it says nothing of those."""
    lines = stderr.splitlines()
    own = tuple(f"{source}:" for source in sources)
    kept: list[str] = []
    following = False
    for line in lines:
        if line.startswith(own) and re.match(r".+:\d+:\d+: (fatal )?(error|warning|note):", line):
            following = " note:" not in line
            if following:
                kept.append(line)
        elif following and re.match(r"\s+(\d+ )?\|", line):
            kept.append(line)
        else:
            following = False
            # An error inside a header, at the place in the user's source that led there.
            if match := re.match(r"\s*(?:from |required from (?:here|.*) ?)?(.+:\d+:\d+):\s+required from here", line):
                if match[1].startswith(own):
                    kept.append(f"{match[1]}: in what this uses:")
            elif " error: " in line and not line.startswith(own):
                kept.append("  " + line.split(" error: ", 1)[1] if kept else line)
    return "\n".join(kept[:30] or lines[:30])


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        msg = f"{name!r} is no name for what is compiled: it names files, so letters, digits, '_', '-' and '.' will do"
        raise ValueError(msg)


def _build(
    name: str, sources: Sequence[Path], texts: Sequence[str], shown: Sequence[str], flags: Sequence[str]
) -> Path:
    """The shared library of these sources: from the cache, or compiled into it."""
    _check_name(name)
    compiler, include = _compiler(), get_include()
    command = [*compiler, *FLAGS, *flags, f"-I{include}"]
    digest = hashlib.sha256()
    for part in (*command, _compiler_version(tuple(compiler)), _headers_digest(include), *texts):
        digest.update(part.encode() + b"\0")
    folder = _cache_folder() / digest.hexdigest()[:32]
    library = folder / f"{name}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Two processes may compile at once: each into a file of its own, which is then put in place whole.
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, *map(str, sources), "-o", temporary],
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )
        if done.returncode:
            msg = f"the C++ source does not compile:\n{_message(done.stderr, shown)}"
            raise CompileError(msg)
        Path(temporary).replace(library)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return library


def load_inline(source: str, *, name: str = "inline", extra_flags: Sequence[str] = (), replace: bool = False) -> None:
    """Compile C++ gradients from a string, load them, and register what they bring.

    The source needs no includes: ``mixgrad/mixgrad.hpp`` is there, and its names can be used as they are. What was compiled
    is kept, by its content, the compiler, its flags and mixgrad's headers, so that the next process only loads it.

    Parameters
    ----------
    source : str
        C++20: ``MIXGRAD_REGISTER_GRADIENT(name) { ... }`` and its kin.
    name : str
        Who brings it, for messages and the registry.
    extra_flags : sequence of str
        Further flags for the compiler.
    replace : bool
        Whether its implementations may take the place of those that are registered, as when a cell of a notebook runs again.

    Raises
    ------
    CompileError
        The source does not compile, or there is no compiler.
    DuplicateRegistrationError
        It registers what is registered already; nothing of it is registered then.

    Notes
    -----
    The cache is ``~/.cache/mixgrad``; the environment variable ``MIXGRAD_CACHE`` names another folder, ``CXX`` another
    compiler. A library stays loaded for the life of the process.

    Examples
    --------
    >>> import mixgrad
    >>> @mixgrad.register_op("cube_inline_example", saves="x")
    ... def cube(x):
    ...     return x**3
    >>> mixgrad.cpp.load_inline('''
    ...     MIXGRAD_REGISTER_GRADIENT(cube_inline_example) {
    ...       auto [x] = op.inputs<1>();
    ...       return g * 3.0 * square(x);
    ...     }
    ... ''')
    >>> float(mixgrad.grad(cube)(2.0)), float(mixgrad.grad(mixgrad.grad(cube))(2.0))
    (12.0, 12.0)
    >>> mixgrad.unregister("cube_inline_example")
    """
    shown = f"{name}.cpp"
    text = f'#include <mixgrad/mixgrad.hpp>\nusing namespace mixgrad;\n#line 1 "{shown}"\n{source}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / shown
        path.write_text(text)
        library = _build(name, [path], [text], [shown], extra_flags)
    load_library(library, name=name, replace=replace)


def load(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    name: str | None = None,
    extra_flags: Sequence[str] = (),
    replace: bool = False,
) -> None:
    """Compile C++ source files into one library, load it, and register what it brings. As `load_inline` does.

    Parameters
    ----------
    sources : path-like or sequence of path-like
        The files; each includes ``<mixgrad/mixgrad.hpp>`` itself. Headers that they include beside mixgrad's are not looked
        at when the cache is asked whether something has changed.
    name : str, optional
        Who brings it; the first file's stem by default.
    extra_flags : sequence of str
        Further flags for the compiler.
    replace : bool
        Whether its implementations may take the place of those that are registered.

    Raises
    ------
    CompileError, DuplicateRegistrationError, FileNotFoundError
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    paths = [Path(source) for source in sources]
    name = name or paths[0].stem
    library = _build(name, paths, [path.read_text() for path in paths], [str(path) for path in paths], extra_flags)
    load_library(library, name=name, replace=replace)
