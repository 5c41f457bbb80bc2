"""The command `rebracket`: one file per verb, found by its name.

A verb is a module of this folder with a function `command`, whose signature and docstring Typer reads, or with a Typer
of several such functions. It imports what it needs inside them, so that `rebracket --help` stays quick.
"""

import importlib
import io
import os
import pkgutil
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.table import Table

# What bad input raises; anything else is a fault of the program and shows its traceback.
EXPECTED = (ValueError, TypeError, OSError, ArithmeticError)
TRACEBACK = "REBRACKET_TRACEBACK"
STOPPED = 130
"""The exit code after Ctrl-C."""
WIDTH = 180
"""Of tables where there is no terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; bad input becomes one line on standard error and exit code 2.

    Args:
        arguments: instead of those of the process.
    """
    open_closed()
    replace_unencodable(sys.stdout)
    try:
        try:
            application()(args=arguments, prog_name="rebracket")
        finally:
            sys.stdout.flush()
    except EXPECTED as error:
        if os.environ.get(TRACEBACK):
            raise
        silence(sys.stdout)  # what it still holds may be what could not be written
        say(f"rebracket: {one_line(error)}")
        raise SystemExit(2) from error


def open_closed() -> None:
    """Opens closed standard streams to nowhere, so that no other file takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def silence(stream: IO[str]) -> None:
    """Sends what is still to be written to a stream nowhere, so that closing it raises nothing."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):  # there may be no file behind it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def replace_unencodable(stream: object) -> None:
    """Lets a stream write a question mark for what its encoding lacks, instead of failing."""
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
        command, name = importlib.import_module(f"{__name__}.{verb}").command, verb.replace("_", "-")
        if isinstance(command, typer.Typer):
            found.add_typer(command, name=name)
        else:
            found.command(name)(command)
    return found


def verbs() -> list[str]:
    """The names of the files that are verbs."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def verb_needed() -> None:
    """Makes Typer ask for a verb even if there is only one."""


def stop(text: str) -> NoReturn:
    """Says that the command was stopped and how to resume, and ends with the exit code of Ctrl-C."""
    sys.stdout.write(f"{text}; to go on: {shlex.join(['rebracket', *sys.argv[1:]])}\n")
    raise typer.Exit(STOPPED)


def say(line: str) -> None:
    """A line on standard error; nothing where that cannot be written."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


def show(table: "Table") -> None:
    """A table on standard output."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH).print(table, markup=False)


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
