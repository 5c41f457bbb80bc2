"""What it costs to round states and weights, and how that adds up over a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.base.tensors import map_tensors
from rebracket.lab.base.drawing import draw_legend_outside, draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points, select
from rebracket.lab.base.learning import at_best_rates
from rebracket.lab.base.pairs import generator, unit_vectors
from rebracket.lab.base.text import (
    CHOICE,
    along,
    by_position,
    doubled,
    held_out_bits,
    language_model,
    long_texts,
    read_on,
    train,
    unchanged,
)
from rebracket.lab.base.verdict import Check, Verdict, largest_deviation
from rebracket.lm.cache import ModelCache
from rebracket.lm.model import LanguageModel
from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

K, V, N = 32, 48, 8
"""Of a state under random keys and values of length 1, and how many of them."""
DECAY = 0.99
RULES = ("additive", "decayed", "delta", "gated delta")
ROUNDED: Mapping[Size, Sequence[int]] = {"tiny": [64], "quick": [1, 64], "full": [1, 16, 64, 256]}
"""Tokens after which such a state is rounded."""
MOST = 128
"""How often."""

D_MODEL, PARAMETERS, HEADS, KEY_DIM = 64, 120_000, 2, 32
MIXERS: Mapping[Size, Sequence[str]] = {
    "tiny": ["linear_transformer", "gated_deltanet"],
    "quick": ["linear_transformer", "gated_deltanet", "deltanet"],
    "full": ["linear_transformer", "gated_deltanet", "deltanet", "gla", "kda", "retnet", "mamba2", "softmax"],
}
STEPS: Mapping[Size, int] = {"tiny": 40, "quick": 100, "full": 400}
RATES: Mapping[Size, Sequence[float]] = {"tiny": [6e-3], "quick": [6e-3], "full": [6e-3, 3e-3, 1.2e-2]}
FIRST = 128
"""Bits are told of the first 128 tokens, of those up to 256, and so on."""
ROWS, PIECE = 4, 64
"""Texts that are read, and tokens after which a state is rounded where that is not after every one."""
TOKENS: Mapping[Size, tuple[int, int]] = {"tiny": (1024, 256), "quick": (8192, 2048), "full": (32768, 8192)}
"""Tokens of a text where the state is rounded after every piece, and where it is after every token."""


def to_bfloat16(x: Tensor) -> Tensor:
    """The nearest numbers of bfloat16, 8 binary digits each."""
    return x.to(torch.bfloat16).to(x.dtype)


def to_int8(x: Tensor) -> Tensor:
    """Multiples of one number for every last axis, of which 127 are its largest entry."""
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / step).round() * step


WATCHED = "int8 state, every piece"
SUMS, FORGETTING = ("linear_transformer",), ("gated_deltanet", "deltanet", "gla", "kda", "retnet", "mamba2")
MOST_ADDED = 0.01
"""Bits per byte."""
LAW = "theory: roundings add up as independent ones; of 3,000 and more numbers each"
RISING = "theory: under addition the error of the state grows as the root of the roundings, from 16 to 128 by 2.8"
LEVEL = "theory: 1, where what was rounded long ago is forgotten"
STALLS = "bfloat16 state, every token"
STALLED = (
    "theory: of equal terms those after the first 256 to 512 are lost; 0.72 at seeds 0 and 1, which led to the claim"
)
PILOT = "pilot at seed 1000: at most 0.002"
SHOWN = ("bfloat16 state, every token", "int8 state, every piece", "int8 weights")
"""Which of the drifts are drawn."""
FORMATS: Mapping[str, Callable[[Tensor], Tensor]] = {"bfloat16": to_bfloat16, "int8": to_int8}


@final
class Precision(Experiment):
    """The error of rounded states against its formula, and bits per byte of models that keep them or such weights."""

    question = "How many digits do states and weights need, and does rounding add up over a text?"
    claim = (
        "m roundings of relative error e make an error of e ((m + 1) / 2)^(1/2) in a state under addition and a "
        "constant one where something is forgotten (within 10 %); of trained models they change a token's code ever "
        "more under a sum and no more elsewhere, and states or weights in bfloat16 or int8 cost at most 0.01 bits per "
        "byte, but for a sum in bfloat16 that is rounded after every token, of whose norm less than 0.9 is left after "
        "2,048 and more."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        errors = points({"rule": RULES, "format": list(FORMATS), "every": ROUNDED[size]})
        piecewise, tokenwise = TOKENS[size]
        lengths = {"tokens": [piecewise], "by token": [tokenwise]}
        return [*errors, *points({"steps": [STEPS[size]], "rate": RATES[size], "mixer": MIXERS[size], **lengths})]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        return rounded_states(cell) if "rule" in cell else rounded_models(cell)

    def verdict(self, results: Sequence[Result]) -> Verdict:
        states, models = parted(results)
        off = largest_deviation(pair for r in states for pair in against_law(r))
        sums = [r for r in models if r.cell["mixer"] in SUMS]
        added = [
            x
            for r in models
            for name, x in r.numbers.items()
            if " adds " in name and not (r in sums and STALLS in name)
        ]
        rising = [rise(r) for r in sums]
        left = [r[f"norm left, {STALLS}"] for r in sums]
        level = [rise(r) for r in models if r.cell["mixer"] in FORGETTING]
        return Verdict.of(
            Check("error of rounded states off its formula by", off, high=0.1, source=LAW),
            Check.every("bits per byte that rounding adds", added, high=MOST_ADDED, source=PILOT),
            Check.every("norm left of a sum in bfloat16", left, high=0.9, source=STALLED),
            Check.every("change of a token's bits under a sum, late over early", rising, low=1.5, source=RISING),
            Check.every("and where something is forgotten", level, 0.7, 1.4, source=LEVEL),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        figure.set_size_inches(10, 7)
        panels = list(figure.subplots(2, 2).flat)
        states, models = parted(results)
        draw_law(panels[0], states)
        for axes, name in zip(panels[1:], SHOWN, strict=True):
            for place, r in enumerate(models):
                draw_line(axes, *along(r, f"{name} changes"), color=f"C{place}", label=str(r.cell["mixer"]))
            axes.set_xscale("log", base=2)
            axes.set(yscale="log", xlabel="position, tokens", ylabel="change of a token's code, bits", title=name)
        draw_legend_outside(panels[1])


def rise(result: Result) -> float:
    """How much more a rounded state changes the last half of the text than an eighth of the way before it."""
    changes = along(result, f"{WATCHED} changes")[1]
    return changes[-1] / changes[-4]


def parted(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The results of states under random keys, and of models at their best rates."""
    states = plain_means([r for r in results if "rule" in r.cell])
    return states, at_best_rates([r for r in results if "rule" not in r.cell])


