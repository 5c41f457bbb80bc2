"""Which mixers recall a value by its key, with the same bytes of state."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, points, select, values_of
from rebracket.lab.base.learning import Examples, label_accuracy, learn, model_without_mlps
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.train.config import OptimizerConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D_MODEL, HEADS, FEATURES, VALUE_DIM = 64, 2, 14, 32
"""The state of a head of every linear mixer is FEATURES x VALUE_DIM numbers, in both layers."""
CONVOLUTION = 4
KEY_DIM = {"performer": 7, "cosformer": 7}
"""Where a map makes more features: 7 channels give 7 log 7 = 14 random features, or 7 sines and 7 cosines."""
NEARLY_NO_POSITIONS = 1e30
"""Rotary base of softmax: in the published protocol attention has no positions; with them it fails on longer texts."""


class Slice(NamedTuple):
    """Sequences of one length with one number of pairs."""

    tokens: int
    pairs: int

    def __str__(self) -> str:
        return f"{self.pairs} in {self.tokens}"


class Task(NamedTuple):
    """A vocabulary, slices for training, one of which each step draws, slices for tests, and tokens of a step."""

    vocabulary: int
    train: tuple[Slice, ...]
    test: tuple[Slice, ...]
    batch: int


TASKS = {
    "tiny": Task(32, (Slice(16, 2), Slice(16, 4)), (Slice(16, 2), Slice(16, 4), Slice(64, 14)), 512),
    "quick": Task(
        132,
        (Slice(16, 2), Slice(32, 4), Slice(32, 8), Slice(64, 16)),
        (Slice(32, 4), Slice(32, 8), Slice(64, 16), Slice(256, 64)),
        2048,
    ),
    "full": Task(
        160,
        (Slice(16, 2), Slice(32, 4), Slice(64, 8), Slice(64, 16)),
        (Slice(32, 4), Slice(64, 8), Slice(64, 16), Slice(128, 32), Slice(256, 64)),
        2048,
    ),
}
EVERY = (
    *("softmax", "gated_deltanet", "deltanet", "kda", "gla"),
    *("mamba2", "retnet", "linear_transformer", "performer", "cosformer"),
)
FEW = ("softmax", "deltanet", "linear_transformer")
DELTA = {"gated_deltanet", "deltanet", "kda"}
ROWS, CHECKS, ENOUGH = 128, 10, 0.99
"""Sequences of a test slice; how often a run checks whether to stop early, and the mean accuracy at which it does."""


@final
class Recall(Experiment):
    """Two layers that mix tokens and do nothing else, trained on multi-query associative recall."""

    question = "Which mixers find values by their keys, at several learning rates and with the same bytes of state?"
    claim = (
        "Softmax attention, whose cache grows with the text, recalls nearly everything (0.9 or more of all slices) and "
        "more than any state of a fixed size; at an equal memory the delta rule (DeltaNet) recalls at least 0.02 more "
        "than any mixer that adds, which is the order softmax > DeltaNet > GLA, Mamba-2 of Zoology's plot. Where the "
        "gated delta rules, RetNet, elu + 1, Performer and cosFormer stand is reported as found. Protocol: the mixture "
        "of Based (P2) with 16 pairs at most in training and 64 in the last test, vocabulary 160 for 8192, d_model 64, "
        "both layers the mixer with a convolution of 4 (softmax: behind a convolution of 3), best of four learning "
        "rates by the mean accuracy of all test slices; 2.5 million tokens of training where the published runs had "
        "up to 780 million, so that the order is of speed of learning as much as of memory."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        # Rates before mixers, so that an interrupted run has as many of one mixer as of another.
        axes: Mapping[Size, Mapping[str, Sequence[int | float | str]]] = {
            "tiny": {"steps": [150], "rate": [1e-2], "mixer": FEW},
            "quick": {"steps": [400], "rate": [1e-2], "mixer": (*FEW, "gla")},
            "full": {"steps": [1200], "rate": [1e-2, 3.16e-3, 3.16e-2, 1e-3], "mixer": EVERY},
        }
        return points({"task": [size], **axes[size]})

    def measure(self, cell: Cell) -> Mapping[str, float]:
        task, seed, steps = TASKS[str(cell["task"])], int(cell["seed"]), int(cell["steps"])
        model = build(str(cell["mixer"]), task, seed)
        tests = {str(x): ask(generator(seed, i, 1), task, x, ROWS) for i, x in enumerate(task.test)}
        config = OptimizerConfig(learning_rate=float(cell["rate"]), warmup=steps // 10, weight_decay=0.1)
        pause = max(1, steps // CHECKS)

        def enough(step: int) -> bool:
            return step % pause == pause - 1 and fmean(label_accuracy(model, x) for x in tests.values()) > ENOUGH

        started = time.process_time()
        losses = learn(model, lambda step: batch(task, seed, step), steps, config, enough)
        seconds = time.process_time() - started
        scores = {name: label_accuracy(model, examples) for name, examples in tests.items()}
        _, cache = model.read(tests[str(task.test[-1])].tokens[:1])
        return {
            "accuracy": fmean(scores.values()),
            **scores,
            "state bytes": sum(layer.state.nbytes for layer in cache.layers),  # without the convolutions'
            "steps taken": len(losses),
            "tokens per second": len(losses) * task.batch / seconds,
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        chosen = best(results)
        accuracy = {mixer: r["accuracy"] for mixer, r in chosen.items()}
        linear = {mixer: x for mixer, x in accuracy.items() if mixer != "softmax"}
        additive = max(x for mixer, x in linear.items() if mixer not in DELTA)
        ranked = sorted(chosen.items(), key=lambda pair: -pair[1]["accuracy"])
        found = ", ".join(f"{mixer} {r['accuracy']:.3f} at {r.cell['rate']:g}" for mixer, r in ranked)
        return Verdict.of(
            Check("softmax", accuracy["softmax"], low=0.9),
            Check("softmax above the best of the others by", accuracy["softmax"] - max(linear.values()), low=0.01),
            Check("deltanet above the best additive mixer by", accuracy["deltanet"] - additive, low=0.02),
            note=f"Mean accuracy at the best rate: {found}.",
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        chosen = best(results)
        slices = TASKS[str(results[0].cell["task"])].test
        for place, (mixer, result) in enumerate(chosen.items()):
            style = {"color": f"C{place}", "label": f"{mixer}, rate {result.cell['rate']:g}"}
            left.plot([x.pairs for x in slices], [result[str(x)] for x in slices], "o-", **style)
            rates = sorted((float(r.cell["rate"]), r["accuracy"]) for r in select(results, "mixer", mixer))
            right.plot(*zip(*rates, strict=True), "o-", color=f"C{place}")
        left.set(xscale="log", xlabel="pairs in tokens", ylabel="accuracy", title="At the best rate")
        left.set_xticks([x.pairs for x in slices], [f"{x.pairs}\nin {x.tokens}" for x in slices])
        left.minorticks_off()
        right.set(xscale="log", xlabel="learning rate", ylabel="mean accuracy of all slices", title="At every rate")
        right.legend(*left.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))


def best(results: Sequence[Result]) -> dict[str, Result]:
    """The result of each mixer at the learning rate with the best mean accuracy."""
    return {x: max(select(results, "mixer", x), key=lambda r: r["accuracy"]) for x in values_of(results, "mixer")}


def build(mixer: str, task: Task, seed: int) -> LanguageModel:
    """Two layers of a mixer; softmax, which has no convolution of its own, follows one."""
    sizes = {"heads": HEADS, "key_dim": KEY_DIM.get(mixer, FEATURES), "value_dim": VALUE_DIM}
    linear = {"mixer": mixer, **sizes, "convolution": CONVOLUTION}
    layers = attention() if mixer == "softmax" else [linear, linear]
    context = task.test[-1].tokens
    return model_without_mlps(layers, vocabulary=task.vocabulary, d_model=D_MODEL, context=context, seed=seed)


def attention() -> list[dict[str, Any]]:
    """A short convolution, in a layer whose state of one feature holds little but the last value, and softmax."""
    gated = {"mixer": "deltanet", "feature": "softmax", "key_dim": 1, "value_dim": D_MODEL // HEADS}
    softmax = {"mixer": "softmax", "rotary_base": NEARLY_NO_POSITIONS}
    return [{**gated, "heads": HEADS, "convolution": 3}, {**softmax, "heads": HEADS}]


def ask(draw: torch.Generator, task: Task, form: Slice, rows: int) -> Examples:
    return multi_query_recall(draw, rows, form.tokens, form.pairs, task.vocabulary)


def batch(task: Task, seed: int, step: int) -> Examples:
    """New examples for every step, of a slice drawn for it."""
    draw = generator(seed, step, 0)
    form = task.train[int(torch.randint(len(task.train), (), generator=draw))]
    return ask(draw, task, form, task.batch // form.tokens)
