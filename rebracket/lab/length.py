"""What a model trained on short texts makes of long ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.lab.base import text
from rebracket.lab.base.drawing import draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, points, select
from rebracket.lab.base.learning import at_best_rates
from rebracket.lab.base.text import (
    CHOICE,
    along,
    by_position,
    doubled,
    held_out_bits,
    language_model,
    long_texts,
    read_afresh,
    read_on,
    slope,
    state_norm,
    train,
)
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn import presets
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays import Decay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

D_MODEL, PARAMETERS, HEADS, KEY_DIM = 64, 120_000, 2, 32
WINDOW = "window"
"""Softmax attention over the last `REACH` tokens."""
REACH = 64
PAIRS = {"hybrid": ("gated_deltanet", "softmax"), "hybrid, window": ("gated_deltanet", WINDOW)}
"""The two layers of a model; any other name is that of the mixer of both."""
FLOORED = "gla"
"""The mixer whose decays get a floor."""
ROWS = 2
TOKENS: Mapping[Size, int] = {"tiny": 2048, "quick": 65536, "full": 65536}
SHORTER: Mapping[Size, int] = {"tiny": 2048, "quick": 16384, "full": 65536}
"""Tokens that are read; by models with full softmax attention, whose reading costs their square."""
STEPS: Mapping[Size, int] = {"tiny": 40, "quick": 100, "full": 400}
RATES: Mapping[Size, Sequence[float]] = {"tiny": [6e-3], "quick": [6e-3], "full": [6e-3, 3e-3, 1.2e-2]}
MODELS: Mapping[Size, Sequence[str]] = {
    "tiny": ("softmax", "linear_transformer", "gla"),
    "quick": ("softmax", WINDOW, "linear_transformer", "gated_deltanet", "gla"),
    "full": (*presets.names(), WINDOW, *PAIRS),
}
FLOORS: Mapping[Size, Sequence[float]] = {
    "tiny": [1.0],
    "quick": [1.0],
    "full": [0.5, 0.9, 0.99, 0.999, 1.0],
}
"""The least that a token's decay may leave; 1 is no decay."""
GATED = ("gla", "gated_deltanet", "kda", "hgrn2")
GROWING = ("softmax", "hybrid", "linear_transformer", "performer", "cosformer", "lightning")
"""Models whose caches grow, or whose states add up with little or no decay."""
KEPT, LOST = 0.02, 0.01
"""Bits per byte: the most lost by what settles, the least by what does not."""
SUM = "theory: a sum of writes whose mean is not 0 grows as the tokens, one of mean 0 as their root"
SETTLED = "theory: slope 0; single states differ by a third, over three doublings 0.14"
PILOT = "pilot at seed 1000: settled -0.002 to -0.005, softmax 0.02, a sum 0.07, no decay 0.06 more"


