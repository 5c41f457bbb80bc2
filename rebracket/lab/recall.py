"""What the write rule, the output gate and the first decays are each worth in recall, with the same bytes of state."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from rebracket import features
from rebracket.lab.base.convolved import Convolved
from rebracket.lab.base.drawing import draw_bars
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, select, values_of
from rebracket.lab.base.learning import Examples, label_accuracy, learn, model_without_mlps
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.decays.base import StepDecay
from rebracket.nn.decays.gla import GLADecay
from rebracket.nn.decays.kda import KDADecay
from rebracket.nn.decays.mamba2 import Mamba2Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import GATES, Gate, HeadNorm
from rebracket.nn.projections import Projection
from rebracket.nn.writes.delta import DeltaWrite
from rebracket.nn.writes.step import StepWrite
from rebracket.train.config import OptimizerConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D_MODEL, HEADS, FEATURES, VALUE_DIM, LAYERS = 64, 2, 14, 32, 2
"""The state of a head of every linear mixer is FEATURES x VALUE_DIM numbers, in both layers."""
CONVOLUTION, HORIZON = 4, 4096
"""Tokens of the short convolution, and the distance at which cosFormer's weights have fallen to 0."""
NEARLY_NO_POSITIONS = 1e30
"""Rotary base of softmax: in the published protocol attention has no positions; with them it fails on longer texts."""
SLOWER = math.log(100)
"""Taken off A_log, and added to GLA's bias, where decays begin open: 100 times slower than as published."""
SOFTMAX = "softmax"


@final
@dataclass(frozen=True)
class Rule:
    """What tells one mixer from another; all else of the layer is the same.

    Args:
        delta: whether it writes by the delta rule, else by addition.
        decay: name of its decay, or "".
        feature: name of its feature map; keys and queries have length 1 after it.
        key_dim: channels that the map turns into FEATURES.
        cosine: whether features are weighted by their position.
    """

    delta: bool = False
    decay: str = ""
    feature: str = "identity"
    key_dim: int = FEATURES
    cosine: bool = False


RULES: Mapping[str, Rule] = {
    "addition": Rule(),
    "deltanet": Rule(delta=True),
    "gated_deltanet": Rule(delta=True, decay="gated_deltanet"),
    "kda": Rule(delta=True, decay="kda"),
    "gla": Rule(decay="gla"),
    "mamba2": Rule(decay="mamba2"),
    "retnet": Rule(decay="retnet"),
    "elu1": Rule(feature="elu1"),
    "performer": Rule(feature="favor", key_dim=7),
    "cosformer": Rule(feature="relu", key_dim=7, cosine=True),
}
"""`addition` is DeltaNet with addition for its delta rule; `elu1` is the linear transformer's map."""
TITLES = {
    "distinct": "Keys that come once:\naddition is not behind",
    "rewritten": "Keys that come again:\nthe delta rule leads",
}
LEARNED_DECAYS = ("gated_deltanet", "kda", "gla", "mamba2")


class Slice(NamedTuple):
    """Sequences of one length with one number of keys, and how often each comes with another value."""

    tokens: int
    keys: int
    writes: int = 1

    def __str__(self) -> str:
        return f"{self.keys}{f' x {self.writes}' if self.writes > 1 else ''} in {self.tokens}"


class Task(NamedTuple):
    """A vocabulary, slices for training, one of which each step draws, slices for tests, and tokens of a step."""

    vocabulary: int
    train: tuple[Slice, ...]
    test: tuple[Slice, ...]
    batch: int


