"""`rebracket bench`."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rebracket import cli

if TYPE_CHECKING:
    from rebracket.bench import Suite, SuiteResult

WRONG = 1
PER_CORE = 8
Parsed = TypeVar("Parsed")


def command(
    peers: Annotated[
        bool, typer.Option("--peers", help="Benchmark what others have too, wherever it is installed.")
    ] = False,
    rules: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Names by commas, softmax and convolution among them.  [default: all]"),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="BxTxHxD for attention and BxTxD for the convolution, by commas; T = 1 is for decode."
        ),
    ] = None,
    modes: Annotated[str | None, typer.Option(metavar="LIST", help="Of forward,train,decode.  [default: all]")] = None,
    threads: Annotated[str | None, typer.Option(metavar="LIST", help="Thread counts by commas.  [default: 1]")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    plot: Annotated[
        bool, typer.Option("--plot/--no-plot", help="Compare with softmax over many T, for the plot.")
    ] = True,
    rounds: Annotated[int | None, typer.Option(min=1, help="Most samples of each row.  [default: 15]")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="For everything; what does not fit has fewer samples.  [default: 300]")
    ] = None,
    longest: Annotated[float, typer.Option(min=0, help="Seconds that one call may take; slower ones do not run.")] = 5,
    quiet: Annotated[float, typer.Option(min=0, help="Seconds to wait for a quiet machine before each round.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a page, figures and a plot there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes and few samples: whether it works.")] = False,
    models: Annotated[
        str | None, typer.Option(metavar="LIST", help="Whole models by commas in place of operators, or all.")
    ] = None,
) -> None:
    """Benchmark the backends, softmax and what others have; check every result against float64 before timing it.

    Exit code 1: a result of this package was wrong.
    """
    if models is not None:
        bench_models(models, quick, peers, rounds, seconds, quiet, out)
        return
    from rebracket.bench import FULL, QUICK, report
    from rebracket.bench.case import DTYPES, MODES
    from rebracket.bench.cases import by_name

    given = {
        "rules": parsed(rules, lambda name: one_of("rules", name, by_name())),
        "shapes": parsed(shapes, shape_of),
        "modes": parsed(modes, lambda name: one_of("modes", name, MODES)),
        "threads": parsed(threads, count),
        "sweep": None if plot else (),
        "rounds": rounds,
        "seconds": seconds,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {"peers": peers, "dtype": DTYPES[one_of("dtype", dtype, DTYPES)], "longest": longest, "quiet": quiet}
    result = measured(replace(QUICK if quick else FULL, **options))
    show(result)
    if out is not None:
        report.write(result, out, shlex.join(["rebracket", *sys.argv[1:]]))
        sys.stdout.write(f"page: {out / report.PAGE}\n")
    if any(row.status in ("wrong", "failed") and not row.is_peer for row in result.every):
        raise typer.Exit(WRONG)


def bench_models(
    names: str, quick: bool, peers: bool, rounds: int | None, seconds: float | None, quiet: float, out: Path | None
) -> None:
    """Whole models: every way to run one."""
    from rebracket.base.progress import Progress
    from rebracket.bench import model_suite
    from rebracket.bench.models.base import SIZES

    suite = model_suite.QUICK_MODELS if quick else model_suite.MODELS
    given = {
        "rounds": rounds,
        "seconds": seconds,
        "sizes": None if names == "all" else parsed(names, lambda name: one_of("models", name, SIZES)),
    }
    suite = replace(
        suite, peers=peers, quiet=quiet, **{name: value for name, value in given.items() if value is not None}
    )
    with Progress(sys.stderr).counting() as show_count:
        found = model_suite.run(suite, show_count)
    for table in model_suite.tables(found):
        cli.show(table.rich())
    for line in (*model_suite.notes(found), "", model_suite.READING):
        sys.stdout.write(line + "\n")
    if out is not None:
        model_suite.write(found, out, shlex.join(["rebracket", *sys.argv[1:]]))
        sys.stdout.write(f"page: {out / model_suite.PAGE}\n")
    if any(row.wrong for row in found):
        raise typer.Exit(WRONG)


def parsed(text: str | None, parse: Callable[[str], Parsed]) -> list[Parsed] | None:
    """The items of a list by commas."""
    return None if text is None else [parse(part.strip()) for part in text.split(",")]


def one_of(option: str, name: str, known: Collection[str]) -> str:
    if name not in known:
        raise ValueError(f"--{option} must be of {', '.join(known)}, got {name!r}")
    return name


def shape_of(text: str) -> tuple[int, ...]:
    from rebracket.bench.cases import by_name

    letters = dict.fromkeys("x".join(operator.letters) for operator in by_name().values())
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) or text.count("x") not in {x.count("x") for x in letters}:
        raise ValueError(f"a shape is {' or '.join(letters)}, such as 1x4096x8x64, got {text!r}")
    return tuple(map(int, text.split("x")))


def count(text: str) -> int:
    most = PER_CORE * (os.cpu_count() or 1)  # the system kills a process that asks for far too many
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"--threads must be counts in [1, {most}], got {text!r}")
    return int(text)


def measured(suite: "Suite") -> "SuiteResult":
    """Runs a suite and shows how far it is on standard error."""
    from rebracket.base.progress import Progress
    from rebracket.bench import run

    with Progress(sys.stderr).counting() as show_count:
        return run(suite, show_count)


def show(result: "SuiteResult") -> None:
    """The tables on standard output."""
    from rebracket.bench import report, tables

    for table in tables.tables(result):
        cli.show(table.rich())
    for line in (*tables.notes(result), tables.busy(result), "", report.reading(result)):
        sys.stdout.write(line + "\n")