def against_law(result: Result) -> list[tuple[float, float]]:
    """The error after each number of roundings, and what the formula says."""
    return [(x, law(result.cell, result["once"], m)) for m, x in zip(*along(result, "error"), strict=True)]


def draw_law(axes: Axes, states: Sequence[Result]) -> None:
    """Errors of states that are rounded after every token, or as often as was measured, and their formula."""
    least = min(int(r.cell["every"]) for r in states)
    for place, r in enumerate(select(select(states, "every", least), "format", "bfloat16")):
        color, (times, errors) = f"C{place}", along(r, "error")
        draw_line(axes, times, errors, color=color, label=str(r.cell["rule"]), style="")
        axes.plot(times, [float(x) for _, x in against_law(r)], color=color)
    axes.set(xscale="log", yscale="log", xlabel="roundings", ylabel="relative error of the state")
    axes.set_title("bfloat16, random keys; lines: formula")
    axes.legend(fontsize="small")


def rounded_states(cell: Cell) -> dict[str, float]:
    """The error of a state that was rounded m times, and what its formula says, for m = 1, 2, 4, ..."""
    rule, every, to = str(cell["rule"]), int(cell["every"]), FORMATS[str(cell["format"])]
    draw, found = generator(every, int(cell["seed"])), {}
    exact = rounded = State.zeros(N, 1, K, V, dtype=torch.float64)
    once = 0.0
    for m in range(1, MOST + 1):
        k, v = (unit_vectors(draw, N, every, 1, size).double() for size in (K, V))
        exact = after(exact, k, v, rule)
        rounded = map_tensors(after(rounded, k, v, rule), lambda _, x: to(x))
        once += relative_error(to(exact.memory), exact.memory) ** 2 / MOST
        if m in doubled(1, MOST):
            found[f"error {m}"] = relative_error(rounded.memory, exact.memory)
    return {**found, "once": math.sqrt(once)}


def after(state: State, k: Tensor, v: Tensor, rule: str) -> State:
    """The state after another piece of text."""
    log_decay = torch.tensor([math.log(DECAY)], dtype=k.dtype) if rule in ("decayed", "gated delta") else None
    write = Delta(1.0) if rule in ("delta", "gated delta") else Additive()
    return linear_attention(k, k, v, log_decay=log_decay, write=write, state=state).state


