"""Measures on a Ray cluster: the one that RAY_ADDRESS names or that runs on this machine, else a local one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def on_ray(jobs: Sequence[Job], measure: Callable[[Job], Result]) -> Iterator[tuple[Job, Result]]:
    """Yields jobs with their results as they finish; each job takes one core of the cluster.

    Raises:
        ValueError: If Ray is not installed (the message names the extra), or a worker was killed.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("--workers ray needs Ray: pip install 'rebracket[ray]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # No retries: a cell that used up the memory would do so again.
    remote = ray.remote(num_cpus=1, max_retries=0)(measure)
    waiting = {remote.remote(job): job for job in jobs}
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)
    except ray.exceptions.WorkerCrashedError as error:
        raise ValueError("a worker of the Ray cluster was killed, perhaps for lack of memory") from error
    finally:
        for left in waiting:
            ray.cancel(left)
        if started_here:
            ray.shutdown()
