"""Measures on a Ray cluster: the one that RAY_ADDRESS names or that runs here, else one of this machine's cores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def on_ray(jobs: Sequence[Job], measure: Callable[[Job], Result]) -> Iterator[tuple[Job, Result]]:
    """Jobs with their results, as these come; every job takes one core, wherever there is one.

    Raises:
        ValueError: If Ray is not installed; the message names the extra.
    """
    ray = imported()
    begun_here = not ray.is_initialized()
    if begun_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # A worker that dies is not asked again: a cell that ate the memory would eat it twice.
    remote = ray.remote(num_cpus=1, max_retries=0)(measure)
    waiting = {remote.remote(job): job for job in jobs}
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)
    except ray.exceptions.WorkerCrashedError as error:
        raise ValueError("a worker of the Ray cluster was killed, for want of memory perhaps") from error
    finally:
        for left in waiting:
            ray.cancel(left)
        if begun_here:
            ray.shutdown()


def imported() -> ModuleType:
    """Ray itself."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("--workers ray needs Ray: pip install 'rebracket[ray]'") from error
    return ray
