"""What the process takes of the machine."""

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
FORGET = Path("/proc/self/clear_refs")
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
