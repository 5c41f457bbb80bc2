"""A meeting of many races: all rules, shapes, modes and thread counts that were asked for, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch

from rebracket.bench import cases, convolution, limits, own, peers
from rebracket.bench.cases import LINEAR_RULES, SOFTMAX, Case, Mode, Rule, Shape
from rebracket.bench.clock import Pace
from rebracket.bench.entrant import Entrant
from rebracket.bench.form import Form, Lane
from rebracket.bench.limits import Limits
from rebracket.bench.race import Entry, Raced, Row, grounds, race

SWEEP = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK_SWEEP = (64, 128)
SWEPT = Shape(1, 1, 8, 64)
"""What the sweep over T keeps."""


@final
@dataclass(frozen=True)
class Program:
    """What to race.

    Args:
        rules: of `rebracket.bench.cases.RULES`.
        shapes: those with T = 1 are for decode, the others for forward and train.
        modes: of forward, train, decode.
        threads: counts, one after another.
        dtype: of the inputs.
        peers: whether to race those of `rebracket.bench.peers` too.
        sweep: numbers of tokens at which the best backend races softmax, for the plot; empty for no plot.
        convolutions: shapes of the short convolution, in the modes that they are for; empty for no race of it.
        rounds: most samples of each row.
        seconds: for everything; rounds are fewer where they would not fit.
        longest: seconds that one call may take; who would take longer does not run.
        quiet: seconds to wait before a round for a quiet machine.

    Raises:
        ValueError: no shape is for any of the modes.

    Example:
        >>> Program(shapes=[Shape(1, 6, 2, 4)], modes=["decode"], convolutions=[])
        Traceback (most recent call last):
        ValueError: nothing to race: decode needs shapes with T = 1, ...
    """

    rules: Sequence[Rule] = (*LINEAR_RULES, SOFTMAX)
    shapes: Sequence[Shape] = (*cases.SHAPES, *cases.DECODE_SHAPES)
    modes: Sequence[Mode] = cases.MODES
    threads: Sequence[int] = (1,)
    dtype: torch.dtype = torch.float32
    peers: bool = False
    sweep: Sequence[int] = SWEEP
    convolutions: Sequence[convolution.Shape] = convolution.SHAPES
    rounds: int = 15
    seconds: float = 300.0
    longest: float = 5.0
    quiet: float = 0.0

    def __post_init__(self) -> None:
        if not any(self.meets()) and not any(self.convolved()):
            raise ValueError("nothing to race: decode needs shapes with T = 1, such as 1x1x16x128, and the rest T > 1")

    def meets(self) -> Iterator[list[Lane]]:
        """The lanes of every race but those of the sweep."""
        for rule in self.rules:
            entrants = self.entrants(rule)
            for shape in self.shapes:
                for mode in self.modes:
                    if (mode == "decode") == (shape.T == 1) and not (rule is SOFTMAX and mode == "decode"):
                        yield [Lane(entrant, Case(rule, shape, mode, self.dtype)) for entrant in entrants]

    def entrants(self, rule: Rule) -> list[Entrant]:
        """Who races this kind of attention."""
        if rule is SOFTMAX:
            return [own.Softmax()]
        return [*own.backends(), *(peers.found() if self.peers else ())]

    def sweeps(self) -> Iterator[list[Lane]]:
        """The lanes of the races that the plot shows: every rule and softmax at one T."""
        rules = [rule for rule in self.rules if rule is not SOFTMAX]
        over_time: list[Mode] = [mode for mode in self.modes if mode != "decode"]
        for T in self.sweep if self.rules else ():
            for mode in over_time:
                shape = Shape(SWEPT.B, T, SWEPT.H, SWEPT.D)
                ours = [Lane(own.Ours("auto"), Case(rule, shape, mode, self.dtype)) for rule in rules]
                yield [*ours, Lane(own.Softmax(), Case(SOFTMAX, shape, mode, self.dtype))]

    def convolved(self) -> Iterator[convolution.Case]:
        """The cases of the short convolution."""
        for shape in self.convolutions:
            for mode in self.modes:
                if (mode == "decode") == (shape.T == 1):
                    yield convolution.Case(shape, mode, self.dtype)


FULL = Program()
QUICK = Program(
    shapes=(*cases.QUICK_SHAPES, *cases.QUICK_DECODE_SHAPES),
    sweep=QUICK_SWEEP,
    convolutions=convolution.QUICK_SHAPES,
    rounds=3,
    seconds=10.0,
)


@final
@dataclass(frozen=True)
class Outcome:
    """What a program found.

    Args:
        program: that ran.
        limits: of the machine, for each thread count.
        rows: of its races.
        sweep: of the races for the plot.
        convolutions: of the races of the short convolution.

    Example:
        >>> Outcome(QUICK, limits=[], rows=[], sweep=[], convolutions=[]).program.rounds
        3
    """

    program: Program
    limits: Sequence[Limits]
    rows: Sequence[Row]
    sweep: Sequence[Row]
    convolutions: Sequence[convolution.Row]

    @property
    def every(self) -> tuple[Entry[Raced], ...]:
        """All rows."""
        return (*self.rows, *self.sweep, *self.convolutions)


def run(program: Program, say: Callable[[str], None]) -> Outcome:
    """Runs everything.

    Args:
        program: what to race.
        say: is told before each race what comes.

    Returns:
        What was found.

    Cost: about `program.seconds`, and the first call of everything, which is checked whatever the time.

    Example:
        >>> rules = [rule for rule in LINEAR_RULES if rule.name == "linear"]
        >>> shapes, modes = [Shape(1, 6, 2, 4)], ["forward"]
        >>> program = Program(rules, shapes, modes, sweep=(), convolutions=(), rounds=1, seconds=0)
        >>> {row.case.rule.name for row in run(program, say=str).rows}
        {'linear'}
    """
    budget = Budget(program)
    bounds = [limits.measure(count, budget.pace()) for count in program.threads]
    form = Form(program.longest)
    rows = [row for lanes in program.meets() for row in meet(lanes, bounds, budget, form, say)]
    sweep = [row for lanes in program.sweeps() for row in meet(lanes, bounds, budget, form, say)]
    known = convolution.Form(program.longest)
    convolutions = [row for case in program.convolved() for row in convolve(case, bounds, budget, known, say)]
    return Outcome(program, bounds, rows, sweep, convolutions)


def meet(
    lanes: Sequence[Lane], bounds: Sequence[Limits], budget: Budget, form: Form, say: Callable[[str], None]
) -> Iterator[Row]:
    """The same lanes on every thread count."""
    case = lanes[0].case
    say(f"{case.rule.title if len({lane.case for lane in lanes}) == 1 else 'all'}, {case.shape}, {case.mode}")
    ground = grounds(lanes)
    for bound in bounds:
        yield from race(lanes, ground, bound, budget.pace(), form)


def convolve(
    case: convolution.Case,
    bounds: Sequence[Limits],
    budget: Budget,
    form: convolution.Form,
    say: Callable[[str], None],
) -> Iterator[convolution.Row]:
    """One case of the short convolution on every thread count."""
    say(f"{convolution.TITLE}, {case.shape}, {case.mode}")
    ground = convolution.Ground(case)
    for bound in bounds:
        yield from convolution.race(case, ground, bound, budget.pace(), form)


@final
class Budget:
    """Shares the time that is left among the races that are left."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ends = time.perf_counter() + program.seconds
        races = (program.meets(), program.sweeps(), program.convolved())
        self._left = (sum(1 for race in races for _ in race) + 1) * len(program.threads)

    def pace(self) -> Pace:
        """That of the next race: half of its share, the other half being for making ready and checking."""
        share = max(self._ends - time.perf_counter(), 0.0) / max(self._left, 1) / 2
        self._left -= 1
        return Pace(self._program.rounds, share, self._program.quiet)
