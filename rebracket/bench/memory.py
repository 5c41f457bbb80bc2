"""The memory of one call, as the system sees it: what native code takes too."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rebracket.lm.resources import forget_peak, peak_nbytes, resident_nbytes

MEMORY = Path("/proc/meminfo")


@final
@dataclass(frozen=True, eq=False)
class First:
    """The first call of something: what it made, its seconds, and the most bytes that it added to the process."""

    made: object
    seconds: float
    nbytes: int


def first(call: Callable[[], object]) -> First:
    """Makes a first call, whose result counts among its bytes.

    Memory that earlier calls left with the allocator is given back before, where that is possible (glibc, Linux); what
    is set up at a first call is counted with it.
    """
    give_back()
    forget_peak()
    before, begun = resident_nbytes(), time.perf_counter()
    made = call()
    seconds = time.perf_counter() - begun
    return First(made, seconds, max(peak_nbytes() - before, 0))


def give_back() -> None:
    """Lets the C library return what it keeps of freed memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def available_nbytes() -> int | None:
    """The memory that a process may still take without others losing theirs; None where the system does not tell."""
    if not MEMORY.exists():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
