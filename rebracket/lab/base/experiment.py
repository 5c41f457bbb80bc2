"""A claim, the measurements that could refute it, and what they amount to."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from rebracket.lab.base.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Size = Literal["tiny", "quick", "full"]
"""How large a grid: for tests, for a minute or so, for a laptop left alone."""
Cell = Mapping[str, int | float | str]
"""The parameters of one measurement, the seed among them."""
SEEDS: Mapping[Size, int] = {"tiny": 1, "quick": 2, "full": 10}


@final
@dataclass(frozen=True)
class Result:
    """What one cell gave.

    Args:
        cell: its parameters.
        numbers: what was measured, by name.
        seconds: that it took.

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
        claim: the answer that theory or a paper gives, with its formula and where it is from.
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
        """That of the file."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def grid(self, size: Size) -> Sequence[Cell]:
        """The points at which to measure, without seeds."""

    @abstractmethod
    def measure(self, cell: Cell) -> Mapping[str, float]:
        """The numbers of one cell: a function of the cell alone, run in a process of its own on one thread."""

    @abstractmethod
    def verdict(self, results: Sequence[Result]) -> Verdict:
        """What the means over seeds say about the claim."""

    @abstractmethod
    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        """The means over seeds against the formula."""

    @final
    def cells(self, size: Size, seeds: int | None = None) -> list[Cell]:
        """Every point of the grid with every seed, the seeds last, so that a run cut short holds whole grids.

        Args:
            size: of the grid.
            seeds: how many, >= 1; by default as many as suit the size.
        """
        return [{**point, "seed": seed} for seed in range(seeds or self.seeds[size]) for point in self.grid(size)]


def mean_over_seeds(results: Sequence[Result]) -> list[Result]:
    """One result for each point, its numbers the means over seeds and its seconds the sum.

    Args:
        results: of cells that hold a seed.

    Returns:
        As many results as there are points, in the order of their first seeds.

    Cost: one pass.

    Example:
        >>> mean_over_seeds([Result({"n": 3, "seed": seed}, {"error": 1.0 + seed}, 0.5) for seed in range(2)])
        [Result(cell={'n': 3}, numbers={'error': 1.5}, seconds=1.0)]
    """
    return over_seeds(results, statistics.fmean)


def spread_over_seeds(results: Sequence[Result]) -> list[Result]:
    """As `mean_over_seeds`, but standard deviations; 0 where there is one seed.

    Args:
        results: of cells that hold a seed.

    Returns:
        As many results as there are points, in the order of their first seeds.

    Cost: one pass.

    Example:
        >>> spread_over_seeds([Result({"n": 3, "seed": seed}, {"error": 2.0 * seed}, 0.5) for seed in range(3)])
        [Result(cell={'n': 3}, numbers={'error': 2.0}, seconds=1.5)]
    """
    return over_seeds(results, lambda numbers: statistics.stdev(numbers) if len(numbers) > 1 else 0.0)


def over_seeds(results: Sequence[Result], of: Callable[[Sequence[float]], float]) -> list[Result]:
    """One result for each point, its numbers what `of` makes of those of its seeds."""
    found: dict[tuple[tuple[str, int | float | str], ...], list[Result]] = {}
    for result in results:
        found.setdefault(tuple((k, x) for k, x in result.cell.items() if k != "seed"), []).append(result)
    return [
        Result(
            dict(point),
            {name: of([one[name] for one in group]) for name in group[0].numbers},
            sum(one.seconds for one in group),
        )
        for point, group in found.items()
    ]
