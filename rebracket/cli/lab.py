"""`rebracket lab`: lists, runs and reports experiments."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rebracket.lab.base.running import Outcome, Progress

REFUTED, STOPPED = 1, 130
PAGE = "report.html"
# Seconds between plain lines.
PAUSE = 5.0
# Where there is no terminal whose width the table has to fit.
WIDTH = 160

command = typer.Typer(
    help="Claims about linear attention, each as an experiment that can refute it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the results.")]
RESULTS = Path("runs/lab")


@command.command("list")
def list_experiments() -> None:
    """Name every experiment and its question."""
    from rebracket import lab

    for name in lab.names():
        sys.stdout.write(f"{name:12} {lab.load(name).question}\n")


@command.command("run")
def run_experiments(
    names: Annotated[list[str], typer.Argument(metavar="NAME|all", show_default=False)],
    full: Annotated[
        bool, typer.Option("--full/--quick", help="A large grid and many seeds, or a minute each.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many.  [default: as suits the size]")] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N|ray", help="Processes, or a Ray cluster.  [default: one process a core]")
    ] = None,
    out: Folder = RESULTS,
) -> None:
    """Measure, and say of each claim whether it held; after an interruption the same command resumes.

    Exit code 1: a claim was refuted.
    """
    from rebracket import lab
    from rebracket.lab.base.running import run

    known = {name: lab.load(name) for name in (lab.names() if "all" in names else names)}
    with telling() as tell:
        outcomes = run(
            list(known.values()), "full" if full else "quick", out, tell, seeds=seeds, workers=count(workers)
        )
    left = sum(outcome.asked - len(outcome.results) for outcome in outcomes)
    if left:
        sys.stdout.write(f"stopped, {left} cells are left; to resume: {shlex.join(['rebracket', *sys.argv[1:]])}\n")
        raise typer.Exit(STOPPED)
    show(outcomes)


@command.command("report")
def report(out: Folder = RESULTS) -> None:
    """Write one page with question, verdict, curve and table of every experiment in the folder."""
    from rebracket import lab
    from rebracket.lab.base.page import write_page
    from rebracket.lab.base.record import read

    records = [read(path) for path in sorted(out.glob("*.json"))]
    if not records:
        raise ValueError(f"--out: no results in {out}; make some with rebracket lab run all")
    write_page(out / PAGE, [(lab.load(record.experiment), record) for record in records])
    sys.stdout.write(f"page: {out / PAGE}\n")


def count(workers: str | None) -> "int | Literal['ray']":
    """The value of --workers; by default the cores that this process may use."""
    if workers is None:
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if workers == "ray":
        return "ray"
    if workers.isdecimal():
        return int(workers)
    raise ValueError(f"--workers must be a number or the word ray, got {workers!r}")


@contextmanager
def telling() -> Iterator["Callable[[Progress], None]"]:
    """Something that shows progress: a bar on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda progress: bar.update(
            task, completed=progress.done, total=progress.total, description=said(progress)
        )


def lines() -> "Callable[[Progress], None]":
    last = time.monotonic()

    def tell(progress: "Progress") -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE or progress.done == progress.total:
            last = time.monotonic()
            sys.stderr.write(f"{progress.done}/{progress.total}: {said(progress)}\n")

    return tell


def said(progress: "Progress") -> str:
    cell = ", ".join(f"{name} {value}" for name, value in progress.job.cell.items())
    return f"{timedelta(seconds=round(progress.seconds_left))} left, {progress.job.experiment.name}: {cell}"


def show(outcomes: "Sequence[Outcome]") -> None:
    """A row for each experiment on standard output."""
    from rich.console import Console
    from rich.table import Table

    from rebracket.lab.base.experiment import mean_over_seeds

    shown, refuted = Table(show_lines=True), False
    for name in ("experiment", "seconds", "claim", "what was found"):
        shown.add_column(name, justify="right" if name == "seconds" else "left")
    for outcome in outcomes:
        verdict = outcome.experiment.verdict(mean_over_seeds(outcome.results))
        refuted |= not verdict.passed
        taken = f"{sum(result.seconds for result in outcome.results):.1f}"
        shown.add_row(outcome.experiment.name, taken, "held" if verdict.passed else "REFUTED", verdict.sentence)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(shown, markup=False)
    if refuted:
        raise typer.Exit(REFUTED)
