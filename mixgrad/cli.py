# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m mixgrad --help``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mixgrad
from mixgrad import cpp
from mixgrad.errors import UnknownOpError
from mixgrad.scaffolding import new_plugin

app = typer.Typer(add_completion=False, no_args_is_help=True, help=mixgrad.__doc__)


def _print_and_exit(text: str) -> None:
    typer.echo(text)
    raise typer.Exit


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
