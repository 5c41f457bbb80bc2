"""The command `rebracket`: one file per verb, found by its name.

A verb is a module of this folder with a function `command`, whose signature and docstring Typer reads, or with a Typer
of several such functions under that name. It imports what it needs inside them, so that `rebracket --help` stays quick.
"""

import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

# What bad input raises; anything else is a fault of the program and shows where.
EXPECTED = (ValueError, TypeError, OSError, ArithmeticError)
TRACEBACK = "REBRACKET_TRACEBACK"
STOPPED = 130
"""The exit code after Ctrl-C."""
WIDTH = 160
"""Of tables, where there is no terminal that they have to fit."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what is wrong with the input becomes one line on standard error and exit code 2.

    Args:
        arguments: instead of those of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    replace_unencodable(sys.stdout)
    try:
        application()(args=arguments, prog_name="rebracket")
    except EXPECTED as error:
        if os.environ.get(TRACEBACK):
            raise
        sys.stderr.write(f"rebracket: {one_line(error)}\n")
        raise SystemExit(2) from error


def replace_unencodable(stream: object) -> None:
    """Lets a stream show a question mark for what its encoding has no character for, instead of failing there."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def application() -> typer.Typer:
    """The command with every verb of this folder."""
    found = typer.Typer(
        help="Linear attention: one recurrence, three ways to compute it, one state that never grows.",
        epilog=f"{TRACEBACK}=1 in the environment shows where an error came from.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    found.callback()(verb_needed)
    for verb in verbs():
        add(found, verb.replace("_", "-"), importlib.import_module(f"{__name__}.{verb}").command)
    return found


def add(found: typer.Typer, name: str, command: Callable[..., None] | typer.Typer) -> None:
    """One verb, which has verbs of its own if it is a Typer."""
    if isinstance(command, typer.Typer):
        found.add_typer(command, name=name)
    else:
        found.command(name)(command)


def verbs() -> list[str]:
    """The names of the files that are verbs."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def verb_needed() -> None:
    """Keeps the verb in the command line even while there is only one."""


def show(table: "Table") -> None:
    """A table on standard output."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH).print(table, markup=False)


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
