"""What an experiment is: a question, a claim, a grid of measurements and a verdict on them."""

from __future__ import annotations

import itertools
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

from rebracket.lab.base.estimate import Estimate
from rebracket.lab.base.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Size = Literal["tiny", "quick", "full"]
"""How large a grid is: for tests, for about a minute, for hours."""
Value = int | float | str
Cell = Mapping[str, Value]
"""The parameters of one measurement, the seed among them."""
SEEDS: Mapping[Size, int] = {"tiny": 1, "quick": 3, "full": 10}


@final
@dataclass(frozen=True)
class Result:
    """What was measured in one cell.

    Args:
        cell: its parameters.
        numbers: what was measured, by name; each is an `Estimate` in a result over seeds.
        seconds: how long it took.

    Example:
        >>> Result({"n": 3, "seed": 0}, {"error": 0.5}, 0.1)["error"]
        0.5
    """

    cell: Cell
    numbers: Mapping[str, float]
    seconds: float

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]


class Experiment(ABC):
    """One claim about linear attention that a measurement can refute.

    Args:
        question: what is asked, a sentence.
        claim: the answer that theory or a paper gives, with its formula and source.
        seeds: how many each size takes by default.

    Example:
        >>> from rebracket import lab
        >>> experiment = lab.load("capacity")
        >>> len(experiment.cells("quick", seeds=3))
        102
    """

    question: str
    claim: str
    seeds: Mapping[Size, int] = SEEDS

    @property
    def name(self) -> str:
        """The name of its file."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def grid(self, size: Size) -> Sequence[Cell]:
        """The cells to measure, without seeds."""

    @abstractmethod
    def measure(self, cell: Cell) -> Mapping[str, float]:
        """The numbers of one cell: a function of the cell alone, run on one thread in a process of its own."""

    @abstractmethod
    def verdict(self, results: Sequence[Result]) -> Verdict:
        """What `mean_over_seeds` says about the claim: each check of what was learned must see an `Estimate`."""

    @abstractmethod
    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        """Draws the means over seeds, with every seed or its error, against the formula."""

    @final
    def cells(self, size: Size, seeds: int | None = None, first_seed: int = 0) -> list[Cell]:
        """The whole grid for each seed in turn, so that an interrupted run holds whole grids.

        Args:
            size: of the grid.
            seeds: how many, >= 1; by default as many as suit the size.
            first_seed: the seeds are those from here on, >= 0.
        """
        taken = range(first_seed, first_seed + (seeds or self.seeds[size]))
        return [{**cell, "seed": seed} for seed in taken for cell in self.grid(size)]


def points(axes: Mapping[str, Sequence[Value]]) -> list[Cell]:
    """Every combination of the values of some parameters, the last one varying fastest.

    Example:
        >>> points({"K": [3, 4], "n": [5]})
        [{'K': 3, 'n': 5}, {'K': 4, 'n': 5}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def select(results: Sequence[Result], name: str, value: Value) -> list[Result]:
    """The results whose cells have this value of a parameter."""
    return [r for r in results if r.cell.get(name) == value]


def values_of(results: Sequence[Result], name: str) -> list[str]:
    """The different values of a parameter, in the order in which they come."""
    return list(dict.fromkeys(str(r.cell[name]) for r in results))


def mean_over_seeds(results: Sequence[Result]) -> list[Result]:
    """One result for each cell without its seed: numbers are estimates, the means over seeds; seconds the sum.

    Example:
        >>> mean_over_seeds([Result({"n": 3, "seed": seed}, {"error": 1.0 + seed}, 0.5) for seed in range(2)])
        [Result(cell={'n': 3}, numbers={'error': 1.5}, seconds=1.0)]
    """
    return over_seeds(results, Estimate)


def spread_over_seeds(results: Sequence[Result]) -> list[Result]:
    """As `mean_over_seeds`, but standard deviations; 0 where there is one seed.

    Example:
        >>> spread_over_seeds([Result({"n": 3, "seed": seed}, {"error": 2.0 * seed}, 0.5) for seed in range(3)])
        [Result(cell={'n': 3}, numbers={'error': 2.0}, seconds=1.5)]
    """
    return over_seeds(results, lambda x: statistics.stdev(x.values()) if len(x) > 1 else 0.0)


def plain_means(results: Sequence[Result]) -> list[Result]:
    """The means alone, where each is over so many samples that its error is far below every bound."""
    return [replace(r, numbers={name: float(x) for name, x in r.numbers.items()}) for r in results]


def over_seeds(results: Sequence[Result], statistic: Callable[[Mapping[int, float]], float]) -> list[Result]:
    """One result for each cell without its seed, its numbers a statistic of those by seed."""
    groups: dict[tuple[tuple[str, Value], ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple((k, x) for k, x in result.cell.items() if k != "seed"), []).append(result)
    return [
        Result(
            dict(cell),
            {name: statistic({int(r.cell["seed"]): r[name] for r in group}) for name in group[0].numbers},
            sum(r.seconds for r in group),
        )
        for cell, group in groups.items()
    ]
