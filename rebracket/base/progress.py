"""Progress of long work: a bar on a terminal, plain lines every few seconds elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PAUSE = 5.0
"""Seconds between plain lines, so that a log stays readable however fast the work is."""


@final
class Progress:
    """Shows a count with its rate and the time left, and lines that stay.

    Args:
        stream: where to write, such as `sys.stdout`.
        unit: what is counted, such as "step"; may be empty.
        pause: seconds between plain lines, >= 0; the first and the last are always shown.

    Example:
        >>> import sys
        >>> progress = Progress(sys.stdout, "step", pause=0)
        >>> progress.say("ready")
        ready
        >>> with progress.counting() as show:
        ...     show(5, 5, "loss 2.000")
        step 5/5, ..., 0:00:00 left: loss 2.000
    """

    def __init__(self, stream: TextIO, unit: str = "", pause: float = PAUSE) -> None:
        self._stream = stream
        self._unit = f"{unit} " if unit else ""
        self._pause = pause
        self._bar = make_bar(stream, unit) if stream.isatty() else None

    def say(self, text: str) -> None:
        """Shows lines that stay."""
        if self._bar is None:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def counting(self, first: int = 0) -> Iterator[Callable[[int, int, str], None]]:
        """Shows a count while the block runs.

        Args:
            first: where the count stands now, at the start of the clock.

        Yields:
            `show(done, total, text)`, to call with the new count and what else to say of it.
        """
        begun, last = time.monotonic(), -math.inf
        task = self._bar.add_task("", total=None, completed=first) if self._bar else None

        def show(done: int, total: int, text: str) -> None:
            nonlocal last
            now = time.monotonic()
            said = f"{pace(done - first, total - done, now - begun)}: {text}"
            if self._bar is not None and task is not None:
                self._bar.update(task, completed=done, total=total, description=said)
            elif now - last >= self._pause or done == total:
                last = now
                self.say(f"{self._unit}{done}/{total}, {said}")

        with self._bar or nullcontext():
            yield show


def make_bar(stream: TextIO, unit: str) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(file=stream))


def pace(done: int, left: int, seconds: float) -> str:
    """The rate so far, and the time left at that rate.

    Example:
        >>> pace(10, 40, 5.0)
        '2.0/s, 0:00:20 left'
        >>> pace(2, 3, 5.0)
        '2.5 s each, 0:00:08 left'
        >>> pace(0, 3, 5.0)
        'started'
    """
    if done <= 0:
        return "started"
    rate = done / max(seconds, 1e-9)
    shown = f"{rate:,.1f}/s" if rate >= 1 else f"{1 / rate:,.1f} s each"
    return f"{shown}, {timedelta(seconds=round(left / rate))} left"
