"""How a fixed decay forgets, and how a learned one does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch

from rebracket.lab.base import (
    GATES,
    Cell,
    Check,
    Experiment,
    Result,
    Size,
    Verdict,
    furthest,
    generator,
    points,
    read_segments,
    stored,
    unit,
)
from rebracket.ops.writes.additive import Additive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
TEXTS: Mapping[Size, Mapping[str, Sequence[int]]] = {
    "tiny": {"T": [64], "steps": [300]},
    "quick": {"T": [96], "steps": [300]},
    "full": {"T": [96, 256], "steps": [1000]},
}
"""Tokens of a text and steps of training."""
EMPTIES, KEEPS = (
    ("left at a delimiter, emptying head", "left elsewhere, emptying head"),
    "left after half a text, keeping head",
)
MOST_RIGHT = {"constant": 0.93, "fixed": 0.85, "none": 0.72}
"""How often a model whose decay does not see the tokens is right about the segment, at most."""


@final
class Forgetting(Experiment):
    """Signal to noise of a pair against its age under a fixed decay; what a learned one flushes and what it keeps."""

    question = "How long does a state with a fixed decay remember, and what does a decay learn that sees the tokens?"
    claim = (
        "After many pairs with unit random keys, the value written a tokens ago is read with a ratio of signal to "
        "noise of K (1 - g^2) g^(2 a) for a decay g near 1 (1 - g^2 up to 0.07, within 10 %). The pair that is read is "
        "no noise to itself, which makes the ratio K g^(2 a) / (1 / (1 - g^2) - g^(2 a)) for every g (within 5 %). "
        "The oldest age with a ratio of 1 is greatest, about K / e, at g^2 = 1 - e / K. "
        "A decay that the token sets learns to empty a head at delimiters and to keep another head for a marked "
        "symbol: it tells what came most often since the last delimiter and what was marked long before it (both at "
        "least 98 % right). One that is learned but the same for all tokens, RetNet's, or none cannot tell the first."
    )

    def grid(self, size: Size) -> list[Cell]:
        return [*points({"decay": DECAYS[size]}), *points({"gate": list(GATES), **TEXTS[size]})]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        if "decay" in cell:
            return remembered(float(cell["decay"]), int(cell["seed"]))
        return read_segments(str(cell["gate"]), int(cell["T"]), int(cell["steps"]), int(cell["seed"]))

    def verdict(self, results: Sequence[Result]) -> Verdict:
        return Verdict.of([*fixed(with_a(results, "decay")), *learned(with_a(results, "gate"))])

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3, width_ratios=[5, 4, 4])
        draw_ratios(with_a(results, "decay"), left)
        trained = with_a(results, "gate")
        longest = [r for r in trained if r.cell["T"] == max(int(other.cell["T"]) for other in trained)]
        longest.sort(key=lambda r: list(GATES).index(str(r.cell["gate"])))
        draw_answers(longest, middle)
        draw_heads(longest[0], right)


def with_a(results: Sequence[Result], name: str) -> list[Result]:
    return [result for result in results if name in result.cell]


def remembered(decay: float, seed: int) -> dict[str, float]:
    """Signal to noise of a pair at each age."""
    T = max(AGES) + 1 + math.ceil(2 / (1 - decay))
    draw, N = generator(round(1e6 * decay), seed), PAIRS // T
    k, v = unit(draw, N, T, K), unit(draw, N, T, V)
    memory = stored(k, v, Additive(), torch.tensor([math.log(decay)]))
    return {f"ratio at age {age}": ratio(k[:, -1 - age], v[:, -1 - age], memory) for age in AGES}


def fixed(results: Sequence[Result]) -> list[Check]:
    """What holds for a decay that is the same for every token."""
    read = [(r[f"ratio at age {age}"], float(r.cell["decay"]), age) for r in results for age in AGES]
    kept = [(found, g, age) for found, g, age in read if exact(g, age) >= READABLE]
    near = [(found, g, age) for found, g, age in kept if 1 - g**2 <= NEAR]
    spans = {float(r.cell["decay"]): span(r) for r in results}
    best = max(spans, key=spans.__getitem__)
    return [
        Check("ratio off K (1 - g^2) g^(2 a) by", furthest(against(near, published)), high=0.1),
        Check("and off the exact ratio by", furthest(against(kept, exact)), high=0.05),
        Check("best decay off (1 - e / K)^(1/2) by", abs(best - (1 - math.e / K) ** 0.5), high=0.002),
        Check("its age at a ratio of 1, over K / e", spans[best] * math.e / K, 0.9, 1.1),
    ]


def learned(results: Sequence[Result]) -> list[Check]:
    """What holds for a decay that sees the tokens, and not for the others."""
    seeing = [r for r in results if r.cell["gate"] == "learned"]
    others = [(name, [r["right, most frequent"] for r in results if r.cell["gate"] == name]) for name in MOST_RIGHT]

    def least(name: str) -> float:
        return min(r[name] for r in seeing)

    return [
        Check("learned decay right about the segment", least("right, most frequent"), low=0.98),
        Check("and about the marked symbol", least("right, marked"), low=0.98),
        *(Check(f"with decay {name}, about the segment", max(found), high=MOST_RIGHT[name]) for name, found in others),
        Check("left in a head at a delimiter", max(r[EMPTIES[0]] for r in seeing), high=0.1),
        Check("and at any other token", least(EMPTIES[1]), low=0.9),
        Check("left in another after half a text", least(KEEPS), low=0.1),
    ]


def draw_ratios(results: Sequence[Result], axes: Axes) -> None:
    for place, r in enumerate(results):
        decay, color = float(r.cell["decay"]), f"C{place}"
        axes.plot(AGES, [r[f"ratio at age {age}"] for age in AGES], "o", color=color, label=f"g = {decay:g}")
        axes.plot(AGES, [published(decay, age) for age in AGES], color=color)
    axes.axhline(1, color="0.5", linewidth=1)
    axes.set(yscale="log", ylim=(READABLE / 10, 10), xlabel="age, tokens", ylabel="signal to noise")
    axes.legend(title="lines: K (1 - g²) g^(2 a)")


def draw_answers(results: Sequence[Result], axes: Axes) -> None:
    """How often each model is right."""
    for place, name in enumerate(("right, most frequent", "right, marked")):
        axes.bar([x + 0.4 * place for x in range(len(results))], [r[name] for r in results], 0.38, label=name)
    axes.set_xticks([x + 0.2 for x in range(len(results))], [str(r.cell["gate"]) for r in results])
    axes.set(ylim=(0, 1.3), xlabel="decay", title="Right answers", axisbelow=True)
    axes.legend()


def draw_heads(result: Result, axes: Axes) -> None:
    """What is left of two heads of the model with the learned decay."""
    axes.bar(["delimiter", "other token"], [result[name] for name in EMPTIES], 0.6, label="emptying head")
    axes.bar(["half a text"], [result[KEEPS]], 0.6, label="keeping head")
    axes.set(ylim=(0, 1.3), xlabel="after", title="Left of the state, learned decay", axisbelow=True)
    axes.legend()


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
