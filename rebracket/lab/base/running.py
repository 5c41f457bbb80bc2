"""Runs the cells of experiments in processes and stores each result as soon as it is measured."""

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

from rebracket.base.checks import whole
from rebracket.bench.clock import threads
from rebracket.lab.base.cluster import on_ray
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size
from rebracket.lab.base.record import path_of, resume, write
from rebracket.train.interrupt import Interrupt

Workers = int | Literal["ray"]


@final
@dataclass(frozen=True)
class Job:
    """One cell of one experiment."""

    experiment: Experiment
    cell: Cell


@final
@dataclass(frozen=True)
class Progress:
    """The job that has just finished, how many have, and how many there are in this run."""

    job: Job
    done: int
    total: int


@final
@dataclass(frozen=True)
class Outcome:
    """The results of an experiment that have been measured, in the order of its grid, and how many were asked for."""

    experiment: Experiment
    results: Sequence[Result]
    asked: int

    @property
    def is_complete(self) -> bool:
        return len(self.results) == self.asked


def run(
    experiments: Sequence[Experiment],
    size: Size,
    folder: Path,
    tell: Callable[[Progress], None],
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    workers: Workers = 1,
) -> list[Outcome]:
    """Measures every cell that the files do not hold yet.

    Ctrl-C ends the run after the cells that are being measured; what was measured is kept, and the next run resumes.

    Args:
        experiments: what to run.
        size: of the grids.
        folder: of the files of results; created if needed.
        tell: called after each cell.
        seeds: how many, >= 1; by default as many as suit the size.
        first_seed: the first of them, >= 0.
        workers: processes, >= 1, where 1 is this one, or "ray" for a Ray cluster; the numbers do not depend on it.

    Returns:
        An outcome for each experiment.

    Raises:
        ValueError: If a count is below 1, the first seed below 0, a file of results is damaged, a process was killed,
            or Ray is not installed.
    """
    for name, value in (("seeds", seeds), ("workers", workers)):
        if value not in (None, "ray"):
            whole(name, value)
    whole("first_seed", first_seed, 0)
    folder.mkdir(parents=True, exist_ok=True)
    cells = {x: x.cells(size, seeds, first_seed) for x in experiments}
    paths = {x: path_of(folder, x.name, size) for x in experiments}
    records = {x: resume(paths[x], x, size, cells[x]) for x in experiments}
    jobs = [Job(x, cell) for x in experiments for cell in cells[x] if not records[x].holds(cell)]
    with Interrupt() as interrupt:
        for done, (job, result) in enumerate(measure_all(jobs, workers), 1):
            x = job.experiment
            records[x] = records[x].adding(result)
            write(paths[x], records[x])
            tell(Progress(job, done, len(jobs)))
            if interrupt.asked:
                break
    return [Outcome(x, records[x].results_of(cells[x]), len(cells[x])) for x in experiments]


def measure_all(jobs: Sequence[Job], workers: Workers) -> Iterator[tuple[Job, Result]]:
    """Yields jobs with their results as they finish."""
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
        raise ValueError("a process was killed, perhaps for lack of memory; give fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; only the one that started the others handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def measure(job: Job) -> Result:
    """Measures one cell on one thread, so that neither time nor rounding depends on what else runs."""
    started = time.perf_counter()
    with threads(1):
        numbers = job.experiment.measure(job.cell)
    return Result(job.cell, {name: float(x) for name, x in numbers.items()}, time.perf_counter() - started)
