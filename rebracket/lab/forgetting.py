"""How a fixed decay forgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch

from rebracket.lab.base import Cell, Check, Experiment, Result, Size, Verdict, furthest, generator, points, stored, unit
from rebracket.ops.writes.additive import Additive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K, V = 64, 96
AGES = (0, 4, 8, 16, 32, 64, 128)
READABLE = 0.1
"""The ratio of signal to noise below which a measured one is mostly sampling error."""
NEAR = 0.07
"""The largest 1 - g^2 for which the published formula is meant: it is too low by that fraction at age 0."""
DECAYS: Mapping[Size, Sequence[float]] = {
    "tiny": (0.95, 0.978),
    "quick": (0.95, 0.969, 0.978, 0.985, 0.992),
    "full": (0.9, 0.95, 0.96, 0.969, 0.978, 0.985, 0.992, 0.996),
}
PAIRS = 262144
"""Written in one cell, over all its memories."""


@final
class Forgetting(Experiment):
    """Signal to noise of a pair against its age, under a decay that is the same for every token."""

    question = "How long does a state with a fixed decay remember, and which decay remembers longest?"
    claim = (
        "After many pairs with unit random keys, the value written a tokens ago is read with a ratio of signal to "
        "noise of K (1 - g^2) g^(2 a) for a decay g near 1 (1 - g^2 up to 0.07, within 10 %). The pair that is read is "
        "no noise to itself, which makes the ratio K g^(2 a) / (1 / (1 - g^2) - g^(2 a)) for every g (within 5 %). "
        "The oldest age with a ratio of 1 is greatest, about K / e, at g^2 = 1 - e / K."
    )

    def grid(self, size: Size) -> list[Cell]:
        return points({"decay": DECAYS[size]})

    def measure(self, cell: Cell) -> Mapping[str, float]:
        decay, seed = float(cell["decay"]), int(cell["seed"])
        T = max(AGES) + 1 + math.ceil(2 / (1 - decay))
        draw, N = generator(round(1e6 * decay), seed), PAIRS // T
        k, v = unit(draw, N, T, K), unit(draw, N, T, V)
        memory = stored(k, v, Additive(), torch.tensor([math.log(decay)]))
        return {f"ratio at age {age}": ratio(k[:, -1 - age], v[:, -1 - age], memory) for age in AGES}

    def verdict(self, results: Sequence[Result]) -> Verdict:
        read = [(r[f"ratio at age {age}"], float(r.cell["decay"]), age) for r in results for age in AGES]
        kept = [(found, g, age) for found, g, age in read if exact(g, age) >= READABLE]
        near = [(found, g, age) for found, g, age in kept if 1 - g**2 <= NEAR]
        spans = {float(r.cell["decay"]): span(r) for r in results}
        best = max(spans, key=spans.__getitem__)
        return Verdict.of(
            [
                Check("ratio off K (1 - g^2) g^(2 a) by", furthest(against(near, published)), high=0.1),
                Check("and off the exact ratio by", furthest(against(kept, exact)), high=0.05),
                Check("best decay off (1 - e / K)^(1/2) by", abs(best - (1 - math.e / K) ** 0.5), high=0.002),
                Check("its age at a ratio of 1, over K / e", spans[best] * math.e / K, 0.9, 1.1),
            ]
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        axes = figure.subplots()
        for place, r in enumerate(results):
            decay, color = float(r.cell["decay"]), f"C{place}"
            axes.plot(AGES, [r[f"ratio at age {age}"] for age in AGES], "o", color=color, label=f"g = {decay:g}")
            axes.plot(AGES, [published(decay, age) for age in AGES], color=color)
        axes.axhline(1, color="0.5", linewidth=1)
        axes.set(yscale="log", ylim=(READABLE / 10, 10), xlabel="age, tokens", ylabel="signal to noise")
        axes.legend(title="lines: K (1 - g²) g^(2 a)")


def ratio(k: torch.Tensor, v: torch.Tensor, memory: torch.Tensor) -> float:
    """Signal to noise of reading pairs k [N,K], v [N,V]: y = a v + e, over all memories [N,K,V]."""
    y = (k[:, None] @ memory)[:, 0]
    gain = float((y * v).sum(-1).mean())
    noise = float((y - gain * v).square().sum(-1).mean())
    return gain**2 / noise


def published(decay: float, age: int) -> float:
    return K * (1 - decay**2) * decay ** (2 * age)


def exact(decay: float, age: int) -> float:
    """The published ratio, the pair itself left out of the noise."""
    return K * decay ** (2 * age) / (1 / (1 - decay**2) - decay ** (2 * age))


def span(result: Result) -> float:
    """The age at which the measured ratio is 1, between two ages on its logarithm; 0 where it never is above."""
    logs = [math.log(result[f"ratio at age {age}"]) for age in AGES]
    for a, b, low, high in zip(AGES, AGES[1:], logs, logs[1:], strict=False):
        if low >= 0 > high:
            return a + (b - a) * low / (low - high)
    return 0.0


def against(
    read: Sequence[tuple[float, float, int]], formula: Callable[[float, int], float]
) -> list[tuple[float, float]]:
    return [(found, formula(decay, age)) for found, decay, age in read]
