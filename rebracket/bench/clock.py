"""Time: samples of many calls taken in turns, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import final

import torch

SAMPLE = 0.01
"""Seconds that a sample takes at least: a shorter call is repeated within it."""
LONG = 0.1
"""Seconds of a first call from which on the later ones need no repeating within a sample."""
FEWEST = 3
LOOK = 0.1
STAT = Path("/proc/stat")
NOTHING: Mapping[str, float] = MappingProxyType({})


@final
@dataclass(frozen=True)
class Timing:
    """Seconds a call, once for each sample.

    Example:
        >>> timing = Timing((3.0, 1.0, 2.0, 5.0, 4.0))
        >>> timing.low, timing.median, timing.high
        (2.0, 3.0, 4.0)
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The first quartile."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """The third quartile."""
        return self._quartile(2)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median

    def _quartile(self, index: int) -> float:
        if len(self.samples) == 1:
            return self.samples[0]
        return statistics.quantiles(self.samples, n=4, method="inclusive")[index]


@final
@dataclass(frozen=True)
class Pace:
    """How long to measure: at most `rounds` samples of each, as many as fit into `seconds` but a few at least.

    Args:
        rounds: most samples of each call.
        seconds: for all samples together.
        quiet: seconds to wait before a round for other processes to leave the cores alone; 0 does not wait.
    """

    rounds: int
    seconds: float
    quiet: float = 0.0


@final
@dataclass(frozen=True)
class Laps:
    """What a measurement found.

    Args:
        timings: of each call by its name.
        others: cores that other processes kept busy meanwhile, on average; None where the system does not tell.
    """

    timings: Mapping[str, Timing]
    others: float | None


def sample(call: Callable[[], object], repeats: int) -> float:
    """Seconds a call, over several."""
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begun) / repeats


def enough(call: Callable[[], object], took: float) -> int:
    """Calls that take as long as a sample, the first one having taken `took` seconds."""
    repeats = 1
    if took >= LONG:
        return repeats
    while sample(call, repeats) * repeats < SAMPLE:
        repeats *= 2
    return repeats


def laps(calls: Mapping[str, Callable[[], object]], pace: Pace, took: Mapping[str, float] = NOTHING) -> Laps:
    """Times calls in turns, after a few that tell how often to repeat them within a sample.

    Args:
        calls: by name.
        pace: how long.
        took: seconds of the first call, where there was one.

    Returns:
        A timing for each.
    """
    repeats = {name: enough(call, took.get(name, 0.0)) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    crowd, ends = Crowd(), time.perf_counter() + pace.seconds
    for turn in range(max(pace.rounds, 1)):
        if turn >= FEWEST and time.perf_counter() > ends:
            break
        wait_for_quiet(pace.quiet)
        with crowd.watching():
            for name, call in calls.items():
                taken[name].append(sample(call, repeats[name]))
    return Laps({name: Timing(tuple(samples)) for name, samples in taken.items()}, crowd.others)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
class Crowd:
    """Counts the cores that other processes keep busy."""

    def __init__(self) -> None:
        self._busy = self._wall = 0.0

    @property
    def others(self) -> float | None:
        return max(self._busy, 0.0) / self._wall if self._wall and STAT.exists() else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts."""
        busy, wall = busy_seconds() - time.process_time(), time.perf_counter()
        yield
        self._busy += busy_seconds() - time.process_time() - busy
        self._wall += time.perf_counter() - wall


def busy_seconds() -> float:
    """Core seconds that the whole machine has spent on anything since it started; 0 where the system does not tell."""
    if not STAT.exists():
        return 0.0
    user, nice, system, _, _, *rest = map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(seconds: float) -> None:
    """Waits until other processes use less than a fifth of a core, but no longer than so many seconds."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        crowd = Crowd()
        with crowd.watching():
            time.sleep(LOOK)
        if (crowd.others or 0.0) < 0.2:
            return
