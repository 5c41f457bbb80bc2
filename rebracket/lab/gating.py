"""What a gate on the output costs in recall and buys in language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal, final

import torch

from rebracket.lab.base.drawing import draw_legend_outside, draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, points, select
from rebracket.lab.base.learning import Examples, at_best_rates, label_accuracy, learn, model_without_mlps
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.text import CHOICE, DIVERGED, RESULT, held_out_bits, language_model, train
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn.attention import LinearAttention
from rebracket.nn.norms import HeadNorm
from rebracket.nn.projections import Projection
from rebracket.train.config import OptimizerConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS, KEY_DIM, VALUE_DIM, CONVOLUTION = 2, 16, 32, 4
"""Of every layer and width, so that the state is of one size."""
PARAMETERS = {32: 50_000, 64: 120_000, 128: 400_000}
"""Of a language model by its width; what a gate has more, its MLPs have less."""
GATES: Mapping[str, Literal["silu", "sigmoid"] | None] = {"none": None, "silu": "silu", "sigmoid": "sigmoid"}
VOCABULARY, SEEN, ASKED = 132, (2, 4, 8, 16), (4, 8, 16, 32)
"""Of recall: its tokens; pairs of a training step, drawn from these, and of the tests; texts have 4 tokens a pair."""
BATCH, ROWS = 1024, 64
"""Tokens of a training step of recall, and texts of a test."""
BITS = "bits per byte of held-out text"
COSTS = "pilot at seed 1000: SiLU costs 0.048, the sigmoid 0.005"
PILOT = "pilot at seed 1000: SiLU saves 0.09, the sigmoid 0.12"
MIXERS: Mapping[Size, Sequence[str]] = {
    "tiny": ["gated_deltanet"],
    "quick": ["gated_deltanet"],
    "full": ["gated_deltanet", "gla", "deltanet"],
}
WIDTHS: Mapping[Size, Sequence[int]] = {"tiny": [32], "quick": [64], "full": [64, 32, 128]}
STEPS: Mapping[Size, Mapping[str, int]] = {
    "tiny": {"recall": 150, "language": 30},
    "quick": {"recall": 400, "language": 100},
    "full": {"recall": 800, "language": 400},
}
RATES: Mapping[Size, Mapping[str, Sequence[float]]] = {
    "tiny": {"recall": [1e-2], "language": [6e-3]},
    "quick": {"recall": [1e-2], "language": [6e-3]},
    "full": {"recall": [1e-2, 3.16e-3, 3.16e-2], "language": [6e-3, 3e-3, 1.2e-2]},
}


@final
class Gating(Experiment):
    """The same layers without a gate on what is read, with SiLU and with a sigmoid, in recall and in language."""

    question = "What does a gate on the output of a layer cost in recall, and what does it buy in language?"
    claim = (
        "In a short training a gate of SiLU, which begins at 0, costs at least 0.02 of recall and one of a sigmoid, "
        "which begins at a half, at least 0.01 less than that, while in language the better of them saves 0.03 bits "
        "per byte and more, and the other one is within 0.08 of it."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        # Rates before mixers, so that an interrupted run has as many of one mixer as of another.
        return [
            cell
            for task, steps in STEPS[size].items()
            for cell in points(
                {
                    "task": [task],
                    "d_model": WIDTHS[size],
                    "steps": [steps],
                    "rate": RATES[size][task],
                    "mixer": MIXERS[size],
                    "gate": list(GATES),
                }
            )
        ]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        return recall(cell) if cell["task"] == "recall" else language(cell)

    def verdict(self, results: Sequence[Result]) -> Verdict:
        recall, language = (by_gate(select(results, "task", task)) for task in ("recall", "language"))
        costs = [x["none"] - x["silu"] for x in recall.values()]
        opens = [x["sigmoid"] - x["silu"] for x in recall.values()]
        saves = [x["none"] - min(x["silu"], x["sigmoid"]) for x in language.values()]
        apart = [x["sigmoid"] - x["silu"] for x in language.values()]
        counts = [
            max(same) / min(same) - 1
            for width in {r.cell["d_model"] for r in results}
            for same in [[float(r["parameters"]) for r in select(results, "d_model", width) if "bits" in r.numbers]]
        ]
        return Verdict.of(
            Check("parameters of language models apart by", max(counts), high=0.02, source="whole units of the MLPs"),
            Check.every("recall that SiLU costs", costs, low=0.02, source=COSTS),
            Check.every("recall that a sigmoid has more than SiLU", opens, low=0.01, source=COSTS),
            Check.every("bits per byte that the better gate saves", saves, low=0.03, source=PILOT),
            Check.every("bits per byte between the gates", apart, -0.08, 0.08, source=PILOT),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        for axes, task, unit in zip(figure.subplots(1, 2), STEPS["full"], ("accuracy", BITS), strict=True):
            for place, (name, found) in enumerate(by_gate(select(results, "task", task)).items()):
                draw_line(
                    axes, list(range(len(found))), list(found.values()), color=f"C{place % 10}", label=name, style=""
                )
            axes.set_xticks(range(len(GATES)), list(GATES))
            axes.set(xlabel="gate on the output", ylabel=unit, title=f"{task}, at the best rate")
        draw_legend_outside(axes)


def by_gate(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """The number that counts of each gate, at its best rate, by mixer and width."""
    found: dict[str, dict[str, float]] = {}
    for r in at_best_rates(results):
        name = f"{r.cell['mixer']}, {r.cell['d_model']}"
        found.setdefault(name, {})[str(r.cell["gate"])] = r["accuracy" if r.cell["task"] == "recall" else "bits"]
    return found


def recall(cell: Cell) -> dict[str, float]:
    """Trains two layers without MLPs on recall; how often they are right."""
    seed, steps = int(cell["seed"]), int(cell["steps"])
    model = model_without_mlps(
        layers(cell), vocabulary=VOCABULARY, d_model=int(cell["d_model"]), context=4 * max(ASKED), seed=seed
    )
    exchange_gates(model, str(cell["gate"]))
    model.init_weights(seed)
    config = OptimizerConfig(learning_rate=float(cell["rate"]), warmup=steps // 10)
    learn(model, lambda step: batch(seed, step), steps, config)
    return {
        **sizes(model),
        "chosen by": 1 - right(model, generator(seed, steps, 1)),
        "accuracy": right(model, generator(seed, steps, 2)),
    }


def language(cell: Cell) -> dict[str, float]:
    """Trains a language model; bits per byte of held-out text."""
    seed, d_model = int(cell["seed"]), int(cell["d_model"])
    model = language_model(
        layers(cell),
        d_model=d_model,
        parameters=PARAMETERS[d_model],
        seed=seed,
        change=lambda model: exchange_gates(model, str(cell["gate"])),
    )
    trained = train(model, int(cell["steps"]), float(cell["rate"]), seed)
    bits = {"chosen by": CHOICE, "bits": RESULT}
    return {**sizes(model), **{x: held_out_bits(model, half) if trained else DIVERGED for x, half in bits.items()}}


def layers(cell: Cell) -> list[dict[str, object]]:
    sizes = {"heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, "convolution": CONVOLUTION}
    return 2 * [{"mixer": cell["mixer"], **sizes}]


def exchange_gates(model: LanguageModel, gate: str) -> None:
    """Gives every layer a norm of each head, and the gate of that name with a projection of full rank, or none."""
    for mixer in model.mixers():
        if not isinstance(mixer, LinearAttention):
            raise TypeError(f"only linear attention has a gate, got {type(mixer).__name__}")
        size, activation = mixer.size, GATES[gate]
        mixer.norm = HeadNorm(size.value_dim, size.norm_eps, activation)
        mixer.gate = Projection(size.d_model, size.heads * size.value_dim) if activation else None


def sizes(model: LanguageModel) -> dict[str, float]:
    return {"parameters": model.parameter_count(), "state bytes": model.state_nbytes(0)}


def batch(seed: int, step: int) -> Examples:
    """New examples for every step, with a number of pairs drawn for it."""
    draw = generator(seed, step, 0)
    pairs = SEEN[int(torch.randint(len(SEEN), (), generator=draw))]
    return multi_query_recall(draw, BATCH // (4 * pairs), 4 * pairs, pairs, VOCABULARY)


def right(model: LanguageModel, draw: torch.Generator) -> float:
    """The mean accuracy over all numbers of pairs."""
    tests = [multi_query_recall(draw, ROWS, 4 * pairs, pairs, VOCABULARY) for pairs in ASKED]
    return fmean(label_accuracy(model, examples) for examples in tests)