def law(cell: Cell, once: float, m: int) -> float:
    """The relative error after m roundings, each of relative error e, that add up as independent ones.

    e (sum_i a^(m-i) n_i / n_m)^(1/2), i = 1..m, where a is what a piece leaves of a squared norm and n_i the squared
    norm after i pieces, in proportion to 1 - a^i: e ((m + 1) / 2)^(1/2) under addition, about e / (1 - a)^(1/2) after
    long where something is forgotten.
    """
    rule, every = str(cell["rule"]), int(cell["every"])
    token = (DECAY**2 if rule in ("decayed", "gated delta") else 1) * (1 - 1 / K if "delta" in rule else 1)
    left = token**every
    norms = [float(i) if left == 1 else 1 - left**i for i in range(1, m + 1)]
    return once * math.sqrt(sum(left ** (m - i) * norm / norms[-1] for i, norm in enumerate(norms, 1)))


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def rounded_models(cell: Cell) -> dict[str, float]:
    """Trains a model; what rounding adds to the bits per byte of long texts, of the tokens up to each place."""
    seed = int(cell["seed"])
    layers = 2 * [{"mixer": cell["mixer"], "heads": HEADS, "key_dim": KEY_DIM}]
    model = language_model(layers, d_model=D_MODEL, parameters=PARAMETERS, seed=seed)
    trained = train(model, int(cell["steps"]), float(cell["rate"]), seed)
    long, short = long_texts(ROWS, int(cell["tokens"])), long_texts(ROWS, int(cell["by token"]))
    return {
        "trained": float(trained),
        "chosen by": held_out_bits(model, CHOICE),
        **drift_of_states(model, long, PIECE, "piece"),
        **drift_of_states(model, short, 1, "token"),
        **drift_of_weights(model, long),
    }


def drift_of_states(model: LanguageModel, texts: Tensor, piece: int, name: str) -> dict[str, float]:
    """What states that are rounded after every piece do, and their norm at the end over that of exact ones."""
    found, (exact, kept) = {}, read(model, texts, PIECE, unchanged)
    for store, to in FORMATS.items():
        nats, rounded = read(model, texts, piece, partial(with_rounded_state, to=to))
        found |= drift(f"{store} state, every {name}", texts, nats - exact)
        found[f"norm left, {store} state, every {name}"] = norm(rounded) / norm(kept)
    return found


def drift_of_weights(model: LanguageModel, texts: Tensor) -> dict[str, float]:
    """What rounded weights do."""
    found, (exact, _) = {}, read(model, texts, PIECE, unchanged)
    for store, to in FORMATS.items():
        nats, _ = read(with_rounded_weights(model, to), texts, PIECE, unchanged)
        found |= drift(f"{store} weights", texts, nats - exact)
    return found


def read(
    model: LanguageModel, texts: Tensor, piece: int, change: Callable[[ModelCache], ModelCache]
) -> tuple[Tensor, ModelCache]:
    """Code lengths [R,T] of texts, and the cache at their end."""
    pieces = list(read_on(model, texts, piece, change))
    return torch.cat([nats for nats, _ in pieces], 1), pieces[-1][1]


def drift(name: str, texts: Tensor, more: Tensor) -> dict[str, float]:
    """Of the tokens up to each place from the one before: bits per byte more, and the mean change of a token's bits.

    The first is what rounding costs; errors of either sign cancel in it. The second, the root of the mean square, is in
    proportion to the error of the state.
    """
    ends = doubled(FIRST, texts.shape[1] - 1)
    added = by_position(more, texts[:, 1:], ends)
    changed = [float(more[:, a:b].square().mean().sqrt()) / math.log(2) for a, b in pairwise((0, *ends))]
    return {f"{name} adds {end}": x for end, x in zip(ends, added, strict=True)} | {
        f"{name} changes {end}": x for end, x in zip(ends, changed, strict=True)
    }


def norm(cache: ModelCache) -> float:
    """The norm of all states together."""
    return math.sqrt(sum(float(x.double().square().sum()) for name, x in cache.tensors().items() if rounds(name, x)))


def rounds(name: str, x: Tensor) -> bool:
    """Whether a tensor of a cache is rounded: memories, sums of keys, keys and values, but no tails or counts."""
    return ".state." in name and x.is_floating_point()


def with_rounded_state(cache: ModelCache, to: Callable[[Tensor], Tensor]) -> ModelCache:
    """The cache with every state rounded."""
    return map_tensors(cache, lambda name, x: to(x) if rounds(name, x) else x)


def with_rounded_weights(model: LanguageModel, to: Callable[[Tensor], Tensor]) -> LanguageModel:
    """A copy whose matrices are rounded, each row by itself; vectors, such as norms and rates, are not."""
    copy = LanguageModel(model.config)
    copy.load_state_dict({name: to(x) if x.ndim > 1 else x for name, x in model.state_dict().items()})
    return copy
