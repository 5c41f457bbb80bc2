"""Time: samples of several calls taken in turns, so that whatever else the machine does affects all of them alike."""

from __future__ import annotations

import ctypes
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
"""CPU seconds that a sample takes at least: a shorter call is repeated within it."""
WAITING = 4
"""How much longer a sample may take at most for this, when other processes run or the call waits."""
LONG = 0.1
"""Seconds of a first call from which on the later ones need no repeating within a sample."""
FEWEST = 3
LOOK = 0.1
QUIET = 0.2
"""Cores that other processes may use on a quiet machine."""
STAT = Path("/proc/stat")
NOTHING: Mapping[str, float] = MappingProxyType({})
MALLOC = {-1: 2**31 - 1, -4: 0}
"""M_TRIM_THRESHOLD and M_MMAP_MAX of glibc: freed memory stays with the process, whatever the size of a block."""


@final
@dataclass(frozen=True)
class Timing:
    """Seconds a call, once for each sample.

    Args:
        samples: with torch on one thread the CPU seconds of the process, in which other processes do not count; on
            more threads, which wait for each other, wall time.
        wall: wall time of the same samples.

    Example:
        >>> timing = Timing((3.0, 1.0, 2.0, 5.0, 4.0))
        >>> timing.low, timing.median, timing.high
        (2.0, 3.0, 4.0)
    """

    samples: tuple[float, ...]
    wall: tuple[float, ...] = ()

    @classmethod
    def of(cls, *samples: tuple[float, float]) -> Timing:
        """That of samples in wall and CPU seconds, on as many threads as torch has now."""
        wall, cpu = zip(*samples, strict=True)
        return cls(cpu if torch.get_num_threads() == 1 else wall, wall)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The first quartile."""
        return self._quartiles[0]

    @property
    def high(self) -> float:
        """The third quartile."""
        return self._quartiles[2]

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median

    @property
    def _quartiles(self) -> list[float]:
        return statistics.quantiles(self.samples * 2 if len(self.samples) == 1 else self.samples, method="inclusive")


@final
class Budget:
    """The time for some measurements: each gets its share of what is left when it begins.

    Args:
        rounds: most samples of each call.
        seconds: for all measurements; half of a share is for samples, half for preparing and checking.
        quiet: seconds to wait before a round for other processes to leave the cores alone; 0 does not wait.
        measurements: how many there are.
    """

    def __init__(self, rounds: int, seconds: float, quiet: float = 0.0, measurements: int = 1) -> None:
        self.rounds, self.quiet = rounds, quiet
        self._ends, self._left = time.perf_counter() + seconds, measurements

    def share(self) -> float:
        """Seconds for the samples of the next measurement."""
        share = max(self._ends - time.perf_counter(), 0.0) / max(self._left, 1) / 2
        self._left -= 1
        return share


def sample(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Wall and CPU seconds a call, over several."""
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        call()
    used = time.process_time() - used
    return (time.perf_counter() - begun) / repeats, used / repeats


def repeats_of(call: Callable[[], object], took: float) -> int:
    """Calls that take as long as a sample, the first one having taken `took` seconds."""
    repeats = 1
    while took < LONG:
        wall, cpu = sample(call, repeats)
        if cpu * repeats >= SAMPLE or wall * repeats >= WAITING * SAMPLE:
            break
        repeats *= 2
    return repeats


def measure(
    calls: Mapping[str, Callable[[], object]], budget: Budget, took: Mapping[str, float] = NOTHING
) -> tuple[dict[str, Timing], float | None]:
    """Times calls in turns, after a few that tell how often to repeat them within a sample.

    Args:
        calls: by name.
        budget: at most its rounds, as many as fit into its next share, but a few at least.
        took: seconds of the first call, where there was one.

    Returns:
        The timing of each call by its name, and the cores that other processes kept busy meanwhile, on average; None
        where the system does not tell.
    """
    repeats = {name: repeats_of(call, took.get(name, 0.0)) for name, call in calls.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    others, ends = OtherProcesses(), time.perf_counter() + budget.share()
    for turn in range(max(budget.rounds, 1)):
        if turn >= FEWEST and time.perf_counter() > ends:
            break
        wait_for_quiet(budget.quiet)
        with others.watched():
            for name, call in calls.items():
                taken[name].append(sample(call, repeats[name]))
    return {name: Timing.of(*samples) for name, samples in taken.items()}, others.cores


def keep_memory() -> None:
    """Lets malloc keep what is freed, for the rest of the process.

    Otherwise some calls find their results' memory still there and others get it from the system again, page by page,
    which takes 4 ms for 8 MiB. Does nothing where the C library is another one.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if change is not None:
        for parameter, value in MALLOC.items():
            change(parameter, value)


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
class OtherProcesses:
    """Counts the cores that other processes keep busy."""

    def __init__(self) -> None:
        self._busy = self._wall = 0.0

    @property
    def cores(self) -> float | None:
        """On average over what was watched."""
        return max(self._busy, 0.0) / self._wall if self._wall and STAT.exists() else None

    @contextmanager
    def watched(self) -> Iterator[None]:
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
    """Waits until other processes leave the cores alone, but no longer than so many seconds."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        others = OtherProcesses()
        with others.watched():
            time.sleep(LOOK)
        if (others.cores or 0.0) < QUIET:
            return
