"""Memory: what the process holds, what one call adds to it, and what the machine has left."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

STATUS = Path("/proc/self/status")
FORGET = Path("/proc/self/clear_refs")
MEMORY = Path("/proc/meminfo")
# ru_maxrss counts bytes on macOS, kilobytes elsewhere.
MAXRSS = 1 if sys.platform == "darwin" else 1024


def peak_nbytes() -> int:
    """The most memory the process ever held, or held since `forget_peak`, in bytes; 0 where the system does not tell.

    On Linux its own high-water mark: what getrusage gives there begins at the size of the parent.

    Example:
        >>> 1 << 20 < peak_nbytes() < 1 << 40
        True
    """
    return noted("VmHWM") or most_nbytes()


def resident_nbytes() -> int:
    """The memory that the process holds now, in bytes; where the system does not tell, the most it ever held.

    Example:
        >>> resident_nbytes() <= peak_nbytes()
        True
    """
    return noted("VmRSS") or peak_nbytes()


def most_nbytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS


def forget_peak() -> None:
    """Lets the high-water mark begin anew at what is held now, where the system can do that."""
    if FORGET.exists():
        FORGET.write_text("5")


def noted(name: str) -> int:
    """A line of Linux's notes on the process, in bytes; 0 where there are none."""
    if not STATUS.is_file():
        return 0
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines.get(name, "0 kB").split()[0]) * 1024


@final
@dataclass(frozen=True, eq=False)
class FirstCall:
    """The first call of something: what it made, its wall and CPU seconds, and the most bytes that it added."""

    made: object
    seconds: float
    cpu_seconds: float
    nbytes: int


def first_call(call: Callable[[], object]) -> FirstCall:
    """Makes a first call, whose result counts among its bytes.

    Memory that earlier calls left with the allocator is given back before, where that is possible (glibc, Linux); what
    is set up at a first call is counted with it.
    """
    give_back()
    forget_peak()
    before, begun, used = resident_nbytes(), time.perf_counter(), time.process_time()
    made = call()
    used, seconds = time.process_time() - used, time.perf_counter() - begun
    return FirstCall(made, seconds, used, max(peak_nbytes() - before, 0))


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
