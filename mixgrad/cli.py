# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m mixgrad --help``."""

from __future__ import annotations

import contextlib
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import mixgrad
from mixgrad import cpp
from mixgrad.errors import ReplayError, SettingsError, UnknownOpError
from mixgrad.scaffolding import new_plugin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mixgrad.migrate import Settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help=mixgrad.__doc__)


def _print_and_exit(text: str) -> None:
    typer.echo(text)
    raise typer.Exit


def _import_modules(names: Sequence[str] | None) -> None:
    sys.path.insert(0, "")
    for name in names or ():
        try:
            import_module(name)
        except ImportError as error:
            typer.echo(f"--module {name}: {error}", err=True)
            raise typer.Exit(2) from None


def _run_program(script: Path, arguments: list[str]) -> int:
    """Runs a script as ``python SCRIPT ARGUMENTS`` does, and gives its exit status."""
    if not script.is_file():
        typer.echo(f"there is no file {script}", err=True)
        raise typer.Exit(2)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            typer.echo(end.code, err=True)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    includes: Annotated[bool, typer.Option("--includes", help="Print the folder of the C++ headers.")] = False,
    cmakedir: Annotated[bool, typer.Option("--cmakedir", help="Print the folder of the CMake package.")] = False,
) -> None:
    if version:
        _print_and_exit(mixgrad.__version__)
    if includes:
        _print_and_exit(cpp.get_include())
    if cmakedir:
        _print_and_exit(cpp.get_cmake_dir())


@app.command()
def registry(
    explain: Annotated[
        str | None,
        typer.Option(help="Say which implementations of this op would run, and why."),
    ] = None,
) -> None:
    """Print all ops with their forwards and gradients."""
    if explain is None:
        typer.echo(repr(mixgrad.registry))
        return
    try:
        typer.echo(mixgrad.registry.explain(explain))
    except UnknownOpError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command()
