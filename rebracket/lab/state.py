"""What a larger state is worth, and in which layers it is best spent."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.lab.base.drawing import draw_bars, draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, select, values_of
from rebracket.lab.base.learning import UNLABELLED, Examples, label_accuracy, learn, model_without_mlps
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn.attention import LinearAttention
from rebracket.ops.attention import explain, linear_attention
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
ROUNDS, REPEATS, ROWS, LONG = 5, 5, 8, 256
"""Turns of timing, calls of the operator in one; sequences of a turn and their tokens."""
MIXERS: Mapping[Size, Sequence[str]] = {"tiny": ["gla"], "quick": ["gla", "deltanet"], "full": ["gla", "deltanet"]}
KEYS: Mapping[Size, Sequence[int]] = {"tiny": [1, 8], "quick": [2, 4, 16], "full": [1, 2, 3, 4, 6, 8, 16]}
SHAPES: Mapping[Size, Sequence[tuple[int, int]]] = {
    "tiny": [(1, 64), (8, 8)],
    "quick": [(2, 64), (8, 16)],
    "full": [(2, 64), (4, 32), (8, 16), (16, 8), (32, 4)],
}
"""K and V, with the same product; the second and the first of quick are compared, as is the full run's middle."""
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
LARGE = (64, 256)
"""K = V at which the operator is timed alone: below, what a call costs besides its state shows."""
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
        "In multi-query recall accuracy grows with the state until it holds all pairs. Of one K V, two keys for wide "
        "values recall less than eight for narrower ones, and of two feature maps over the same channels the one with "
        "fewer features less. Where one layer solves the task, bytes belong into the first layer, and a search finds "
        "nothing better. Where texts end and keys come again with other values, 4 channels with an input-dependent "
        "decay recall more than 4 without it, and than up to 16. The operator costs 4 K V operations a token, in "
        "proportion to the state, and its time follows once that is large; a small model around it hides this."
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
        spent, nbytes = {r.cell["spent"]: r["accuracy"] for r in splits}, [float(r["bytes"]) for r in splits]
        shapes = {int(r.cell["K"]): r["accuracy"] for r in shape}
        (decayed,) = (r["accuracy"] for r in decay if r.cell["decays"])
        without = {int(r.cell["K"]): r["accuracy"] for r in decay if not r.cell["decays"]}
        (speed,) = plain_means(select(results, "part", "speed"))
        operations = [x / side**2 for x, side in zip(of_sides(speed, "operations"), sides_of(speed), strict=True)]
        return Verdict.of(
            Check.every(
                "gain from the smallest state to the largest", [x[-1] - x[0] for x in curves], 0.3, source=FULL
            ),
            Check.every("what a larger state lost", losses, high=0.05, source="theory: none, and noise"),
            Check("gain of K = 8 over the fewest keys at one K V", shapes[8] - shapes[min(shapes)], 0.1, source=FULL),
            Check("gain of the Taylor map over elu + 1", maps["taylor2"] - maps["elu1"], 0.2, source=FULL),
            Check("bytes of a split, most over least", max(nbytes) / min(nbytes), high=1, source="by design"),
            Check("gain of early over late", spent["early"] - spent["late"], 0.1, source=REVIEW),
            Check("gain of early over evenly", spent["early"] - spent["evenly"], 0, source=REVIEW),
            Check("gain of the search over early", spent[SEARCHED] - spent["early"], high=0.05, source=FULL),
            Check("gain of the decay in a small state", decayed - without[SMALL], 0.1, source=REVIEW),
            Check.every(
                "gain of the decay over a larger state without it",
                [decayed - x for K, x in without.items() if K > SMALL],
                0.1,
                source="before delimiters a review's 8 seeds gave 0.16; with them seed 100 gave 0.43",
            ),
            Check.every(
                "operations a token over K V", operations, 4, 4.3, source="theory: decay, write and read, 4 K V"
            ),
            Check(
                "power of the state with which the operator's time grows", speed["power"], 0.6, 1.2, 1.0, "pilot: 0.87"
            ),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        figure.set_size_inches(10, 6.6)
        (one, two, three), (four, five, six) = figure.subplots(2, 3)
        draw_sizes(one, select(results, "part", "size"))
        alike = [r for part in ("shape", "map") for r in select(results, "part", part)]
        names = [f"{r.cell['feature'] or 'gla'}, K = {r.cell['K']}, V = {r.cell['V']}" for r in alike]
        draw_bars(two, names, [r["accuracy"] for r in alike], color="tab:blue")
        two.set(xlim=(0, 1.02), xlabel="accuracy", title="Too few keys or features cost most")
        splits = select(results, "part", "layers")
        draw_bars(three, [str(r.cell["spent"]) for r in splits], [r["accuracy"] for r in splits], color="tab:green")
        three.set(xlim=(0, 1.02), xlabel="accuracy, same bytes in all layers", title="One layer needs them: the first")
        draw_decay(four, select(results, "part", "decay"))
        (speed,) = select(results, "part", "speed")
        for use, color in (("read", "tab:blue"), ("step", "tab:orange")):
            draw_line(five, of_sides(speed, "bytes"), of_sides(speed, use), color=color, label=use)
        five.set(xscale="log", yscale="log", xlabel="bytes of state", ylabel="tokens a core second")
        five.set_title("A small model hides what its state costs")
        five.legend(fontsize="small")
        KV = [side**2 for side in sides_of(speed)]
        draw_line(six, KV, of_sides(speed, "operations"), color="tab:blue", label="counted")
        six.plot(KV, [4 * x for x in KV], "--", color="0.4", label="4 K V")
        six.set(xscale="log", yscale="log", xlabel="K V", ylabel="operations a token", title="The operator pays 4 K V")
        six.legend(fontsize="small")


FULL = "the full run of ten seeds, an earlier start, gave 0.2 and more"
REVIEW = "a review's 8 seeds with these first weights: early 0.76, evenly 0.53, late 0.21; decay 0.85, 0.55 and 0.69"


def sides_of(speed: Result) -> list[int]:
    return [int(side) for side in str(speed.cell["sides"]).split()]


def of_sides(speed: Result, what: str) -> list[float]:
    """A number of every timed model, the smallest first."""
    return [speed[f"{what} {side}"] for side in sides_of(speed)]


def draw_sizes(axes: Axes, results: Sequence[Result]) -> None:
    for place, name in enumerate(values_of(results, "mixer")):
        line = select(results, "mixer", name)
        draw_line(axes, [float(r["bytes"]) for r in line], [r["accuracy"] for r in line], color=f"C{place}", label=name)
    axes.set(
        xscale="log", ylim=(0, 1.05), xlabel="bytes of state", ylabel="accuracy", title="A larger state recalls more"
    )
    axes.legend(fontsize="small", loc="lower right")


def draw_decay(axes: Axes, results: Sequence[Result]) -> None:
    for decays, label, color in ((0, "without a decay", "tab:orange"), (1, "with its decay", "tab:blue")):
        mine = select(results, "decays", decays)
        draw_line(axes, [float(r["bytes"]) for r in mine], [r["accuracy"] for r in mine], color=color, label=label)
    axes.set(
        xscale="log",
        ylim=(0, 1.05),
        xlabel="bytes of state",
        ylabel="accuracy",
        title="Texts that end: a decay is worth more",
    )
    axes.legend(fontsize="small", loc="lower right")


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
    """Texts of multi-query recall, as short as possible, one after the other in each row, a delimiter before each."""
    found = multi_query_recall(draw, rows * setting.texts, 4 * pairs, pairs, setting.vocabulary)
    tokens, labels = (
        F.pad(found.tokens, (1, 0), value=setting.vocabulary),
        F.pad(found.labels, (1, 0), value=UNLABELLED),
    )
    return Examples(tokens.view(rows, -1), labels.view(rows, -1))


def built(setting: Setting, seed: int) -> LanguageModel:
    sizes = {"mixer": setting.mixer, "heads": 1, "value_dim": setting.V, "convolution": 4}
    chosen = {**sizes, "feature": setting.feature} if setting.feature else sizes
    layers = [{**chosen, "key_dim": K} for K in setting.keys]
    context = 4 * setting.pairs
    model = model_without_mlps(layers, vocabulary=setting.vocabulary + 1, d_model=D_MODEL, context=context, seed=seed)
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
    nbytes = {f"bytes {side}": float(model.state_nbytes(0)) for side, model in models.items()}
    operations = {f"operations {side}": operations_of(side) for side in sides}
    return {**rates, **nbytes, **operations, "power": power(seed)}


def operator_call(side: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and channel-wise decays of one head with K = V."""
    draw = generator(side, seed)
    q, k, v, gates = (torch.rand(ROWS, LONG, 1, side, generator=draw) for _ in range(4))
    return q, k, v, gates.log()


def operations_of(side: int) -> float:
    """Operations a token of the recurrence, as the plan counts them."""
    q, k, v, log_decay = operator_call(side, 0)
    plan = explain(q, k, v, log_decay=log_decay, mode="recurrent")
    return plan.costs["recurrent"].operations / (ROWS * LONG)


def power(seed: int) -> float:
    """The power of K V with which the core seconds of the operator grow, timed in turns."""
    calls = {side: operator_call(side, seed) for side in LARGE}
    turns = [{side: core_seconds(partial(attend, *call)) for side, call in calls.items()} for _ in range(ROUNDS + 1)][
        1:
    ]
    low, high = (statistics.median(turn[side] for turn in turns) for side in LARGE)
    return math.log(high / low) / math.log((LARGE[1] / LARGE[0]) ** 2)


def attend(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> None:
    for _ in range(REPEATS):
        linear_attention(q, k, v, log_decay=log_decay)


def one_by_one(model: LanguageModel, text: Tensor) -> None:
    cache = model.empty_cache(ROWS)
    for tokens in text.T:
        _, cache = model.step(tokens, cache, inplace=True)


@torch.no_grad()
def core_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
