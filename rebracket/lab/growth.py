"""How the state of a trained layer grows over a file, and how old what a query reads is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.lab.base.drawing import draw_legend_outside, draw_line
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, points
from rebracket.lab.base.learning import at_best_rates
from rebracket.lab.base.text import (
    CHOICE,
    along,
    doubled,
    held_out_bits,
    language_model,
    longest_document,
    slope,
    train,
)
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.lm.model import LanguageModel
from rebracket.nn.attention import LinearAttention, Operands
from rebracket.ops.attention import linear_attention
from rebracket.ops.state import Output, State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D_MODEL, PARAMETERS, HEADS, KEY_DIM = 64, 120_000, 2, 32
FIRST = 64
"""Tokens after which the state is looked at for the first time; then at twice as many, and so on."""
SPAN = 256
"""Tokens of a piece: how old what is read at its end is at most, if it was written in it; those of a training text."""
NEAR_END = 32
"""Tokens at the end of a piece over which the share of what is older is averaged."""
OLDER = f"older than {SPAN} at"
AGES = (1, 4, 16, 64, 256)
ADDED, SETTLED = "linear_transformer", ("gla", "gated_deltanet", "kda", "mamba2", "hgrn2")
MIXERS: Mapping[Size, Sequence[str]] = {
    "tiny": ["linear_transformer", "gla"],
    "quick": ["linear_transformer", "deltanet", "gla", "gated_deltanet"],
    "full": ["linear_transformer", "deltanet", "retnet", "gla", "mamba2", "gated_deltanet", "kda", "hgrn2"],
}
STEPS: Mapping[Size, int] = {"tiny": 40, "quick": 100, "full": 400}
RATES: Mapping[Size, Sequence[float]] = {"tiny": [6e-3], "quick": [6e-3], "full": [6e-3, 3e-3, 1.2e-2]}
TOKENS: Mapping[Size, int] = {"tiny": 2048, "quick": 16384, "full": 16384}
"""Of the file, the longest held-out one, as far as it goes."""


SUM = "theory: a sum of writes whose mean is not 0 grows as the tokens, one of mean 0 as their root"
COHERENT = "theory: of a sum of writes that are read alike every token has the same share"
STEADY = "theory: slope 0; single states differ by a third, over three doublings 0.14"
PILOT = "pilot at seed 1000, 40 steps of training: below 0.01"


@final
@dataclass(frozen=True)
class Piece:
    """What was seen of one layer over a piece of text.

    Args:
        states: the memories [H,K,V] after some of its tokens, by the tokens read so far.
        old: the part of what is read that was written before the piece, times all that is read [T,H].
        whole: the square of all that is read [T,H].
    """

    states: Mapping[int, Tensor]
    old: Tensor
    whole: Tensor


@final
class Growth(Experiment):
    """Norm, effective rank and age of what is read, of every linear layer of a trained model over one file."""

    question = "How do the norm and the rank of a state grow over a real file, and how old is what a query reads?"
    claim = (
        "Over a real file the state of a plain sum grows as its tokens, and of what a query reads there after t tokens "
        "1 - 256 / t is older than 256; with a decay that the tokens set the norm settles, and less than half of what "
        "is read is older than a text of the training."
    )
    seeds: Mapping[Size, int] = {"tiny": 2, "quick": 3, "full": 3}

    def grid(self, size: Size) -> list[Cell]:
        axes = {"steps": [STEPS[size]], "rate": RATES[size], "mixer": MIXERS[size], "tokens": [TOKENS[size]]}
        return points(axes)

    def measure(self, cell: Cell) -> Mapping[str, float]:
        seed = int(cell["seed"])
        layers = 2 * [{"mixer": cell["mixer"], "heads": HEADS, "key_dim": KEY_DIM}]
        model = language_model(layers, d_model=D_MODEL, parameters=PARAMETERS, seed=seed)
        trained = train(model, int(cell["steps"]), float(cell["rate"]), seed)
        file = longest_document()[: int(cell["tokens"])]
        return {"trained": float(trained), "chosen by": held_out_bits(model, CHOICE), **seen(model, file)}

    def verdict(self, results: Sequence[Result]) -> Verdict:
        found = {str(r.cell["mixer"]): r for r in at_best_rates(results)}
        added, settled = found[ADDED], [r for name, r in found.items() if name in SETTLED]
        places, older = along(added, OLDER)
        off = [x - (1 - SPAN / place) for place, x in zip(places, older, strict=True)]
        kept = [along(r, OLDER)[1][-1] for r in settled]
        return Verdict.of(
            Check("slope of the norm of a sum", added["slope"], 0.75, 1.1, source=SUM),
            Check.every("older part of what it reads less 1 - 256 / t", off, -0.1, 0.1, source=COHERENT),
            Check.every("slope of the norm with a decay", [r["slope"] for r in settled], -0.15, 0.15, source=STEADY),
            Check.every("older than 256 tokens of what they read", kept, high=0.5, source=PILOT),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        figure.set_size_inches(10, 7)
        (one, two), (three, four) = figure.subplots(2, 2)
        for place, r in enumerate(at_best_rates(results)):
            style = {"color": f"C{place % 10}", "label": str(r.cell["mixer"])}
            for axes, name in {one: "norm at", two: "rank at", three: OLDER, four: "older than"}.items():
                draw_line(axes, *along(r, name), **style)
        places = doubled(2 * SPAN, max(along(results[0], OLDER)[0]))
        (expected,) = three.plot(places, [1 - SPAN / t for t in places], "--", color="0.5", label="1 - 256 / t")
        for axes in (one, two, three):
            axes.set_xlabel("tokens of the file")
        for axes in (one, two, three, four):
            axes.set_xscale("log", base=2)
        one.set(yscale="log", ylabel="norm of the state", title="A sum grows as the file")
        two.set(ylabel=f"effective rank, of {KEY_DIM} at most", title="Directions that are used")
        three.set(ylabel=f"share older than {SPAN} tokens", title="A sum reads all tokens alike")
        three.legend(handles=[expected])
        four.set(xlabel="age, tokens", ylabel="share that is older", title="How old what is read is, late in the file")
        draw_legend_outside(two)


@torch.no_grad()
def seen(model: LanguageModel, file: Tensor) -> dict[str, float]:
    """Means over layers and heads, at places of a file and by the age of what is read."""
    x, found = model.embed(file[None]), []
    for block in model.each_block():
        if not isinstance(block.mixer, LinearAttention):
            raise TypeError(f"only linear attention has a state, got {type(block.mixer).__name__}")
        found.append(numbers(list(pieces(block.mixer, block.mixer_norm(x)))))
        x, _ = block(x, None, None, "auto")
    return {name: fmean(layer[name] for layer in found) for name in found[0]}


def numbers(read: Sequence[Piece]) -> dict[str, float]:
    """What is told of one layer."""
    found, tokens = {}, SPAN * len(read)
    for place, state in ((place, state) for piece in read for place, state in piece.states.items()):
        found |= {f"norm at {place}": mean_norm(state), f"rank at {place}": effective_rank(state)}
    for place in doubled(2 * SPAN, tokens):
        half = read[place // SPAN // 2 : place // SPAN]
        found[f"{OLDER} {place}"] = share(half, slice(SPAN - NEAR_END, SPAN))
    late = read[len(read) // 2 :]
    found |= {f"older than {age}": share(late, slice(age - 1, age)) for age in AGES}
    return found | {"slope": slope([x for name, x in found.items() if name.startswith("norm at ")])}


def mean_norm(state: Tensor) -> float:
    return float(state.flatten(-2).norm(dim=-1).mean())


def effective_rank(state: Tensor) -> float:
    """exp(-sum p log p), p the singular values over their sum, the mean over heads [H,K,V]: 1 to min(K, V).

    Source: Roy and Vetterli 2007.

    Example:
        >>> round(effective_rank(torch.diag(torch.tensor([3.0, 3.0, 3.0, 0.0]))[None]), 3)
        3.0
    """
    values = torch.linalg.svdvals(state.double())
    return float(torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp().mean())


def share(read: Sequence[Piece], places: slice) -> float:
    """The share of what the tokens at some places of pieces read that was written before their piece, mean over heads.

    What is read is linear in the values: its part from older values is what the same tokens read when they write
    none, y = y_old + y_new, and the share is sum <y_old, y> / sum <y, y>.
    """
    old = torch.stack([piece.old[places] for piece in read]).sum((0, 1))
    whole = torch.stack([piece.whole[places] for piece in read]).sum((0, 1))
    return float((old / whole).mean())


def pieces(mixer: LinearAttention, x: Tensor) -> Iterator[Piece]:
    """What is seen of a layer that reads x [1,T,d_model], piece by piece."""
    cache = mixer.empty_cache(1)
    given, state = mixer.operands(x, None, None), mixer.state_of(cache, 1)
    for start in range(0, x.shape[1] - SPAN + 1, SPAN):
        places = [place for place in doubled(FIRST, x.shape[1]) if start < place <= start + SPAN]
        states = {place: run(mixer, given, state, start, place)[1].memory[0] for place in places}
        read, after = run(mixer, given, state, start, start + SPAN)
        old, _ = run(
            mixer, replace(given, written=replace(given.written, v=0 * given.written.v)), state, start, start + SPAN
        )
        yield Piece(states, (old * read).sum(-1)[0], read.square().sum(-1)[0])
        state = after


def run(mixer: LinearAttention, given: Operands, state: State, start: int, end: int) -> Output:
    """The operator of a layer over tokens start to end of its operands, from the state before them."""
    written, log_decay = given.written, given.log_decay
    return linear_attention(
        given.q[:, start:end],
        written.k[:, start:end],
        written.v[:, start:end],
        log_decay=log_decay if log_decay is None or log_decay.ndim == 1 else log_decay[:, start:end],
        write=written.rule.map(lambda x: x[:, start:end] if x.ndim > 1 else x),
        bonus=written.bonus,
        normalize=mixer.normalize,
        scale=mixer.scale,
        state=state,
    )
