"""Whether parallel, chunked and recurrent form compute the same function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points, select, values_of
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.lm.modes import WAYS, logits_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Mode = Literal["parallel", "chunk", "recurrent"]
MODES: tuple[Mode, ...] = get_args(Mode)
MIXERS: Mapping[Size, Sequence[str]] = {
    "tiny": ("linear_transformer", "gated_deltanet"),
    "quick": ("linear_transformer", "gla", "deltanet", "gated_deltanet"),
    "full": ("linear_transformer", "retnet", "gla", "deltanet", "gated_deltanet", "kda"),
}
STEPS: Mapping[Size, int] = {"tiny": 25, "quick": 40, "full": 400}
VOCABULARY, B, T, LONGER = 13, 8, 32, 150
DEFECT = 20.0
"""How many roundings of one number a mode may be off, times sqrt(T) of them: sums of T numbers, in another order."""
RATE = 3e-3
"""Learning rate: at 1e-2 training is so unstable that it amplifies even the rounding of float64 to a percent."""
SINGLE = DEFECT * torch.finfo(torch.float32).eps * LONGER**0.5
DOUBLE = DEFECT * torch.finfo(torch.float64).eps * T**0.5
"""Of the loss of one step; over n of them the differences add up at random signs, to sqrt(n) of it."""
ROUNDING = "theory: 20 roundings of each of T numbers that are added, at random signs"


@final
class Modes(Experiment):
    """A small model, trained in one mode on texts that count upwards, and evaluated in every mode."""

    question = "Is a model that was trained in one mode the same model in the others, without any conversion?"
    claim = (
        "Parallel, chunked and recurrent form are one function, so the float32 logits of a trained model agree in all "
        "of them and in steps, on texts longer than those it was trained on, and so do the gradients, to 20 eps "
        "sqrt(T): sums of T rounded numbers in another order. Training in float64 ends at the same loss, to "
        "sqrt(steps) times as much."
    )

    def grid(self, size: Size) -> list[Cell]:
        return points({"mixer": MIXERS[size], "trained": MODES, "steps": [STEPS[size]]})

    def measure(self, cell: Cell) -> Mapping[str, float]:
        mode: Mode = next(x for x in MODES if x == cell["trained"])
        seed = int(cell["seed"])
        model, draw = build(str(cell["mixer"]), seed), generator(seed)
        losses = train(model, mode, int(cell["steps"]), draw)
        model.float()
        text = counting(draw, 1, LONGER)
        found = {way: torch.cat(list(logits_by(model, text[0], way))).detach() for way in WAYS}
        gradients = {name: gradient(model, text, name) for name in MODES}
        own = gradients[mode]
        return {
            "first loss": losses[0],
            "last loss": losses[-1],
            "logits apart": max(float((x - found[mode]).abs().max() / found[mode].std()) for x in found.values()),
            "gradients apart": max(float((x - own).norm() / own.norm()) for x in gradients.values()),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        losses = [[r["last loss"] for r in select(results, "mixer", x)] for x in values_of(results, "mixer")]
        apart = [max(x) / min(x) - 1 for x in losses]
        return Verdict.of(
            Check.every("logits apart by", [r["logits apart"] for r in results], high=SINGLE, source=ROUNDING),
            Check.every("gradients apart by", [r["gradients apart"] for r in results], high=SINGLE, source=ROUNDING),
            Check.every(
                "last losses of modes apart by",
                apart,
                high=DOUBLE * max(float(r.cell["steps"]) for r in results) ** 0.5,
                source=f"{ROUNDING}, in every step",
            ),
            Check.every(
                "last loss over that of a uniform guess",
                [r["last loss"] / math.log(VOCABULARY) for r in results],
                high=0.9,
                source="so that a model was trained at all; a first loss may lie above a uniform guess",
            ),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        axes = figure.subplots()
        for place, mode in enumerate(MODES):
            mine = select(results, "trained", mode)
            for number, mark in (("logits apart", "o"), ("gradients apart", "x")):
                at, found = [i + 0.15 * (place - 1) for i in range(len(mine))], [r[number] for r in mine]
                axes.plot(at, found, mark, color=f"C{place}", label=f"{number}, trained {mode}")
            axes.set_xticks(range(len(mine)), [str(r.cell["mixer"]) for r in mine])
        axes.axhline(SINGLE, color="0.5", label="20 eps sqrt(T), the bound")
        axes.set(yscale="log", ylabel="largest relative difference between modes", xlabel="mixer")
        axes.set_title("Every mode computes what every other does, but for rounding")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def build(mixer: str, seed: int) -> LanguageModel:
    """A model in float64; in float32, training amplifies the rounding of two modes to a percent of the loss."""
    sizes = {"vocab_size": VOCABULARY, "d_model": 24, "context": T}
    return LanguageModel(Config.from_dict({**sizes, "layers": 2 * [{"mixer": mixer, "heads": 2}]}), seed=seed).double()


def train(model: LanguageModel, mode: Mode, steps: int, draw: torch.Generator) -> list[float]:
    """Trains a model in one mode; the loss of every step."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), RATE), []
    for _ in range(steps):
        value = loss(model, counting(draw, B, T), mode)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def counting(draw: torch.Generator, rows: int, tokens: int) -> Tensor:
    """Texts [rows,tokens] that count upwards from a random token, modulo the vocabulary."""
    return (torch.randint(VOCABULARY, (rows, 1), generator=draw) + torch.arange(tokens)) % VOCABULARY


def loss(model: LanguageModel, text: Tensor, mode: Mode) -> Tensor:
    logits, _ = model(text[:, :-1], mode=mode)
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def gradient(model: LanguageModel, text: Tensor, mode: Mode) -> Tensor:
    """The gradient of the loss of a text, all parameters in one vector."""
    found = torch.autograd.grad(loss(model, text, mode), list(model.parameters()))
    return torch.cat([x.flatten() for x in found])
