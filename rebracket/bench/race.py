"""One race: entrants are made ready, called once, held against the truth, and only then timed, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, Protocol, TypeVar, final

import torch

from rebracket.base.resources import FirstCall, first_call
from rebracket.bench.cases import Case, Inputs, Mode, inputs
from rebracket.bench.clock import Laps, Pace, Timing, laps, threads
from rebracket.bench.entrant import Attempt, NotCoveredError
from rebracket.bench.form import Form, Lane
from rebracket.bench.limits import Limits, least, yardstick
from rebracket.bench.truth import LIMITS, Results, Truth

SLOW, BEHIND, SLOWEST = 0.5, 3.0, 2.0
"""A first call is the only one from so many seconds on if it took so many times the quickest, or in any case."""

Status = Literal["ready", "timed", "refused", "large", "failed", "wrong", "yardstick"]


class Raced(Protocol):
    """What every case has, be it of attention or of a convolution."""

    @property
    def shape(self) -> object: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def dtype(self) -> torch.dtype: ...


class Known(Protocol):
    """The exact results of a case."""

    def errors(self, found: Results) -> Mapping[str, float]:
        """How far each result is from what it must be, as a fraction of the largest."""
        ...


C = TypeVar("C", bound=Raced, covariant=True)
Same = TypeVar("Same", bound=Raced)


@final
@dataclass(frozen=True)
class Entry(Generic[C]):
    """What came of an entrant in a case.

    Args:
        entrant: its name.
        is_peer: whether it is somebody else's.
        case: what it computed.
        threads: torch's, and what an entrant with threads of its own was told.
        status: whether it was timed, and if not, why in one word; "wrong" is a result that the truth does not bear out.
        reason: why it was not timed.
        timing: seconds a call; None unless it was timed.
        error: its results' largest distance from the truth, over the largest there; None when it did not run.
        nbytes: the most that its first call added to the process, results included.
        least: the seconds to compare with, see `rebracket.bench.limits.least`.
        others: cores that other processes used meanwhile.
    """

    entrant: str
    is_peer: bool
    case: C
    threads: int
    status: Status = "ready"
    reason: str = ""
    timing: Timing | None = None
    error: float | None = None
    nbytes: int | None = None
    least: float | None = None
    others: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much of what the machine can do was reached: 1 is the limit."""
        return None if self.timing is None or self.least is None else self.least / self.timing.median


Row = Entry[Case]
"""What came of a lane."""


@final
class Ground:
    """The inputs and the truth of a case, which all its entrants share; made when the first of them needs it."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @cached_property
    def truth(self) -> Truth:
        return Truth.of(self._case)

    def fresh(self) -> Inputs:
        """The inputs with a state of their own, since decoding may well be in place."""
        x = self._inputs
        return replace(x, state=None if x.state is None else x.state.fork())

    @cached_property
    def _inputs(self) -> Inputs:
        return inputs(self._case)


def grounds(lanes: Sequence[Lane]) -> dict[Case, Ground]:
    return {lane.case: Ground(lane.case) for lane in lanes}


def race(
    lanes: Sequence[Lane], ground: Mapping[Case, Ground], limits: Limits, pace: Pace, form: Form
) -> tuple[Row, ...]:
    """Runs lanes side by side on as many threads as `limits` was measured with.

    Args:
        lanes: who runs what; the yardstick is that of the first.
        ground: of every case among them.
        limits: of the machine.
        pace: of the measurement.
        form: from earlier races; learns from this one.

    Returns:
        A row for each lane, and at the end one for the yardstick.
    """
    with threads(limits.threads):
        started = settled([start(lane, ground[lane.case], limits.threads, form) for lane in lanes])
        rows = [row for row, _ in started]
        rows = finish(rows, run(started, {"yardstick": yardstick(lanes[0].case)[1]}, pace), limits)
    for lane, row in zip(lanes, rows, strict=False):
        if row.timing is not None:
            form.note(lane, row.timing.median, row.nbytes or 0)
    return tuple(rows)


def start(lane: Lane, ground: Ground, count: int, form: Form) -> tuple[Row, Attempt | None]:
    """Makes a lane ready, calls it once and checks what it gave; the attempt is None where there is nothing to time."""
    row = Row(lane.entrant.name, lane.entrant.is_peer, lane.case, count)
    if objection := form.objection(lane):
        return replace(row, status="large", reason=objection), None
    return checked(
        row,
        lambda: lane.entrant.prepare(lane.case, ground.fresh(), count),
        lambda: ground.truth,
        loaded=form.knows(lane),
    )


def checked(
    row: Entry[Same], prepare: Callable[[], Attempt], truth: Callable[[], Known], loaded: bool
) -> tuple[Entry[Same], Attempt | None]:
    """The row after a first call, and what to time; a call goes before it unless whatever it needs is loaded."""
    try:
        if not loaded:
            prepare().run()
        attempt, known = prepare(), truth()
        made = first_call(attempt.run)
        errors = known.errors(attempt.results(made.made))
    except NotCoveredError as refusal:
        return replace(row, status="refused", reason=str(refusal)), None
    except Exception as error:  # whatever somebody else's code does, the others run on
        return replace(row, status="failed", reason=f"{type(error).__name__}: {error}"[:200]), None
    return judged(row, made, errors), attempt


def judged(row: Entry[Same], made: FirstCall, errors: Mapping[str, float]) -> Entry[Same]:
    """A row after its first call: wrong or ready."""
    name = max(errors, key=errors.__getitem__)
    worst = errors[name]
    row = replace(row, error=worst, nbytes=made.nbytes)
    if not worst <= LIMITS[row.case.dtype]:
        return replace(row, status="wrong", reason=f"{name} is off by {worst:.1e} of the largest")
    return replace(row, timing=Timing((made.seconds,)), status="ready")


def settled(started: Sequence[tuple[Entry[Same], Attempt | None]]) -> list[tuple[Entry[Same], Attempt | None]]:
    """The same rows, those that one call is enough for being timed."""
    quickest = min((row.timing.median for row, _ in started if row.timing is not None), default=0.0)
    return [(replace(row, status="timed") if enough(row.timing, quickest) else row, x) for row, x in started]


def enough(timing: Timing | None, quickest: float) -> bool:
    if timing is None:
        return False
    return timing.median >= SLOWEST or (timing.median >= SLOW and timing.median > BEHIND * quickest)


def run(
    started: Sequence[tuple[Entry[Raced], Attempt | None]], beside: Mapping[str, Callable[[], object]], pace: Pace
) -> Laps:
    """Times all that is ready, by their places, and in the same turns what is to be measured beside it."""
    ready = {str(place): x for place, x in enumerate(started) if x[0].status == "ready"}
    calls = {place: attempt.run for place, (_, attempt) in ready.items() if attempt is not None}
    took = {place: row.timing.median for place, (row, _) in ready.items() if row.timing is not None}
    return laps({**beside, **calls}, pace, took)


def finish(rows: Sequence[Row], found: Laps, limits: Limits) -> list[Row]:
    """The rows with what the clock said."""
    beside = found.timings["yardstick"]
    timed = [timing(row, found.timings.get(str(place))) for place, row in enumerate(rows)]
    name = yardstick(rows[0].case)[0]
    stick = Row(name, False, rows[0].case, limits.threads, "yardstick", timing=beside)
    return [*(replace(row, least=least(row.case, limits, beside), others=found.others) for row in timed), stick]


def timing(row: Entry[Same], found: Timing | None) -> Entry[Same]:
    return row if found is None else replace(row, timing=found, status="timed")
