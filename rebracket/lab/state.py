"""What a larger state is worth, and in which layers it is best spent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, select, values_of
from rebracket.lab.base.learning import Examples, label_accuracy, learn, model_without_mlps
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn.attention import LinearAttention
from rebracket.train.config import OptimizerConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

D_MODEL, RATE, ASKED = 64, 1e-2, 256
"""Width, peak of the learning rate, sequences of the test."""
SPENT = ("evenly", "early", "late")
SEARCHED = "searched"
SEARCH = 1000
"""Added to a seed for a search: no model is tested with the weights or sequences by which its split was chosen."""
ROUNDS, ROWS, LONG = 5, 8, 256
"""Turns of timing; sequences of a turn and their tokens."""
MIXERS: Mapping[Size, Sequence[str]] = {"tiny": ["gla"], "quick": ["gla", "deltanet"], "full": ["gla", "deltanet"]}
KEYS: Mapping[Size, Sequence[int]] = {"tiny": [1, 8], "quick": [2, 4, 16], "full": [1, 2, 3, 4, 6, 8, 16]}
SHAPES: Mapping[Size, Sequence[tuple[int, int]]] = {
    "tiny": [(2, 32), (8, 8)],
    "quick": [(4, 32), (16, 8)],
    "full": [(2, 64), (4, 32), (8, 16), (16, 8), (32, 4)],
}
"""K and V, with the same product."""
MAPS: Mapping[Size, Sequence[str]] = {
    "tiny": ["elu1", "taylor2"],
    "quick": ["elu1", "taylor2"],
    "full": ["elu1", "relu", "dpfp", "taylor2"],
}
UNDECAYED: Mapping[Size, Sequence[int]] = {"tiny": [4, 8], "quick": [4, 16], "full": [2, 4, 8, 16]}
"""K of the layers without a decay."""
SMALL = 4
"""K of the layer with a decay, and of those whose features differ."""
LAYERS: Mapping[Size, int] = {"tiny": 2, "quick": 2, "full": 4}
BUDGET: Mapping[Size, int] = {"tiny": 4, "quick": 8, "full": 16}
DRAWN: Mapping[Size, int] = {"tiny": 0, "quick": 2, "full": 9}
"""Random splits that a search tries besides the named ones."""
SIDES: Mapping[Size, Sequence[int]] = {"tiny": [8, 16], "quick": [8, 32, 128], "full": [8, 16, 32, 64, 128, 256]}
"""K = V of the models that are timed."""
TASK: Mapping[Size, Cell] = {
    "tiny": {"vocabulary": 16, "pairs": 4, "steps": 150, "batch": 512},
    "quick": {"vocabulary": 32, "pairs": 8, "steps": 300, "batch": 1024},
    "full": {"vocabulary": 32, "pairs": 8, "steps": 600, "batch": 1024},
}
BASE: Cell = {
    "mixer": "gla",
    "feature": "",
    "decays": 1,
    "layers": 1,
    "spent": "evenly",
    "drawn": 0,
    "V": 32,
    "texts": 1,
}


@final
@dataclass(frozen=True)
class Setting:
    """One model, and its task: texts after each other, each with its own pairs and questions about them."""

    mixer: str
    feature: str  # "" is the preset's own
    decays: bool  # whether the layers keep the decay of the preset
    keys: tuple[int, ...]  # K of each layer
    V: int
    vocabulary: int
    pairs: int
    texts: int
    steps: int
    batch: int  # tokens of a step


@final
class StateSize(Experiment):
    """Recall of small models that differ in how large their states are, in which layers, and how they are used."""

    question = "What is a larger state worth, in which layers is it best spent, and what does a decay add?"
    claim = (
        "In multi-query recall of 8 pairs accuracy grows with the state until it holds them all (gla, K = 2, 4, 16: "
        "0.39, 0.75, 1.00). Of one K V, few wide values recall less than more and narrower ones (K = 4, V = 32: 0.75; "
        "K = 16, V = 8: 0.94), and of two feature maps over the same 4 channels the one with fewer features less "
        "(Taylor 0.84, elu + 1 0.28). Of the same bytes in several layers the first should get nearly all: in two "
        "layers, over six seeds, 0.91 early, 0.70 evenly, 0.58 late, where more training lets evenly come level; in "
        "four, over ten seeds and twice the steps, 0.83, 0.33 and 0.34. A search over splits, judged on another seed "
        "than it was made on, finds nothing better by more than 0.05. This on layers is not published to our "
        "knowledge: it is what was found here. Where texts follow each other and keys return with other values, 4 "
        "channels with an input-dependent decay recall 0.94, without it 0.56, and up to 16 without it 0.57. A state "
        "130 times as large makes reading 4 times slower, and single steps of a small model by an eighth."
    )

    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 10}

    def grid(self, size: Size) -> list[Cell]:
        sizes = [{"part": "size", "mixer": mixer, "K": K} for mixer in MIXERS[size] for K in KEYS[size]]
        shapes = [{"part": "shape", "K": K, "V": V} for K, V in SHAPES[size]]
        maps = [{"part": "map", "mixer": "linear_transformer", "K": SMALL, "feature": name} for name in MAPS[size]]
        splits = [{"part": "layers", "layers": LAYERS[size], "K": BUDGET[size], "spent": spent} for spent in SPENT]
        search = {**splits[0], "spent": SEARCHED, "drawn": DRAWN[size]}
        texts = {"part": "decay", "texts": 4, "pairs": 4, "vocabulary": 16}
        decay = [{**texts, "K": SMALL}, *({**texts, "K": K, "decays": 0} for K in UNDECAYED[size])]
        cells = [{**BASE, **TASK[size], **x} for x in (*sizes, *shapes, *maps, *splits, search, *decay)]
        return [*cells, {"part": "speed", "sides": " ".join(map(str, SIDES[size]))}]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        seed = int(cell["seed"])
        if cell["part"] == "speed":
            return speeds([int(side) for side in str(cell["sides"]).split()], seed)
        setting = setting_of(cell, seed)
        model, examples = learned(setting, seed), task(setting, setting.pairs, ASKED, generator(seed, 2))
        seconds = statistics.median(core_seconds(lambda: model.read(examples.tokens)) for _ in range(ROUNDS))
        return {
            "accuracy": label_accuracy(model, examples),
            "tokens a core second": examples.tokens.numel() / seconds,
            "bytes": float(model.state_nbytes(0)),
            **{f"K of layer {layer}": float(K) for layer, K in enumerate(setting.keys)},
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        size, shape, decay = (select(results, "part", part) for part in ("size", "shape", "decay"))
        curves = [[r["accuracy"] for r in select(size, "mixer", x)] for x in values_of(size, "mixer")]
        losses = [before - after for curve in curves for before, after in pairwise(curve)]
        maps = {r.cell["feature"]: r["accuracy"] for r in select(results, "part", "map")}
        splits = select(results, "part", "layers")
        spent, nbytes = {r.cell["spent"]: r["accuracy"] for r in splits}, [r["bytes"] for r in splits]
        best, fewest = max(r["accuracy"] for r in shape), min(shape, key=lambda r: int(r.cell["K"]))["accuracy"]
        (decayed,) = (r["accuracy"] for r in decay if r.cell["decays"])
        without = {int(r.cell["K"]): r["accuracy"] for r in decay if not r.cell["decays"]}
        (speed,) = select(results, "part", "speed")
        read, step = (max(rates) / min(rates) for rates in (of_sides(speed, "read"), of_sides(speed, "step")))
        return Verdict.of(
            Check("least gain from the smallest state to the largest", min(x[-1] - x[0] for x in curves), low=0.3),
            Check("most that a larger state lost", max(losses), high=0.05),
            Check("gain of the best shape over the one with the fewest keys", best - fewest, low=0.03),
            Check("gain of the Taylor map over elu + 1", maps["taylor2"] - maps["elu1"], low=0.2),
            Check("bytes of a split, most over least", max(nbytes) / min(nbytes), high=1),
            Check("gain of early over late", spent["early"] - spent["late"], low=0.03),
            Check("gain of early over evenly", spent["early"] - spent["evenly"], low=0),
            Check("gain of the search over the best of them", spent.pop(SEARCHED) - max(spent.values()), high=0.05),
            Check("gain of the decay in a small state", decayed - without[SMALL], low=0.1),
            Check("and over larger ones without it", decayed - max(without.values()), low=0.1),
            Check("reading, fastest over slowest", read, 1.2, 20),
            Check("steps, fastest over slowest", step, 1.0, 3),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        figure.set_size_inches(10, 7)
        (one, two, three), (four, five, six) = figure.subplots(2, 3)
        draw_sizes(one, results, "bytes", "bytes of state")
        draw_sizes(two, results, "tokens a core second", "tokens read a core second")
        one.legend(fontsize="xx-small")
        draw_splits(three, select(results, "part", "layers"))
        draw_decay(four, select(results, "part", "decay"))
        (speed,) = select(results, "part", "speed")
        for use in ("read", "step"):
            five.plot(of_sides(speed, "bytes"), of_sides(speed, use), "o-", label=use)
        five.set(xscale="log", yscale="log", xlabel="bytes of state", ylabel="tokens a core second", title="K = V")
        five.legend()
        six.set_axis_off()


def of_sides(speed: Result, what: str) -> list[float]:
    """A number of every timed model, the smallest first."""
    return [speed[f"{what} {side}"] for side in str(speed.cell["sides"]).split()]


def draw_sizes(axes: Axes, results: Sequence[Result], across: str, label: str) -> None:
    """Accuracy of one layer against another number of the same models."""
    size = select(results, "part", "size")
    for name in values_of(size, "mixer"):
        line = select(size, "mixer", name)
        axes.plot([r[across] for r in line], [r["accuracy"] for r in line], "o-", label=f"{name}, by K")
    for part, mark in (("shape", "x"), ("map", "s")):
        for r in select(results, "part", part):
            name = str(r.cell["feature"]) or f"gla, K = {r.cell['K']}, V = {r.cell['V']}"
            axes.plot(r[across], r["accuracy"], mark, label=name)
    axes.set(xscale="log", xlabel=label, ylabel="accuracy", title="one layer")


def draw_splits(axes: Axes, results: Sequence[Result]) -> None:
    axes.bar([str(r.cell["spent"]) for r in results], [r["accuracy"] for r in results])
    for place, r in enumerate(results):
        K = " ".join(f"{r[f'K of layer {layer}']:.3g}" for layer in range(int(r.cell["layers"])))
        axes.text(place, 0.02, K, ha="center", color="white")
    axes.set(ylim=(0, 1), ylabel="accuracy", title="same bytes, K of each layer")


def draw_decay(axes: Axes, results: Sequence[Result]) -> None:
    for decays, label in ((1, "with its decay"), (0, "without")):
        mine = select(results, "decays", decays)
        axes.plot([r["bytes"] for r in mine], [r["accuracy"] for r in mine], "o-", label=f"gla {label}")
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="bytes of state", ylabel="accuracy", title="texts after each other")
    axes.legend()


def setting_of(cell: Cell, seed: int) -> Setting:
    """The setting of a cell; how its K channels are split over layers may have to be searched first."""
    numbers = {name: int(cell[name]) for name in ("V", "vocabulary", "pairs", "texts", "steps", "batch")}
    named = split(int(cell["K"]), int(cell["layers"]), str(cell["spent"]))
    setting = Setting(str(cell["mixer"]), str(cell["feature"]), bool(cell["decays"]), named, **numbers)
    return searched(setting, int(cell["drawn"]), seed + SEARCH) if cell["spent"] == SEARCHED else setting


def split(total: int, layers: int, spent: str) -> tuple[int, ...]:
    """Key channels of each layer: as many in all, or all but one in the first, or in the last."""
    most, least = total - layers + 1, (layers - 1) * (1,)
    return {"early": (most, *least), "late": (*least, most)}.get(spent, layers * (total // layers,))


def searched(setting: Setting, drawn: int, seed: int) -> Setting:
    """The setting with the split of its key channels that recalls most after half the steps, among a few."""
    total, layers = sum(setting.keys), len(setting.keys)
    draw = generator(seed, 3)
    tried = [split(total, layers, spent) for spent in SPENT]
    tried += [random_split(total, layers, draw) for _ in range(drawn)]
    short = [replace(setting, keys=keys, steps=setting.steps // 2) for keys in dict.fromkeys(tried)]
    best = max(short, key=lambda x: label_accuracy(learned(x, seed), task(x, x.pairs, ASKED, generator(seed, 2))))
    return replace(setting, keys=best.keys)


def random_split(total: int, layers: int, draw: torch.Generator) -> tuple[int, ...]:
    """A split into positive numbers, all equally likely."""
    cuts = torch.randperm(total - 1, generator=draw)[: layers - 1].sort().values + 1
    ends = torch.cat([torch.tensor([0]), cuts, torch.tensor([total])])
    return tuple(ends.diff().tolist())


def learned(setting: Setting, seed: int) -> LanguageModel:
    """A trained model: one pair at first, all of them from halfway on.

    With all of them from the start it takes several times as many steps until anything is recalled.
    """
    model, draw = built(setting, seed), generator(seed, 1)

    def examples(step: int) -> Examples:
        share = min(1.0, 2 * (step + 1) / setting.steps)
        pairs = max(1, round(setting.pairs * share))
        return task(setting, pairs, setting.batch // (4 * pairs * setting.texts), draw)

    learn(model, examples, setting.steps, OptimizerConfig(learning_rate=RATE, warmup=setting.steps // 10))
    return model


def task(setting: Setting, pairs: int, rows: int, draw: torch.Generator) -> Examples:
    """Texts of multi-query recall, as short as possible, one after the other in each row."""
    found = multi_query_recall(draw, rows * setting.texts, 4 * pairs, pairs, setting.vocabulary)
    return Examples(found.tokens.view(rows, -1), found.labels.view(rows, -1))


def built(setting: Setting, seed: int) -> LanguageModel:
    sizes = {"mixer": setting.mixer, "heads": 1, "value_dim": setting.V, "convolution": 4}
    chosen = {**sizes, "feature": setting.feature} if setting.feature else sizes
    layers = [{**chosen, "key_dim": K} for K in setting.keys]
    context = 4 * setting.pairs
    model = model_without_mlps(layers, vocabulary=setting.vocabulary, d_model=D_MODEL, context=context, seed=seed)
    for mixer in model.mixers():
        if isinstance(mixer, LinearAttention) and not setting.decays:
            mixer.decay = None
    return model


def speeds(sides: Sequence[int], seed: int) -> dict[str, float]:
    """Tokens a core second of models with K = V, reading a text at once or token by token, timed in turns."""
    models = {side: built(Setting("gla", "", True, (side,), side, 32, 8, 1, 0, 0), seed) for side in sides}
    text = torch.randint(32, (ROWS, LONG), generator=generator(seed))
    calls: dict[str, Callable[[], object]] = {}
    for side, model in models.items():
        calls |= {f"read {side}": partial(model, text), f"step {side}": partial(one_by_one, model, text)}
    turns = [{name: core_seconds(call) for name, call in calls.items()} for _ in range(ROUNDS + 1)][1:]
    rates = {name: ROWS * LONG / statistics.median(turn[name] for turn in turns) for name in calls}
    return rates | {f"bytes {side}": float(model.state_nbytes(0)) for side, model in models.items()}


def one_by_one(model: LanguageModel, text: Tensor) -> None:
    cache = model.empty_cache(ROWS)
    for tokens in text.T:
        _, cache = model.step(tokens, cache, inplace=True)


@torch.no_grad()
def core_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
