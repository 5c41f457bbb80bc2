"""One benchmark: implementations are prepared, called once, checked against float64, and only then timed, in turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import FrameType
from typing import Any, Literal, final

import torch

from rebracket.base.resources import available_nbytes, first_call
from rebracket.base.tensors import map_tensors
from rebracket.bench.case import Case, Implementation, NotCoveredError, Prepared, Results
from rebracket.bench.clock import LONG, Budget, Timing, measure, threads
from rebracket.bench.limits import Limits, least, yardstick
from rebracket.testing.budgets import error

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Errors, as `rebracket.testing.budgets.error` has them, above which a result is wrong and not merely rounded."""
SLOW, BEHIND, SLOWEST = 0.5, 3.0, 2.0
"""A first call is the only one from so many seconds on if it took so many times the quickest, or in any case."""
SHARE = 0.6
"""Of the memory that is left, what one call may take."""

Status = Literal["ready", "timed", "refused", "large", "failed", "wrong", "yardstick"]


@final
@dataclass(frozen=True)
class Run:
    """One implementation of one case."""

    implementation: Implementation
    case: Case

    @property
    def kind(self) -> tuple[object, ...]:
        """What runs share that differ in nothing but shape."""
        return self.implementation.name, self.case.name, self.case.mode, self.case.dtype


@final
@dataclass(frozen=True)
class Row:
    """What was found of a run.

    Args:
        implementation: its name.
        is_peer: whether it is somebody else's.
        case: what it computed.
        threads: torch's, and what an implementation with threads of its own was told.
        status: whether it was timed, and if not, why in one word; "wrong" is a result that is not that in float64.
        reason: why it was not timed.
        timing: seconds a call; None unless it was timed.
        error: the largest error of its results, over the largest exact one; None when it did not run.
        nbytes: the most that its first call added to the process, results included.
        functions: Python and builtin functions that one call calls; None where that takes long.
        least: the seconds to compare with, see `rebracket.bench.limits.least`.
        others: cores that other processes used meanwhile.
    """

    implementation: str
    is_peer: bool
    case: Case
    threads: int
    status: Status = "ready"
    reason: str = ""
    timing: Timing | None = None
    error: float | None = None
    nbytes: int | None = None
    functions: int | None = None
    least: float | None = None
    others: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much of what the machine can do was reached: 1 is the limit."""
        return None if self.timing is None or self.least is None else self.least / self.timing.median


@final
class Estimates:
    """Time and memory that calls will probably take, by what smaller ones took.

    Args:
        longest: seconds that one call may take.
    """

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self._taken: dict[tuple[object, ...], list[tuple[Case, float, int]]] = {}

    def note(self, run: Run, seconds: float, nbytes: int) -> None:
        """Remembers what a call took."""
        self._taken.setdefault(run.kind, []).append((run.case, seconds, nbytes))

    def knows(self, run: Run) -> bool:
        return run.kind in self._taken

    def objection(self, run: Run) -> str | None:
        """Why a run is left out, going by the longest of its kind, if possible with as many channels."""
        if not self.knows(run):
            return None

        def likeness(case: Case) -> tuple[bool, int, int]:
            return case.shape[-1] == run.case.shape[-1], case.shape[1], case.work.width

        case, seconds, nbytes = max(self._taken[run.kind], key=lambda taken: likeness(taken[0]))
        wider, longer = run.case.work.width / case.work.width, run.case.shape[1] / case.shape[1]
        seconds *= wider * longer ** run.implementation.growth(run.case)
        if seconds > self.longest:
            return f"about {round(seconds, 1 if seconds < 10 else None)} s a call, over {self.longest:g} s"
        nbytes, left = nbytes * wider * longer, available_nbytes()
        if left is not None and nbytes > SHARE * left:
            return f"about {nbytes / 1e9:.0f} GB a call, and {left / 1e9:.0f} GB are left"
        return None


@final
class Reference:
    """The inputs and exact results of a case, which all its implementations share; made when first needed."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @cached_property
    def _inputs(self) -> Any:  # noqa: ANN401 - those of the case
        return self._case.inputs()

    @cached_property
    def exact(self) -> Results:
        return self._case.exact()

    def inputs(self) -> Any:  # noqa: ANN401
        """Shared ones, but copies in decode, which may well write into the state."""
        return map_tensors(self._inputs, lambda _, x: x.clone()) if self._case.mode == "decode" else self._inputs

    def errors(self, found: Results) -> dict[str, float]:
        """The error of each result, as a fraction of the largest exact one; infinite where it is missing."""
        every = {name: self._case.expand(name, exact) for name, exact in self.exact.items() if name in found}
        return dict.fromkeys(self.exact, float("inf")) | {name: error(found[name], x) for name, x in every.items()}