DISTINCT, REWRITTEN = "distinct", "rewritten"
TASKS: Mapping[tuple[str, str], Task] = {
    ("tiny", DISTINCT): Task(32, (Slice(16, 2), Slice(16, 4)), (Slice(16, 2), Slice(16, 4), Slice(64, 14)), 512),
    ("tiny", REWRITTEN): Task(32, (Slice(16, 2, 2), Slice(32, 3, 4)), (Slice(16, 2, 3), Slice(32, 3, 4)), 512),
    ("quick", DISTINCT): Task(
        132,
        (Slice(16, 2), Slice(32, 4), Slice(32, 8), Slice(64, 16)),
        (Slice(32, 4), Slice(32, 8), Slice(64, 16), Slice(256, 64)),
        2048,
    ),
    ("quick", REWRITTEN): Task(
        132,
        (Slice(16, 2, 2), Slice(32, 4, 2), Slice(64, 4, 4), Slice(64, 6, 4)),
        (Slice(32, 4, 2), Slice(64, 4, 4), Slice(64, 6, 4), Slice(128, 8, 6)),
        2048,
    ),
    ("full", DISTINCT): Task(
        160,
        (Slice(16, 2), Slice(32, 4), Slice(64, 8), Slice(64, 16)),
        (Slice(32, 4), Slice(64, 8), Slice(64, 16), Slice(128, 32), Slice(256, 64)),
        2048,
    ),
    ("full", REWRITTEN): Task(
        160,
        (Slice(16, 2, 2), Slice(32, 4, 2), Slice(64, 4, 4), Slice(64, 6, 4)),
        (Slice(32, 4, 2), Slice(64, 4, 4), Slice(64, 6, 4), Slice(128, 8, 6), Slice(256, 12, 6)),
        2048,
    ),
}
"""Of each size, with keys that come once, and with keys that come again with other values."""
FEW: tuple[Cell, ...] = (
    {"mixer": SOFTMAX, "gate": "none", "decays": "none", "keys": DISTINCT},
    {"mixer": "addition", "gate": "none", "decays": "none", "keys": DISTINCT},
    {"mixer": "deltanet", "gate": "none", "decays": "none", "keys": DISTINCT},
    {"mixer": "deltanet", "gate": "silu", "decays": "none", "keys": DISTINCT},
    {"mixer": "addition", "gate": "none", "decays": "none", "keys": REWRITTEN},
    {"mixer": "deltanet", "gate": "none", "decays": "none", "keys": REWRITTEN},
)
GATED: tuple[Cell, ...] = (
    {"mixer": "gated_deltanet", "gate": "none", "decays": "open", "keys": DISTINCT},
    {"mixer": "gated_deltanet", "gate": "silu", "decays": "published", "keys": DISTINCT},
)
STEPS: Mapping[Size, int] = {"tiny": 150, "quick": 300, "full": 1200}
RATES: Mapping[Size, tuple[float, ...]] = {"tiny": (1e-2,), "quick": (1e-2,), "full": (1e-2, 3.16e-3, 3.16e-2)}
ROWS, CHECKS, ENOUGH = 128, 10, 0.99
"""Sequences of a test slice; how often a run checks whether to stop early, and the mean accuracy at which it does."""


@final
@dataclass(frozen=True)
class Gain:
    """What one model recalls above another, and by how much at least and at most."""

    what: str
    more: str
    less: str
    low: float = -math.inf
    high: float = math.inf
    source: str = ""


RANKED = "pilot at seeds 100 and 101, 300 steps"
GAINS = (
    Gain(
        "deltanet above addition, keys that come once",
        "deltanet",
        "addition",
        high=0.03,
        source="theory: distinct keys under argmax favour addition (capacity)",
    ),
    Gain(
        "deltanet above addition, keys that come again",
        "deltanet, rewritten",
        "addition, rewritten",
        low=0.2,
        source=f"theory: the newest of m values in 1 / m of the cases (rewriting); {RANKED}: 0.52 and 0.55",
    ),
    Gain("deltanet above itself with a SiLU gate", "deltanet", "deltanet, silu gate", low=0.03, source=RANKED),
    Gain(
        "gated_deltanet without gate, decays open, above deltanet",
        "gated_deltanet, decays open",
        "deltanet",
        -0.05,
        0.05,
        source="published at equal state within reading error (Zoology); 0.921 and 0.917 at 1,200 steps",
    ),
    Gain(
        "and above itself with a SiLU gate and decays as published",
        "gated_deltanet, decays open",
        "gated_deltanet, silu gate, decays published",
        low=0.1,
        source=RANKED,
    ),
    *(
        Gain(f"softmax above {other}", SOFTMAX, other, low=0.03, source="Zoology, and " + RANKED)
        for other in ("addition", "deltanet")
    ),
)


