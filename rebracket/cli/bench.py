"""`rebracket bench`."""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from rebracket.bench import Outcome

FAULT = 1
# Where there is no terminal whose width the tables have to fit.
WIDTH = 180


def command(
    peers: Annotated[
        bool, typer.Option("--peers", help="Race what others have too, wherever it is installed.")
    ] = False,
    rules: Annotated[
        str | None, typer.Option(metavar="LIST", help="Names by commas, convolution being one.  [default: all]")
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="BxTxHxD by commas; those with T = 1 are for decode. No convolution then."),
    ] = None,
    modes: Annotated[str | None, typer.Option(metavar="LIST", help="Of forward,train,decode.  [default: all]")] = None,
    threads: Annotated[str | None, typer.Option(metavar="LIST", help="Thread counts by commas.  [default: 1]")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Race softmax over many T, for the plot.")] = True,
    rounds: Annotated[int | None, typer.Option(min=1, help="Most samples of each row.  [default: 15]")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="For everything; what does not fit has fewer samples.  [default: 300]")
    ] = None,
    longest: Annotated[float, typer.Option(min=0, help="Seconds that one call may take; slower ones do not run.")] = 5,
    quiet: Annotated[float, typer.Option(min=0, help="Seconds to wait for a quiet machine before each round.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a page, figures and a plot there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes and few samples: whether it works.")] = False,
) -> None:
    """Race the backends, softmax and what others have; check every result against float64 before timing it.

    Exit code 1: a result of this package was wrong.
    """
    from rich.console import Console

    from rebracket.bench import FULL, QUICK, report, run

    program = replace(QUICK if quick else FULL, peers=peers, dtype=dtype_of(dtype), longest=longest, quiet=quiet)
    program = replace(program, **lists(rules, shapes, modes, threads), **given({"rounds": rounds, "seconds": seconds}))
    program = program if plot else replace(program, sweep=())
    console = Console(stderr=True)
    with console.status("") as status:
        outcome = run(program, status.update if console.is_terminal else console.print)
    show(outcome)
    if out is not None:
        report.write(outcome, out, shlex.join(["rebracket", *sys.argv[1:]]))
        sys.stdout.write(f"page: {out / report.PAGE}\n")
    if any(row.status in ("wrong", "failed") and not row.is_peer for row in outcome.every):
        raise typer.Exit(FAULT)


def lists(rules: str | None, shapes: str | None, modes: str | None, threads: str | None) -> dict[str, Any]:
    """What was asked for of a program, parsed; shapes are those of attention, so with them no convolution is raced."""
    from rebracket.bench import cases, convolution

    def parsed(text: str | None, parse: Callable[[str], object]) -> list[object] | None:
        return None if text is None else [parse(part.strip()) for part in text.split(",")]

    named = parsed(rules, lambda name: of("rules", name, {**cases.RULES, convolution.NAME: convolution.NAME}))
    convolves = shapes is None and (named is None or convolution.NAME in named)
    return given(
        {
            "rules": None if named is None else [rule for rule in named if rule != convolution.NAME],
            "convolutions": None if convolves else (),
            "shapes": parsed(shapes, cases.Shape.parse),
            "modes": parsed(modes, lambda name: of("modes", name, {mode: mode for mode in cases.MODES})),
            "threads": parsed(threads, count),
        }
    )


def given(options: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def of(option: str, name: str, known: Mapping[str, object]) -> object:
    if name not in known:
        raise ValueError(f"--{option} must be of {', '.join(known)}, got {name!r}")
    return known[name]


def dtype_of(name: str) -> "torch.dtype":
    from rebracket.bench import cases

    return cases.DTYPES[str(of("dtype", name, {known: known for known in cases.DTYPES}))]


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--threads must be counts of at least 1, got {text!r}")
    return int(text)


def show(outcome: "Outcome") -> None:
    """The tables on standard output."""
    from rich.console import Console

    from rebracket.bench import grid, report

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in report.tables(outcome):
        console.print(report.rich(table))
    for line in (*grid.notes(outcome), grid.others(outcome), "", report.READING):
        sys.stdout.write(line + "\n")