@final
class Length(Experiment):
    """Bits per byte against position, carried on from token to token and begun afresh with every context."""

    question = "What becomes of a model that was trained on short texts and reads a long one on and on?"
    claim = (
        "Trained on 256 tokens and read on to tens of thousands, a model whose state settles (decays, the delta rule) "
        "or that sees a window loses at most 0.02 bits per byte against a fresh start every 256 tokens; one whose "
        "state is a sum, which grows as the text, loses 0.01 and more, as does softmax attention and a gated layer "
        "whose decay gets a floor of 1."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        common = {"steps": [STEPS[size]], "rate": RATES[size]}
        cells = points({"model": MODELS[size], "floor": [0.0], **common})
        floors = points({"model": [FLOORED], "floor": FLOORS[size], **common})
        return [{**cell, "tokens": read_to(str(cell["model"]), size)} for cell in (*cells, *floors)]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        seed, ends = int(cell["seed"]), doubled(text.CONTEXT, int(cell["tokens"]))
        model = build(str(cell["model"]), float(cell["floor"]), seed)
        trained = train(model, int(cell["steps"]), float(cell["rate"]), seed)
        texts = long_texts(ROWS, ends[-1])
        pieces = [(nats, state_norm(cache)) for nats, cache in read_on(model, texts, text.CONTEXT)]
        carried = by_position(torch.cat([nats for nats, _ in pieces], 1), texts[:, 1:], ends)
        fresh = by_position(read_afresh(model, texts), texts[:, 1:], ends)
        norms = {f"norm at {end}": pieces[end // text.CONTEXT - 1][1] for end in ends}
        return {
            "trained": float(trained),
            "chosen by": held_out_bits(model, CHOICE),
            "parameters": model.parameter_count(),
            "state bytes": model.state_nbytes(ends[-1]),
            **{f"excess to {end}": a - b for end, a, b in zip(ends, carried, fresh, strict=True)},
            **norms,
            "slope": slope(list(norms.values())) if any(norms.values()) else 0.0,
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        chosen = at_best_rates(results)
        free = select(chosen, "floor", 0.0)
        found = {str(r.cell["model"]): r for r in free}
        (floored,) = select(chosen, "floor", 1.0)
        counts = [float(r["parameters"]) for r in chosen]
        sums = [found["linear_transformer"]["slope"], floored["slope"]]
        gated = [r["slope"] for name, r in found.items() if name in GATED]
        settled = [at_end(r) for name, r in found.items() if name not in GROWING]
        lost = at_end(floored) - at_end(found[FLOORED])
        return Verdict.of(
            Check("parameters apart by", max(counts) / min(counts) - 1, high=0.02, source="whole units of the MLPs"),
            Check.every("slope of the norm of a sum", sums, 0.75, 1.1, source=SUM),
            Check.every("slope of the norm where decays see the tokens", gated, -0.15, 0.15, source=SETTLED),
            Check.every("what settled states and windows lose", settled, high=KEPT, source=PILOT),
            Check("what softmax loses", at_end(found["softmax"]), low=LOST, source=PILOT),
            Check("what linear_transformer loses", at_end(found["linear_transformer"]), low=LOST, source=PILOT),
            Check("what a decay that may not forget loses more", lost, low=LOST, source=PILOT),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        chosen = at_best_rates(results)
        for place, r in enumerate(select(chosen, "floor", 0.0)):
            style = {"color": f"C{place % 10}", "label": str(r.cell["model"])}
            draw_line(left, *along(r, "excess to"), **style)
            if r["slope"]:
                draw_line(middle, *along(r, "norm at"), **style)
        for axes in (left, middle):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("position, tokens")
        left.set(ylabel="bits per byte above a fresh start", title="Trained on 256 tokens, read on")
        left.legend(fontsize="x-small")
        middle.set(yscale="log", ylabel="norm of the state", title="Sums grow with the text")
        draw_floors(right, sorted(select(chosen, "model", FLOORED), key=lambda r: float(r.cell["floor"])))


def draw_floors(axes: Axes, results: Sequence[Result]) -> None:
    """What the end of the text costs, by the least that a decay leaves."""
    draw_line(axes, list(range(len(results))), [at_end(r) for r in results], color="C0", label=FLOORED)
    axes.set_xticks(range(len(results)), [f"{r.cell['floor']:g}" for r in results])
    axes.set(xlabel="least that a token's decay leaves", ylabel="bits per byte above a fresh start")
    axes.set_title(f"{FLOORED}, at the end")


def at_end(result: Result) -> float:
    """The bits per byte of the last half of the text above those of a fresh start."""
    return along(result, "excess to")[1][-1]


def read_to(model: str, size: Size) -> int:
    """Tokens that a model reads."""
    return SHORTER[size] if "softmax" in PAIRS.get(model, (model,)) else TOKENS[size]


def build(name: str, floor: float, seed: int) -> LanguageModel:
    """A model of two layers, its decays above a floor where that is not 0."""
    first, second = PAIRS.get(name, (name, name))

    def change(model: LanguageModel) -> None:
        for mixer in model.mixers():
            if floor and isinstance(mixer, LinearAttention) and mixer.decay is not None:
                mixer.decay = FlooredDecay(mixer.decay, floor)

    layers = [layer(first), layer(second)]
    return language_model(layers, d_model=D_MODEL, parameters=PARAMETERS, seed=seed, change=change)


def layer(mixer: str) -> dict[str, object]:
    """The table of one layer."""
    kind = {"mixer": "softmax", "window": REACH} if mixer == WINDOW else {"mixer": mixer}
    return {**kind, "heads": HEADS, "key_dim": KEY_DIM}


@final
class FlooredDecay(Decay):
    """A decay of which a token leaves a least part: a = floor + (1 - floor) b, b that of another decay."""

    def __init__(self, inner: Decay, floor: float) -> None:
        super().__init__()
        self.inner, self.floor = inner, floor

    def forward(self, x: Tensor) -> Tensor:
        return (self.floor + (1 - self.floor) * self.inner(x).exp()).log()

    def reset_parameters(self) -> None:
        self.inner.reset_parameters()
