"""How large and how exact a state is after very many tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points, select
from rebracket.lab.base.pairs import generator, unit_vectors
from rebracket.lab.base.verdict import Check, Verdict, largest_deviation
from rebracket.nn.norms import HeadNorm
from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K, V = 32, 48
N = 4
"""Sequences in one cell."""
QUERIES = 256
"""Random queries that read each state at the end."""
DECAY = 0.99
LONG = 1.5
"""The length of keys that were not normalized: beta |k|^2 > 2 overshoots by more than it corrects."""
PIECE = 256
"""Tokens after which a state that is stored in bfloat16 is rounded."""
TOKENS: Mapping[Size, Sequence[int]] = {
    "tiny": (512, 4096),
    "quick": (1024, 8192, 65536),
    "full": (1024, 8192, 65536, 262144, 1048576),
}
RULES = ("additive", "decayed", "delta", "gated delta")
ERASING = ("delta", "gated delta")


@final
class Stability(Experiment):
    """The norm of a state, and its error in float32 and after rounding to bfloat16, against the number of tokens."""

    question = "Which states stay bounded and exact over a million tokens?"
    claim = (
        "With unit values and keys of length L the squared norm of the state is L^2 (1 - a^T) / (1 - a), where a is "
        "what a write leaves of what was there: 1 under addition, whose state is L^2 T and never stops growing, g^2 "
        "with a decay g, 1 + (L^4 - 2 L^2) / K under the delta rule, the product with both (within 10 %). Unit keys "
        "make the delta rule's a less than 1. Keys of length 1.5 that nobody normalized make it 1.018, and the state "
        "grows past any bound, unless a decay of 0.99 makes up for it (within 30 %, a few keys decide). What a query "
        "reads has the squared length |S|^2 / K, so without an output norm it grows with the text where the state "
        "does; with one it is of the same size after any text, under any rule and key, and no less exact: state and "
        "output stay within 1e-4 of float64. Kept in bfloat16 between pieces, an additive state drifts ever further "
        "from the exact one; with a decay or the delta rule the error stays below 2 % however long the text."
    )

    def grid(self, size: Size) -> list[Cell]:
        unit_keys = points({"rule": RULES, "length": [1.0], "T": TOKENS[size]})
        return [*unit_keys, *points({"rule": RULES, "length": [LONG], "T": [min(TOKENS[size])]})]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        rule, length, T, seed = str(cell["rule"]), float(cell["length"]), int(cell["T"]), int(cell["seed"])
        kept = rounded = State.zeros(N, 1, K, V)
        exact, draw = State.zeros(N, 1, K, V, dtype=torch.float64), generator(T, seed)
        for _ in range(T // PIECE):
            k, v = length * unit_vectors(draw, N, PIECE, 1, K), unit_vectors(draw, N, PIECE, 1, V)
            exact = after(exact, k.double(), v.double(), rule)
            kept, rounded = after(kept, k, v, rule), after(rounded, k, v, rule)
            rounded = rounded.to(torch.bfloat16).to(torch.float32)
        return {
            "squared norm": float(exact.memory.square().sum((-1, -2)).mean()),
            "float32 error": relative_error(kept.memory, exact.memory),
            "bfloat16 error": relative_error(rounded.memory, exact.memory),
            **outputs(kept, exact, unit_vectors(draw, N, QUERIES, K)),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        ends = select(results, "length", 1)
        erased = [r for r in results if r.cell["length"] != 1 and r.cell["rule"] in ERASING]
        growing, decayed = (r["squared norm"] for r in erased)
        plain = [(r, norm(r.cell)) for r in results if r not in erased]
        off = largest_deviation((r["squared norm"], expected) for r, expected in plain)
        off_erased = largest_deviation((r["squared norm"], norm(r.cell)) for r in erased)
        read = largest_deviation((r["output"], expected / K) for r, expected in plain)
        worst = max(max(r["float32 error"], r["output error"], r["normed error"]) for r in results)
        additive = [r["bfloat16 error"] for r in select(ends, "rule", "additive")]
        others = [r["bfloat16 error"] for r in ends if r.cell["rule"] != "additive"]
        return Verdict.of(
            Check("squared norm off its formula by", off, high=0.1),
            Check("and with keys of length 1.5 under the delta rule by", off_erased, high=0.3),
            Check("squared norm of the delta rule with those", growing, low=1e5),
            Check("and with a decay", decayed, high=1e3),
            Check("squared length of what is read off |S|^2 / K by", read, high=0.1),
            Check("mean square of it after the output norm, least", min(r["normed output"] for r in results), 0.99),
            Check("and largest", max(r["normed output"] for r in results), high=1.01),
            Check("float32 error of states, outputs and normed outputs", worst, high=1e-4),
            Check("bfloat16 error of additive states, longest over shortest", additive[-1] / additive[0], low=1.5),
            Check("bfloat16 error of the others", max(others), high=0.02),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for place, rule in enumerate(RULES):
            mine = select(select(results, "length", 1), "rule", rule)
            T, color = [int(r.cell["T"]) for r in mine], f"C{place}"
            left.plot(T, [r["squared norm"] for r in mine], "o", color=color, label=rule)
            left.plot(T, [norm(r.cell) for r in mine], color=color)
            right.plot(T, [r["float32 error"] for r in mine], "o-", color=color)
            right.plot(T, [r["bfloat16 error"] for r in mine], "x--", color=color)
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", xlabel="T, tokens")
        left.set(ylabel="squared norm of the state", title="lines: formulas")
        right.set(ylabel="relative error of the state", title="solid: float32, dashed: bfloat16")
        left.legend()


def after(state: State, k: Tensor, v: Tensor, rule: str) -> State:
    """The state after another piece of text."""
    return linear_attention(k, k, v, log_decay=log_decay(rule), write=write(rule), state=state).state


def write(rule: str) -> WriteRule:
    return Delta(1.0) if rule in ERASING else Additive()


def log_decay(rule: str) -> Tensor | None:
    return torch.tensor([math.log(DECAY)]) if rule in ("decayed", "gated delta") else None


def norm(cell: Cell) -> float:
    """The mean squared norm after T tokens: x <- a x + L^2, where a is what a write leaves of what was there."""
    rule, square, T = str(cell["rule"]), float(cell["length"]) ** 2, int(cell["T"])
    decayed = DECAY**2 if rule in ("decayed", "gated delta") else 1.0
    kept = decayed * (1 + square * (square - 2) / K if rule in ERASING else 1.0)
    return square * (T if kept == 1 else (1 - kept**T) / (1 - kept))


@torch.no_grad()
def outputs(kept: State, exact: State, q: Tensor) -> Mapping[str, float]:
    """What queries [N,QUERIES,K] read from a state, without and with an output norm."""
    found, wanted, output_norm = q @ kept.memory[:, 0], q.double() @ exact.memory[:, 0], HeadNorm(V)
    normed = output_norm(found)
    return {
        "output": float(wanted.square().sum(-1).mean()),
        "normed output": float(normed.square().mean()),
        "output error": relative_error(found, wanted),
        "normed error": relative_error(normed, output_norm.double()(wanted)),
    }


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())
