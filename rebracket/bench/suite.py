"""Many benchmarks: all cases, shapes, modes and thread counts that were asked for, within a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch

from rebracket.base.registry import nearest
from rebracket.bench import peers
from rebracket.bench.benchmark import Estimates, Row, Run, compare
from rebracket.bench.case import MODES, Backend, Case, Mode, Shape, Size
from rebracket.bench.cases import by_name
from rebracket.bench.cases.base import AttentionCase
from rebracket.bench.clock import Budget, keep_memory
from rebracket.bench.crossover import SOFTMAX
from rebracket.bench.limits import Limits, measure_limits

SWEEP = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK_SWEEP = (64, 128)
HEADS, CHANNELS = 8, 64
"""What the sweep over T keeps."""

Report = Callable[[int, int, str], None]
"""Is told before each benchmark how many are done, of how many, and what comes."""


@final
@dataclass(frozen=True)
class Suite:
    """What to benchmark.

    Args:
        rules: names of cases, such as "kda", "softmax" or "convolution"; all by default.
        shapes: B, T and what else an operator has, for the operators that have as many numbers; T = 1 is for decode.
            Each operator's own by default.
        size: of each operator's own shapes, "full" or "quick".
        modes: of forward, train, decode.
        threads: counts, one after another.
        dtype: of the inputs.
        peers: whether to benchmark those of `rebracket.bench.peers` too.
        sweep: numbers of tokens at which the best backend is compared with softmax, for the plot; empty for no plot.
        rounds: most samples of each row.
        seconds: for everything; rounds are fewer where they would not fit.
        longest: seconds that one call may take; what would take longer does not run.
        quiet: seconds to wait before a round for a quiet machine.

    Raises:
        ValueError: a rule is unknown, or no shape is for any of the modes.

    Example:
        >>> Suite(rules=["kda"], shapes=[(1, 6, 2, 4)], modes=["decode"])
        Traceback (most recent call last):
        ValueError: nothing to benchmark: decode needs shapes with T = 1, ...
    """

    rules: Sequence[str] | None = None
    shapes: Sequence[Shape] | None = None
    size: Size = "full"
    modes: Sequence[Mode] = MODES
    threads: Sequence[int] = (1,)
    dtype: torch.dtype = torch.float32
    peers: bool = False
    sweep: Sequence[int] = SWEEP
    rounds: int = 15
    seconds: float = 300.0
    longest: float = 5.0
    quiet: float = 0.0

    def __post_init__(self) -> None:
        for name in self.rules or ():
            if name not in by_name():
                raise ValueError(f"rule {name!r} is unknown{nearest(name, by_name())}")
        if not any(self.cases()):
            raise ValueError(
                "nothing to benchmark: decode needs shapes with T = 1, such as 1x1x16x128, and the rest T > 1"
            )

    def names(self) -> list[str]:
        """The names of the cases."""
        return [name for name in by_name() if self.rules is None or name in self.rules]

    def cases(self) -> Iterator[Case]:
        """Every case but those of the sweep."""
        for name in self.names():
            operator = by_name()[name]
            for shape in operator.shapes[self.size] if self.shapes is None else self.shapes:
                for mode in self.modes:
                    fits = len(shape) == len(operator.letters) and (mode == "decode") == (shape[1] == 1)
                    if fits and mode in operator.modes:
                        yield operator(name, shape, mode, self.dtype)

    def benchmarks(self) -> Iterator[list[Run]]:
        """The runs of every benchmark but those of the sweep: all implementations of one case."""
        for case in self.cases():
            others = (x for x in peers.found() if isinstance(case, x.operator) and (self.peers or not x.is_optional))
            yield [Run(x, case) for x in (*map(Backend, case.backends()), *others)]

    def sweeps(self) -> Iterator[list[Run]]:
        """The benchmarks that the plot shows: every rule of attention and softmax at one T."""
        attention = {name: x for name, x in by_name().items() if issubclass(x, AttentionCase)}
        rules = [name for name in self.names() if name in attention and name != SOFTMAX]
        for T in self.sweep if rules else ():
            for mode in self.modes:
                if mode != "decode":
                    every = [attention[x](x, (1, T, HEADS, CHANNELS), mode, self.dtype) for x in (*rules, SOFTMAX)]
                    yield [Run(Backend(case.best), case) for case in every]


FULL = Suite()
QUICK = Suite(size="quick", sweep=QUICK_SWEEP, rounds=3, seconds=10.0)


@final
@dataclass(frozen=True)
class SuiteResult:
    """What a suite found.

    Args:
        suite: that ran.
        limits: of the machine, for each thread count.
        rows: of its benchmarks.
        sweep: of the benchmarks for the plot.

    Example:
        >>> SuiteResult(QUICK, limits=[], rows=[], sweep=[]).suite.rounds
        3
    """

    suite: Suite
    limits: Sequence[Limits]
    rows: Sequence[Row]
    sweep: Sequence[Row]

    @property
    def every(self) -> tuple[Row, ...]:
        """All rows."""
        return (*self.rows, *self.sweep)


def run(suite: Suite, report: Report) -> SuiteResult:
    """Runs everything.

    Args:
        suite: what to benchmark.
        report: is told before each benchmark how many are done, of how many, and what comes.

    Returns:
        What was found.

    Cost: about `suite.seconds`, and the first call of everything, which is checked whatever the time.

    Example:
        >>> suite = Suite(["linear"], [(1, 6, 2, 4)], modes=["forward"], sweep=(), rounds=1, seconds=0)
        >>> {row.case.title for row in run(suite, lambda done, total, text: None).rows}
        {'linear with normalizer'}
    """
    keep_memory()
    benchmarks, sweeps = list(suite.benchmarks()), list(suite.sweeps())
    total = len(benchmarks) + len(sweeps)
    budget = Budget(suite.rounds, suite.seconds, suite.quiet, (total + 1) * len(suite.threads))
    limits = [measure_limits(count, budget) for count in suite.threads]
    estimates = Estimates(suite.longest)
    rows: list[Row] = []
    swept: list[Row] = []
    for done, runs in enumerate([*benchmarks, *sweeps]):
        first, several = runs[0].case, len({run.case for run in runs}) > 1
        report(done, total, f"all, {first.size}, {first.mode}" if several else str(first))
        (rows if done < len(benchmarks) else swept).extend(compare(runs, limits, budget, estimates))
    return SuiteResult(suite, limits, rows, swept)