def demo(
    data: Annotated[
        Path | None,
        typer.Option(help="Images and labels in an .npz file; scikit-learn's digits by default."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Images in a step.")] = 64,
    hidden: Annotated[int, typer.Option(min=1, help="Units of the hidden layer.")] = 64,
) -> None:
    """Train a small network four times from one seed: native, Python, mixed and overridden gradients."""
    from mixgrad import demo as program  # noqa: PLC0415  it needs scikit-learn

    try:
        program.run(data, epochs=epochs, batch=batch, hidden=hidden)
    except program.DataError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A gradient call that was saved by compare_gradients or a demotion.")],
    module: Annotated[
        list[str] | None, typer.Option(help="A module to import first: the one that registers the op.")
    ] = None,
) -> None:
    """Run both gradients of a saved call again, and compare them; the exit status is 1 if they differ."""
    _import_modules(module)
    try:
        found = mixgrad.debug.replay(file)
    except ReplayError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(str(found))
    raise typer.Exit(1 if found.differences else 0)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def profile(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python program; what follows it are its arguments.")],
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto or Chrome to this file.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 30,
) -> None:
    """Run a program, and print where its time went: by op, and by native or Python implementation."""
    from rich.console import Console  # noqa: PLC0415  slow to import

    if trace is not None and not trace.resolve().parent.is_dir():
        typer.echo(f"--trace {trace}: there is no folder {trace.parent}", err=True)
        raise typer.Exit(2)
    with mixgrad.debug.profile() as measured:
        status = _run_program(script, context.args)
    Console().print(measured.table(limit))
    if trace is not None:
        measured.save_trace(trace)
        typer.echo(f"the trace is in {trace}: open it at https://ui.perfetto.dev")
    raise typer.Exit(status)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def advise(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python program; what follows it are its arguments.")],
    promises: Annotated[
        Path, typer.Option(help="Keeps what was promised, to be set against what a move has gained.")
    ] = Path(".mixgrad-advice.json"),
) -> None:
    """Run a program, and rank its Python gradients and forwards by what moving them to C++ would save."""
    from rich.console import Console  # noqa: PLC0415  slow to import

    with mixgrad.debug.profile() as measured:
        status = _run_program(script, context.args)
    Console().print(mixgrad.migrate.advise(measured, file=promises).table())
    raise typer.Exit(status)


@app.command()
def scaffold(
    op: Annotated[str, typer.Argument(help="The op whose Python gradient is to be translated.")],
    into: Annotated[
        Path | None, typer.Option(help="A folder for the C++ file and its test; printed when left out.")
    ] = None,
    fuse: Annotated[bool, typer.Option("--fuse", help="Write an element-wise gradient as one loop per input.")] = False,
    module: Annotated[
        list[str] | None, typer.Option(help="A module to import first: the one that registers the op.")
    ] = None,
) -> None:
    """Translate an op's Python gradient into C++, build it, and compare the two; the exit status is 1 if there are gaps, or they differ."""
    _import_modules(module)
    try:
        made = mixgrad.migrate.scaffold(op, into, fuse=fuse, modules=module or ())
    except (FileExistsError, LookupError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if into is None:
        typer.echo(made.source)
    typer.echo(str(made))
    raise typer.Exit(0 if made.translated and made.proved else 1)


@app.command("new-plugin")
def new_plugin_command(
    name: Annotated[str, typer.Argument(help="The package's name.")],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> None:
    """Write a small package with an op, its gradient in Python and in C++, and tests."""
    try:
        files = new_plugin(name, folder)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for file in files:
        typer.echo(file)
    typer.echo(f"\nBuild and test it:\n    pip install '{folder}[test]' && pytest {folder}")


# --- the migration's proof ---------------------------------------------------------------------------------------------

PackageOption = Annotated[
    str | None, typer.Option(help="The ops of this package; of the settings' modules by default.")
]
SettingsOption = Annotated[
    Path | None, typer.Option(help="A pyproject.toml with [tool.mixgrad]; the nearest one by default.")
]


def _read_settings(path: Path | None, package: str | None) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and the packages that are meant; all of them imported."""
    from mixgrad.migrate import load_settings  # noqa: PLC0415  slow to import
    from mixgrad.migrate.verify import package_of  # noqa: PLC0415

    try:
        settings = load_settings(path)
        settings.import_modules()
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if package is None:
        return settings, settings.packages
    _import_modules([package])
    if package not in map(package_of, mixgrad.registry.values()):
        typer.echo(f"the package {package} has registered no op", err=True)
        raise typer.Exit(2)
    return settings, (package,)


def _print_table(header: Iterable[str], rows: Iterable[Iterable[str]], file: Path | None = None) -> None:
    from rich.console import Console  # noqa: PLC0415  slow to import
    from rich.table import Table  # noqa: PLC0415

    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    with contextlib.ExitStack() as stack:
        console = Console(file=stack.enter_context(file.open("w", encoding="utf-8")) if file else None)
        if not console.is_terminal:
            # It has no width of its own.
            console.width = 200
        console.print(table)


@app.command()
def verify(
    ops: Annotated[list[str] | None, typer.Argument(help="The ops; all with a native gradient by default.")] = None,
    package: PackageOption = None,
    settings: SettingsOption = None,
) -> None:
    """Check native gradients: against Python's, to second order, and for leaks. The exit status is 1 if a check fails."""
    from mixgrad.migrate import verify as proof  # noqa: PLC0415  slow to import
    from mixgrad.migrate.verify import HEADER  # noqa: PLC0415

    found, packages = _read_settings(settings, package)
    try:
        report = proof(ops) if ops else proof(package=packages, require=found.require_native)
    except UnknownOpError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    _print_table(HEADER, report.table())
    typer.echo(str(report))
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def checklist(
    package: PackageOption = None,
    settings: SettingsOption = None,
    form: Annotated[
        Literal["table", "markdown", "html", "json"], typer.Option("--format", help="How it is printed.")
    ] = "table",
    run: Annotated[bool, typer.Option("--run", help="Run all checks, and write the checklist's file.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Run all checks, and fail if the file or the page (--output) says otherwise."),
    ] = False,
    fail_under: Annotated[
        float, typer.Option(help="Fail below this percentage of ops with a proved native gradient.")
    ] = 0.0,
    output: Annotated[
        Path | None, typer.Option(help="Where it is printed to; with --check, the page to check.")
    ] = None,
) -> None:
    """Print which gradients are native, and what is proved of them, as the last run of the checks left it."""
    from mixgrad.migrate import checklist as lists  # noqa: PLC0415  slow to import

    if (run and check) or (check and output and form == "table"):
        typer.echo("--check is without --run, and checks a page of --format markdown, html or json", err=True)
        raise typer.Exit(2)
    found, packages = _read_settings(settings, package)
    try:
        old = lists.load(found.checklist, packages)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if old is None and not run:
        typer.echo(f"there is no {found.checklist}; write it with --run", err=True)
        raise typer.Exit(1)
    new = lists.run_checks(packages) if run or check or old is None else old
    void = {} if run or check else lists.voids(new)
    complaints = lists.lost_ticks(old, new) if old else []
    if check and old:
        complaints += lists.differences(old, new)
        if output and lists.is_other_text(output, lists.render(old, {}, form)):
            complaints.append(f"{output} is not the page of {found.checklist}")
    else:
        if run:
            lists.write(found.checklist, lists.dump(new))
        if form == "table":
            _print_table(lists.HEADER, lists.table(new, void), output)
        elif output:
            lists.write(output, lists.render(new, void, form))
        else:
            typer.echo(lists.render(new, void, form), nl=False)
    if (percent := lists.percent_proved(new, void)) < fail_under:
        complaints.append(
            f"{percent:.1f} % of the ops have a proved native gradient, less than --fail-under {fail_under:g}"
        )
    for complaint in complaints:
        typer.echo(complaint, err=True)
    if check or form == "table":
        typer.echo(lists.summary(new, void))
    raise typer.Exit(1 if complaints else 0)
