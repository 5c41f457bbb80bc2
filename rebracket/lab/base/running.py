"""Runs the cells of experiments in processes, and keeps each result as soon as it is there."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from rebracket.bench.clock import threads
from rebracket.lab.base.cluster import on_ray
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size
from rebracket.lab.base.record import begin, path_of, write
from rebracket.train.interrupt import Interrupt


@final
@dataclass(frozen=True)
class Order:
    """What to run and where to keep it.

    Args:
        size: of the grids.
        folder: of the files of results; made if it is not there.
        seeds: how many, >= 1; by default as many as suit the size.
        workers: processes, >= 1; 1 measures in this one; "ray" measures on a Ray cluster. The numbers do not depend on
            it.
    """

    size: Size
    folder: Path
    seeds: int | None = None
    workers: int | Literal["ray"] = 1

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("workers", self.workers)):
            if value not in (None, "ray") and int(value) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@final
@dataclass(frozen=True)
class Job:
    """One cell of one experiment."""

    experiment: Experiment
    cell: Cell


@final
@dataclass(frozen=True)
class Progress:
    """How far a run has come: the job just done, how many are, how many there were to do, and for how long still."""

    job: Job
    done: int
    total: int
    seconds_left: float


@final
@dataclass(frozen=True)
class Outcome:
    """The results of an experiment's cells that are there, in the order of the grid, and how many were asked for."""

    experiment: Experiment
    results: Sequence[Result]
    asked: int

    @property
    def is_whole(self) -> bool:
        return len(self.results) == self.asked


def run(experiments: Sequence[Experiment], order: Order, tell: Callable[[Progress], None]) -> list[Outcome]:
    """Measures every cell that is not in the files already.

    Ctrl-C ends the run after the cells that are being measured; what was measured before is kept, and another run
    goes on from there.

    Args:
        experiments: what to run.
        order: how much, and where to keep it.
        tell: called after each cell.

    Returns:
        An outcome for each experiment.

    Raises:
        ValueError: If a file of results is damaged, a process was killed, or Ray is asked for and not there.
    """
    order.folder.mkdir(parents=True, exist_ok=True)
    cells = {x: x.cells(order.size, order.seeds) for x in experiments}
    paths = {x: path_of(order.folder, x.name, order.size) for x in experiments}
    records = {x: begin(paths[x], x, order.size, cells[x]) for x in experiments}
    jobs = [Job(x, cell) for x in experiments for cell in cells[x] if not records[x].holds(cell)]
    for progress, result in paced(measured(jobs, order.workers), len(jobs)):
        x = progress.job.experiment
        records[x] = records[x].adding(result)
        write(paths[x], records[x])
        tell(progress)
    return [Outcome(x, records[x].of(cells[x]), len(cells[x])) for x in experiments]


def paced(found: Iterator[tuple[Job, Result]], total: int) -> Iterator[tuple[Progress, Result]]:
    """Results with how far the run has come, until somebody asks to stop."""
    begun = time.monotonic()
    with Interrupt() as interrupt:
        for done, (job, result) in enumerate(found, 1):
            yield Progress(job, done, total, (time.monotonic() - begun) / done * (total - done)), result
            if interrupt.asked:
                return


def measured(jobs: Sequence[Job], workers: int | Literal["ray"]) -> Iterator[tuple[Job, Result]]:
    """Jobs with their results, as these come."""
    if workers == "ray":
        return on_ray(jobs, measure)
    if workers == 1:
        return ((job, measure(job)) for job in jobs)
    return in_processes(jobs, workers)


def in_processes(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Result]]:
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), ignore_interrupts)
    try:
        futures = {pool.submit(measure, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise ValueError("a process was killed, for want of memory perhaps; give fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; only the one that started the others answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def measure(job: Job) -> Result:
    """One cell on one thread, so that neither time nor rounding depends on what else runs."""
    begun = time.perf_counter()
    with threads(1):
        numbers = job.experiment.measure(job.cell)
    return Result(job.cell, {name: float(x) for name, x in numbers.items()}, time.perf_counter() - begun)