@final
class Recall(Experiment):
    """Two layers that mix tokens and do nothing else, trained on multi-query associative recall."""

    question = (
        "What do write rule, output gate and first decays do to recall, each alone and at the same bytes of state?"
    )
    claim = (
        "Where every key comes once, the delta rule recalls no more than addition in the same layer (within 0.03); "
        "where keys come again with new values, it recalls far more. A SiLU gate on the output, which begins nearly "
        "closed, costs recall within this budget, and so do decays that begin by forgetting: without both, the gated "
        "delta rule stands with DeltaNet. Softmax attention, whose cache grows with the text, recalls most."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        cells = {"tiny": FEW, "quick": (*FEW, *GATED), "full": every_model()}[size]
        # Rates before models, so that an interrupted run has as many of one model as of another.
        return [{"task": size, "steps": STEPS[size], "rate": rate, **cell} for rate in RATES[size] for cell in cells]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        task, seed, steps = TASKS[str(cell["task"]), str(cell["keys"])], int(cell["seed"]), int(cell["steps"])
        model = build(cell, task, seed)
        tests, others = (asked(task, seed, part) for part in (1, 2))
        config = OptimizerConfig(learning_rate=float(cell["rate"]), warmup=steps // 10, weight_decay=0.1)
        pause = max(1, steps // CHECKS)

        def enough(step: int) -> bool:
            return step % pause == pause - 1 and accuracy(model, others) > ENOUGH

        started = time.process_time()
        losses = learn(model, lambda step: batch(task, seed, step), steps, config, enough)
        seconds = time.process_time() - started
        _, cache = model.read(tests[str(task.test[-1])].tokens[:1])
        return {
            "accuracy": accuracy(model, tests),
            "accuracy to choose by": accuracy(model, others),
            **{name: label_accuracy(model, examples) for name, examples in tests.items()},
            "state bytes": sum(layer.state.nbytes for layer in cache.layers),  # without the convolutions'
            "parameters": model.parameter_count(),
            "tokens": len(losses) * task.batch,
            "tokens a core second": len(losses) * task.batch / seconds,
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        found = {label(r.cell): r for r in best(results)}
        linear = [r for r in found.values() if r.cell["mixer"] != SOFTMAX]
        nbytes = [float(r["state bytes"]) for r in linear]
        counts = {
            gate: [float(r["parameters"]) for r in select(linear, "gate", gate)] for gate in values_of(linear, "gate")
        }
        ranked = sorted(found.items(), key=lambda pair: -pair[1]["accuracy"])
        told = "; ".join(f"{name} {r['accuracy']:.3f} at {r.cell['rate']:g}" for name, r in ranked)
        return Verdict.of(
            *(
                Check(x.what, found[x.more]["accuracy"] - found[x.less]["accuracy"], x.low, x.high, source=x.source)
                for x in GAINS
                if x.more in found and x.less in found
            ),
            Check("state of linear mixers, most over least", max(nbytes) / min(nbytes), high=1, source="by design"),
            Check.every(
                "parameters of those with the same gate, most over least",
                [max(x) / min(x) for x in counts.values()],
                high=1.25,
                source="counted: 1.22, narrow maps against low-rank decays; a gate adds 8,192",
            ),
            note=f"Mean accuracy at the best rate: {told}.",
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        chosen = best(results)
        kinds = values_of(chosen, "keys")
        figure.set_size_inches(10, 1.6 + 0.4 * max(len(select(chosen, "keys", kind)) for kind in kinds))
        for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
            mine = sorted(select(chosen, "keys", kind), key=lambda r: -r["accuracy"])
            draw_bars(
                axes,
                [label(r.cell).removesuffix(f", {REWRITTEN}").replace(", ", ",\n") for r in mine],
                [r["accuracy"] for r in mine],
                color="tab:blue",
            )
            axes.set(xlim=(0, 1.02), xlabel="accuracy, mean of all test slices", title=TITLES[kind])


def best(results: Sequence[Result]) -> list[Result]:
    """The result of each model at the learning rate that was best on other sequences than those of the test."""
    models: dict[str, list[Result]] = {}
    for r in results:
        models.setdefault(label(r.cell), []).append(r)
    return [max(rates, key=lambda r: r["accuracy to choose by"]) for rates in models.values()]


def label(cell: Cell) -> str:
    """What checks and figures call a model."""
    parts = [cell["mixer"]]
    parts += [f"{cell['gate']} gate"] if cell["gate"] != "none" else []
    parts += [f"decays {cell['decays']}"] if cell["decays"] != "none" else []
    parts += [cell["keys"]] if cell["keys"] != DISTINCT else []
    return ", ".join(map(str, parts))


def every_model() -> list[Cell]:
    """Softmax, and every linear mixer with every gate and both beginnings of its decays, on both tasks."""
    starts = {name: ("open", "published") if name in LEARNED_DECAYS else ("none",) for name in RULES}
    linear = [(name, gate, start) for name in RULES for gate in ("none", *GATES) for start in starts[name]]
    return [
        {"mixer": name, "gate": gate, "decays": start, "keys": keys}
        for keys in (DISTINCT, REWRITTEN)
        for name, gate, start in [(SOFTMAX, "none", "none"), *linear]
    ]


def build(cell: Cell, task: Task, seed: int) -> LanguageModel:
    """Two layers of a mixer, which has the short convolution of all others."""
    sizes = {"heads": HEADS, "key_dim": D_MODEL // HEADS, "value_dim": VALUE_DIM}
    rotary = {"mixer": SOFTMAX, "rotary_base": NEARLY_NO_POSITIONS}
    context = task.test[-1].tokens
    layers = LAYERS * [{**rotary, **sizes}]
    model = model_without_mlps(layers, vocabulary=task.vocabulary, d_model=D_MODEL, context=context, seed=seed)
    for block in model.each_block():
        block.mixer = Convolved(block.mixer, CONVOLUTION) if cell["mixer"] == SOFTMAX else layer(cell, block.mixer.size)
    model.init_weights(seed)
    return opened(model) if cell["decays"] == "open" else model


def layer(cell: Cell, around: MixerSize) -> Mixer:
    """The one form that all linear mixers have here: what they differ in is the rule, the gate and nothing else."""
    rule = RULES[str(cell["mixer"])]
    gate: Gate | None = next((x for x in GATES if x == cell["gate"]), None)
    size = replace(around, key_dim=rule.key_dim)
    feature, decay = features.make(rule.feature, size.key_dim), decays.make(rule.decay, size) if rule.decay else None
    return LinearAttention(
        size,
        feature=UnitFeatures(feature),
        decay=decay,
        write=DeltaWrite(D_MODEL, HEADS)
        if rule.delta
        else StepWrite(decay)
        if isinstance(decay, Mamba2Decay)
        else None,
        convolution=CONVOLUTION,
        cosine=CosineWeights(feature.dim_out, HORIZON) if rule.cosine else None,
        norm=HeadNorm(VALUE_DIM, activation=gate),
        gate=None if gate is None else Projection(D_MODEL, HEADS * VALUE_DIM),
    )


@torch.no_grad()
def opened(model: LanguageModel) -> LanguageModel:
    """The model with decays that begin 100 times slower."""
    for mixer in model.mixers():
        decay = mixer.decay if isinstance(mixer, LinearAttention) else None
        if isinstance(decay, (StepDecay, KDADecay)):
            decay.A_log.sub_(SLOWER)
        elif isinstance(decay, GLADecay) and decay.gate.up.bias is not None:
            decay.gate.up.bias.add_(SLOWER)
    return model


def accuracy(model: LanguageModel, slices: Mapping[str, Examples]) -> float:
    return fmean(label_accuracy(model, examples) for examples in slices.values())


def asked(task: Task, seed: int, part: int) -> dict[str, Examples]:
    """Sequences of every test slice, by its name; other parts have others."""
    return {str(form): drawn(generator(seed, i, part), task, form, ROWS) for i, form in enumerate(task.test)}


def drawn(draw: torch.Generator, task: Task, form: Slice, rows: int) -> Examples:
    return multi_query_recall(draw, rows, form.tokens, form.keys, task.vocabulary, writes=form.writes)


def batch(task: Task, seed: int, step: int) -> Examples:
    """New examples for every step, of a slice drawn for it."""
    draw = generator(seed, step, 0)
    form = task.train[int(torch.randint(len(task.train), (), generator=draw))]
    return drawn(draw, task, form, task.batch // form.tokens)
