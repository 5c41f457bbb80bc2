"""An experiment for the tests of the framework: exact, quick, and it tells how often it measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points
from rebracket.lab.base.verdict import Check, Verdict

MEASURED: list[Cell] = []


@final
@dataclass(frozen=True)
class Planted(Experiment):
    """The mean of n normal numbers, and a claim about it."""

    most: float = 5.0
    learned: bool = False  # whether the check sees how the seeds differ
    question = "Is the mean <small>?"
    claim = "It is & stays so."

    def grid(self, size: Size) -> list[Cell]:
        return points({"n": {"tiny": [2, 3], "quick": [2, 3, 5], "full": [2, 3, 5, 8]}[size]})

    def measure(self, cell: Cell) -> Mapping[str, float]:
        MEASURED.append(cell)
        draw = torch.Generator().manual_seed(int(cell["seed"]))
        return {"mean": float(torch.randn(int(cell["n"]), generator=draw).mean())}

    def verdict(self, results: Sequence[Result]) -> Verdict:
        means = results if self.learned else plain_means(results)
        return Verdict.of(Check("largest mean", max(r["mean"] for r in means), high=self.most, source="made up"))

    def draw(self, results: Sequence[Result], figure) -> None:
        axes = figure.subplots()
        axes.plot([int(r.cell["n"]) for r in results], [r["mean"] for r in results])
