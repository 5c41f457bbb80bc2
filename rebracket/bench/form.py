"""What is known of entrants from earlier cases: who would take too long for the next one, or too much memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rebracket.base.resources import available_nbytes
from rebracket.bench.cases import Case, Shape
from rebracket.bench.entrant import Entrant

SHARE = 0.6
"""Of the memory that is left, what one call may take."""


@final
@dataclass(frozen=True)
class Lane:
    """One entrant with its case."""

    entrant: Entrant
    case: Case

    @property
    def kind(self) -> tuple[object, ...]:
        """What lanes share that differ in nothing but shape."""
        return self.entrant.name, self.case.rule, self.case.mode, self.case.dtype


@final
@dataclass(frozen=True)
class Seen:
    """What one call took."""

    shape: Shape
    seconds: float
    nbytes: int


@final
class Form:
    """What calls took.

    Args:
        longest: seconds that one call may take.
    """

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self._seen: dict[tuple[object, ...], list[Seen]] = {}

    def note(self, lane: Lane, seconds: float, nbytes: int) -> None:
        """Remembers what a call took."""
        self._seen.setdefault(lane.kind, []).append(Seen(lane.case.shape, seconds, nbytes))

    def knows(self, lane: Lane) -> bool:
        return lane.kind in self._seen

    def objection(self, lane: Lane) -> str | None:
        """Why a lane had better not run, going by the longest of its kind, if possible with as many channels."""
        if not self.knows(lane):
            return None
        now = lane.case.shape
        seen = max(self._seen[lane.kind], key=lambda seen: (seen.shape.D == now.D, seen.shape.T, seen.shape.heads))
        wider, longer = now.heads * now.D**2 / (seen.shape.heads * seen.shape.D**2), now.T / seen.shape.T
        seconds = seen.seconds * wider * longer ** lane.entrant.growth(lane.case)
        if objection := too_long(seconds, self.longest):
            return objection
        nbytes, left = seen.nbytes * wider * longer, available_nbytes()
        if left is not None and nbytes > SHARE * left:
            return f"about {nbytes / 1e9:.0f} GB a call, and {left / 1e9:.0f} GB are left"
        return None


def too_long(seconds: float, longest: float) -> str | None:
    """Why a call that would take so many seconds had better not run, if so."""
    if seconds <= longest:
        return None
    return f"about {round(seconds, 1 if seconds < 10 else None)} s a call, over {longest:g} s"
