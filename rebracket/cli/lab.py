"""`rebracket lab`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebracket import cli

if TYPE_CHECKING:
    from rebracket.lab.base.running import Outcome
    from rebracket.lab.base.running import Progress as Done

REFUTED, OPEN = 1, 3
"""Exit codes; 2 is a wrong argument."""
PAGE = "report.html"

command = typer.Typer(
    help="Claims about linear attention, each as an experiment that can refute it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the results.")]
RESULTS = Path("runs/lab")


@command.command("list")
def list_experiments() -> None:
    """Name every experiment and the question that it asks."""
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
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them: other seeds show what was luck.")] = 0,
    workers: Annotated[
        str | None, typer.Option(metavar="N|ray", help="Processes, or a Ray cluster.  [default: one process a core]")
    ] = None,
    out: Folder = RESULTS,
) -> None:
    """Measure, and say of each claim whether it held; the same command resumes a run that was stopped.

    A check is held or refuted where the mean over seeds and 2 standard errors of it lie on one side of its bound, else
    open. Exit code 1: a claim was refuted. 3: none was, but one is open, and more --seeds may decide it. 0: all held.
    """
    from rebracket import lab
    from rebracket.base.progress import Progress
    from rebracket.lab.base.running import run

    known = {name: lab.load(name) for name in (lab.names() if "all" in names else names)}
    with Progress(sys.stderr).counting() as show_count:
        outcomes = run(
            list(known.values()),
            "full" if full else "quick",
            out,
            lambda x: show_count(x.done, x.total, said(x)),
            seeds=seeds,
            first_seed=first_seed,
            workers=count(workers),
        )
    left = sum(outcome.asked - len(outcome.results) for outcome in outcomes)
    if left:
        cli.stop(f"stopped, {left} cells are left")
    show(outcomes)


@command.command("report")
def report(out: Folder = RESULTS) -> None:
    """Write one page with the question, curve, table and verdict of every result in the folder."""
    from rebracket import lab
    from rebracket.lab.base.page import write_page
    from rebracket.lab.base.record import read

    found = []
    for path in sorted(out.glob("*.json")):
        try:
            record = read(path)
            found.append((lab.load(record.experiment), record))
        except ValueError as error:
            cli.say(f"left out: {path.name}: {error}")
    if not found:
        raise ValueError(f"--out: no results in {out}; make some with rebracket lab run all")
    write_page(out / PAGE, found, cli.say)
    sys.stdout.write(f"page: {out / PAGE}\n")


def count(workers: str | None) -> "int | Literal['ray']":
    """What --workers says."""
    if workers is None:
        return cores()
    if workers == "ray":
        return "ray"
    if workers.isdecimal():
        return int(workers)
    raise ValueError(f"--workers must be a number or the word ray, got {workers!r}")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def said(progress: "Done") -> str:
    cell = ", ".join(f"{name} {value}" for name, value in progress.job.cell.items())
    return f"{progress.job.experiment.name}, {cell}"


def show(outcomes: "Sequence[Outcome]") -> None:
    """A row for each experiment on standard output."""
    from rich.table import Table

    from rebracket.lab.base.experiment import mean_over_seeds

    table, found = Table(show_lines=True), set[str]()
    for name in ("experiment", "seconds", "claim", "what was found"):
        table.add_column(name, justify="right" if name == "seconds" else "left")
    for outcome in outcomes:
        verdict = outcome.experiment.verdict(mean_over_seeds(outcome.results))
        found.add(verdict.outcome)
        taken = f"{sum(result.seconds for result in outcome.results):.1f}"
        word = verdict.outcome if verdict.passed else verdict.outcome.upper()
        table.add_row(outcome.experiment.name, taken, word, "\n".join([*map(str, verdict.checks), verdict.note]))
    cli.show(table)
    if "refuted" in found or "open" in found:
        raise typer.Exit(REFUTED if "refuted" in found else OPEN)