def compare(runs: Sequence[Run], limits: Sequence[Limits], budget: Budget, estimates: Estimates) -> list[Row]:
    """Benchmarks runs side by side, on as many threads as each of `limits` was measured with.

    Args:
        runs: to compare; the yardstick is that of the first.
        limits: of the machine.
        budget: of the measurements.
        estimates: from earlier benchmarks; learns from this one.

    Returns:
        For each of `limits` a row for each run, and one for the yardstick.
    """
    known = {run.case: Reference(run.case) for run in runs}
    return [row for bound in limits for row in on_threads(runs, known, bound, budget, estimates)]


def on_threads(
    runs: Sequence[Run], known: Mapping[Case, Reference], limits: Limits, budget: Budget, estimates: Estimates
) -> list[Row]:
    name, stick = yardstick(runs[0].case)
    with threads(limits.threads):
        started = [start(run, known[run.case], limits.threads, estimates) for run in runs]
        rows = once_is_enough([row for row, _ in started])
        calls = {str(i): x.run for i, (_, x) in enumerate(started) if x is not None and rows[i].status == "ready"}
        took = {i: timing.median for i in calls if (timing := rows[int(i)].timing)}
        timings, others = measure({"yardstick": stick, **calls}, budget, took)
    beside = timings.pop("yardstick")
    for i, timing in timings.items():
        rows[int(i)] = replace(rows[int(i)], timing=timing, status="timed")
    for run, row in zip(runs, rows, strict=True):
        if row.timing is not None:
            estimates.note(run, row.timing.median, row.nbytes or 0)
    rows = [replace(row, least=least(row.case, limits, beside), others=others) for row in rows]
    return [*rows, Row(name, False, runs[0].case, limits.threads, "yardstick", timing=beside)]


def start(run: Run, known: Reference, count: int, estimates: Estimates) -> tuple[Row, Prepared | None]:
    """Prepares a run, calls it once and checks its results; None where there is nothing to time."""
    row = Row(run.implementation.name, run.implementation.is_peer, run.case, count)
    if objection := estimates.objection(run):
        return replace(row, status="large", reason=objection), None
    try:
        if not estimates.knows(run):  # the first call of its kind loads whatever it needs
            run.implementation.prepare(run.case, known.inputs(), count).run()
        prepared, _ = run.implementation.prepare(run.case, known.inputs(), count), known.exact
        first = first_call(prepared.run)
        errors = known.errors(prepared.results(first.made))
    except NotCoveredError as refusal:
        return replace(row, status="refused", reason=str(refusal)), None
    except Exception as fault:  # whatever one implementation does, the others are still measured
        return replace(row, status="failed", reason=f"{type(fault).__name__}: {fault}"[:200]), None
    name = max(errors, key=errors.__getitem__)
    row = replace(row, error=errors[name], nbytes=first.nbytes)
    if not errors[name] <= TOLERANCES[run.case.dtype]:
        return replace(row, status="wrong", reason=f"{name} is off by {errors[name]:.1e} of the largest"), None
    functions = functions_called(prepared.run) if first.seconds < LONG else None
    return replace(row, functions=functions, timing=Timing.of((first.seconds, first.cpu_seconds))), prepared


def functions_called(call: Callable[[], object]) -> int:
    """Python and builtin functions that a call calls."""
    count = -1  # the one that ends it is not one of them

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def once_is_enough(rows: Sequence[Row]) -> list[Row]:
    """The same rows, those that are too slow to be called again being timed."""
    quickest = min((row.timing.median for row in rows if row.timing), default=0.0)

    def slow(timing: Timing | None) -> bool:
        return timing is not None and timing.median >= (SLOW if timing.median > BEHIND * quickest else SLOWEST)

    return [replace(row, status="timed") if slow(row.timing) else row for row in rows]
