"""How a run shows itself: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds between plain lines, so that a log stays readable however fast the steps are.
PAUSE = 5.0
RECENT = 50


@final
@dataclass(frozen=True)
class Report:
    """What one step has to say.

    Args:
        step: updates made.
        loss: nats per token of this step.
        tokens_per_second: over the last steps.
        seconds_left: at the pace of this process so far.
    """

    step: int
    loss: float
    tokens_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        left = timedelta(seconds=round(self.seconds_left))
        return f"loss {self.loss:.3f}, {self.tokens_per_second:,.0f} tokens/s, {left} left"


class Screen(ABC):
    """Where a run shows itself.

    Example:
        >>> isinstance(Lines(), Screen)
        True
    """

    @abstractmethod
    def say(self, text: str) -> None:
        """Shows lines that stay."""

    @abstractmethod
    def begin(self, step: int, steps: int) -> None:
        """The steps begin, at `step` of `steps`."""

    @abstractmethod
    def show(self, report: Report) -> None:
        """One more step is done."""

    @abstractmethod
    def end(self) -> None:
        """The steps are over, all of them or not."""


@final
class Lines(Screen):
    """Plain lines, for files, pipes and tests.

    Args:
        stream: where to; standard output as it is when a line is said, if None.
        pause: least seconds between two steps shown.

    Example:
        >>> screen = Lines(pause=0)
        >>> screen.begin(0, 10)
        >>> screen.show(Report(step=5, loss=2.0, tokens_per_second=1000, seconds_left=61))
        step 5/10: loss 2.000, 1,000 tokens/s, 0:01:01 left
    """

    def __init__(self, stream: TextIO | None = None, pause: float = PAUSE) -> None:
        self._stream = stream
        self._pause = pause
        self._steps = 0
        self._last = -pause

    def say(self, text: str) -> None:
        stream = self._stream or sys.stdout
        stream.write(text + "\n")
        stream.flush()

    def begin(self, step: int, steps: int) -> None:
        self._steps = steps

    def show(self, report: Report) -> None:
        now = time.monotonic()
        if now - self._last >= self._pause or report.step == self._steps:
            self._last = now
            self.say(f"step {report.step}/{self._steps}: {report}")

    def end(self) -> None:
        pass


@final
class Bar(Screen):
    """A progress bar below the lines said, drawn with rich.

    Example:
        >>> isinstance(Bar(), Screen)
        True
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self._progress: Progress = Progress(*columns)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, step: int, steps: int) -> None:
        self._task = self._progress.add_task("", total=steps, completed=step)
        self._progress.start()

    def show(self, report: Report) -> None:
        self._progress.update(self._task, completed=report.step, description=str(report))

    def end(self) -> None:
        self._progress.stop()


def screen() -> Screen:
    """The bar if standard output is a terminal, else lines.

    Returns:
        A screen that has shown nothing yet.

    Cost: none.

    Example:
        >>> screen().say("ready")
        ready
    """
    return Bar() if sys.stdout.isatty() else Lines()


@final
class Pace:
    """How fast steps go.

    Args:
        left: steps still to do.
        tokens: per step.
    """

    def __init__(self, left: int, tokens: int) -> None:
        self._left = left
        self._tokens = tokens
        self._begun = time.monotonic()
        self._done = 0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def note(self, seconds: float) -> None:
        """One more step is done, and took so long by itself."""
        self._done += 1
        self._recent.append(seconds)

    @property
    def tokens_per_second(self) -> float:
        """Over the last steps, validation and the like left out."""
        return self._tokens * len(self._recent) / sum(self._recent)

    @property
    def seconds_left(self) -> float:
        """At the pace so far, all that happens between steps included."""
        return (time.monotonic() - self._begun) / self._done * (self._left - self._done)
