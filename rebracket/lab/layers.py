"""In which layers of a language model the bytes of state are best spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch

from rebracket.lab.base.drawing import draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, points, select, values_of
from rebracket.lab.base.learning import at_best_rates
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.text import CHOICE, DIVERGED, RESULT, held_out_bits, language_model, train
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D_MODEL, PARAMETERS, HEADS, VALUE_DIM = 64, 150_000, 2, 32
PILOT = "pilot at seed 1000: early 0.19, late 0.32, half the bytes 0.07, searched 0"
LEAST = 2
"""Key channels of a head in the layers that get the fewest."""
DEPTH: Mapping[Size, int] = {"tiny": 2, "quick": 4, "full": 4}
CHANNELS: Mapping[Size, Sequence[int]] = {"tiny": [4, 16], "quick": [16, 32], "full": [16, 32, 64, 128]}
"""Key channels of a head in all layers together: the bytes of a model; the middle one is split."""
SPLIT: Mapping[Size, int] = {"tiny": 16, "quick": 32, "full": 32}
MIXERS: Mapping[Size, Sequence[str]] = {
    "tiny": ["gla"],
    "quick": ["gated_deltanet"],
    "full": ["gated_deltanet", "gla"],
}
STEPS: Mapping[Size, int] = {"tiny": 30, "quick": 80, "full": 400}
RATES: Mapping[Size, Sequence[float]] = {"tiny": [6e-3], "quick": [6e-3], "full": [6e-3, 3e-3, 1.2e-2]}
SPENT = EVENLY, EARLY, LATE, SEARCHED = "evenly", "early", "late", "searched"
DRAWN: Mapping[Size, int] = {"tiny": 0, "quick": 1, "full": 4}
"""Random splits that a search tries beside the named ones."""
SEARCH = 500
"""Added to a seed for a search: no model has the start or the order of text by which its split was chosen."""


@final
class Layers(Experiment):
    """Language models with the same bytes of state and the same parameters, spent on other layers."""

    question = "In which layers of a language model should the bytes of its state be spent?"
    claim = (
        "Of the same bytes of state four layers use best what is spread: nearly all in the first layer costs 0.05 bits "
        "per byte and more, in the last 0.1 and more, which is dearer by 0.05 than to halve the bytes; a search over "
        "splits gains at most 0.1 over equal shares."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        axes = {"steps": [STEPS[size]], "rate": RATES[size], "mixer": MIXERS[size], "depth": [DEPTH[size]]}
        sizes = points({**axes, "channels": CHANNELS[size], "spent": [EVENLY], "drawn": [0]})
        splits = points({**axes, "channels": [SPLIT[size]], "spent": [EARLY, LATE], "drawn": [0]})
        search = points({**axes, "channels": [SPLIT[size]], "spent": [SEARCHED], "drawn": [DRAWN[size]]})
        return [*sizes, *splits, *search]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        channels = searched(cell) if cell["spent"] == SEARCHED else split(cell, str(cell["spent"]))
        model, trained = learned(cell, channels, int(cell["steps"]), int(cell["seed"]))
        bits = {"chosen by": CHOICE, "bits": RESULT}
        return {
            **{x: held_out_bits(model, half) if trained else DIVERGED for x, half in bits.items()},
            "parameters": model.parameter_count(),
            "state bytes": sum(layer.state.nbytes for layer in model.empty_cache(1).layers),  # no convolutions'
            **{f"channels of layer {layer}": K for layer, K in enumerate(channels)},
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        models = by_mixer(results)
        counts = [float(r["parameters"]) for r in results]
        early, late, search = (
            [split[name] - split[EVENLY] for split, _ in models.values()] for name in (EARLY, LATE, SEARCHED)
        )
        fewer = [split[LATE] - sizes[0][1] for split, sizes in models.values()]
        return Verdict.of(
            Check("parameters apart by", max(counts) / min(counts) - 1, high=0.02, source="whole units of the MLPs"),
            Check.every("bits per byte that early costs over evenly", early, low=0.05, source=PILOT),
            Check.every("bits per byte that late costs over evenly", late, low=0.1, source=PILOT),
            Check.every("bits per byte that late costs over fewer bytes", fewer, low=0.05, source=PILOT),
            Check.every("bits per byte that the search costs over evenly", search, -0.1, 0.02, source=PILOT),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for place, (mixer, (split, sizes)) in enumerate(by_mixer(results).items()):
            style = {"color": f"C{place}", "label": mixer}
            draw_line(left, *zip(*sizes, strict=True), **style)
            draw_line(right, list(range(len(split))), list(split.values()), **style, style="")
        left.set(xscale="log", xlabel="bytes of state, evenly over layers", ylabel="bits per byte of held-out text")
        right.set_xticks(range(len(SPENT)), SPENT)
        right.set(xlabel="the same bytes spent", ylabel="bits per byte of held-out text")
        left.set_title("More bytes")
        right.set_title("The same bytes")
        left.legend(fontsize="small")


def by_mixer(results: Sequence[Result]) -> dict[str, tuple[dict[str, float], list[tuple[float, float]]]]:
    """Bits per byte of each mixer at its best rates: by where the same bytes are spent, and by bytes spent evenly."""
    chosen, found = at_best_rates(results), {}
    for mixer in values_of(chosen, "mixer"):
        mine = select(chosen, "mixer", mixer)
        (channels,) = {r.cell["channels"] for r in select(mine, "spent", SEARCHED)}
        split = {str(r.cell["spent"]): r["bits"] for r in select(mine, "channels", channels)}
        sizes = sorted((float(r["state bytes"]), r["bits"]) for r in select(mine, "spent", EVENLY))
        found[mixer] = ({x: split[x] for x in SPENT}, sizes)
    return found


def split(cell: Cell, spent: str) -> tuple[int, ...]:
    """Key channels of each layer: as many in all, or all but the least in the first, or in the last."""
    total, depth = int(cell["channels"]), int(cell["depth"])
    rest = (depth - 1) * (LEAST,)
    most = total - sum(rest)
    return {EARLY: (most, *rest), LATE: (*rest, most)}.get(spent, depth * (total // depth,))


def searched(cell: Cell) -> tuple[int, ...]:
    """The split with the fewest bits per byte after half the steps, among the named ones and some drawn at random."""
    seed = int(cell["seed"]) + SEARCH
    draw, steps = generator(seed), int(cell["steps"]) // 2
    tried = [split(cell, spent) for spent in (EVENLY, EARLY, LATE)]
    tried += [random_split(cell, draw) for _ in range(int(cell["drawn"]))]
    return min(tried, key=lambda channels: held_out_bits(learned(cell, channels, steps, seed)[0], CHOICE))


def random_split(cell: Cell, draw: torch.Generator) -> tuple[int, ...]:
    """A split in which no layer has less than the least, all of them equally likely."""
    free, depth = int(cell["channels"]) - LEAST * int(cell["depth"]), int(cell["depth"])
    cuts = torch.randperm(free + depth - 1, generator=draw)[: depth - 1].sort().values
    ends = torch.cat([torch.tensor([-1]), cuts, torch.tensor([free + depth - 1])])
    return tuple((ends.diff() - 1 + LEAST).tolist())


def learned(cell: Cell, channels: Sequence[int], steps: int, seed: int) -> tuple[LanguageModel, bool]:
    """A model whose layers have so many key channels a head, trained; and whether that went well."""
    sizes = {"mixer": cell["mixer"], "heads": HEADS, "value_dim": VALUE_DIM}
    layers = [{**sizes, "key_dim": K} for K in channels]
    model = language_model(layers, d_model=D_MODEL, parameters=PARAMETERS, seed=seed)
    return model, train(model, steps, float(cell["rate"]), seed)
