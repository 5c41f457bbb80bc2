"""What becomes of a state over very many tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.lab.base import Cell, Check, Experiment, Result, Size, Verdict, furthest, generator, points, unit
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
DECAY = 0.99
LONG = 1.5
"""The length of keys that were not normalized: beta |k|^2 > 2 overshoots by more than it corrects."""
PIECE = 256
"""Tokens after which a state that is kept in bfloat16 is rounded."""
TOKENS: Mapping[Size, Sequence[int]] = {
    "tiny": (512, 4096),
    "quick": (1024, 8192, 65536),
    "full": (1024, 8192, 65536, 262144, 1048576),
}
RULES = ("additive", "decayed", "delta", "gated delta")


@final
class Stability(Experiment):
    """The norm of a state, its error in float32 and after rounding to bfloat16, against the number of tokens."""

    question = "Which states stay bounded and exact over a million tokens?"
    claim = (
        "With unit keys and values the squared norm of the state is T under addition, which never stops growing, "
        "(1 - g^(2 T)) / (1 - g^2) with a decay g, and K (1 - (1 - 1/K)^T) under the delta rule, with both "
        "(1 - a^T) / (1 - a) for a = g^2 (1 - 1/K) (within 10 %); in float32 all of them stay within 1e-4 of float64. "
        "Under the delta rule with keys of length 1.5 that nobody normalized the state grows past any bound. Kept in "
        "bfloat16 between pieces, an additive state drifts ever further from the exact one; with a decay or the delta "
        "rule the error stays below 2 % however long the text."
    )

    def grid(self, size: Size) -> list[Cell]:
        unit_keys = points({"rule": RULES, "length": [1.0], "T": TOKENS[size]})
        return [*unit_keys, *points({"rule": ["delta"], "length": [LONG], "T": [min(TOKENS[size])]})]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        rule, length, T, seed = str(cell["rule"]), float(cell["length"]), int(cell["T"]), int(cell["seed"])
        kept = rounded = State.zeros(N, 1, K, V)
        exact, draw = State.zeros(N, 1, K, V, dtype=torch.float64), generator(T, seed)
        for _ in range(T // PIECE):
            k, v = length * unit(draw, N, PIECE, 1, K), unit(draw, N, PIECE, 1, V)
            exact = after(exact, k.double(), v.double(), rule)
            kept, rounded = after(kept, k, v, rule), after(rounded, k, v, rule)
            rounded = rounded.to(torch.bfloat16).to(torch.float32)
        return {
            "squared norm": float(exact.memory.square().sum((-1, -2)).mean()),
            "float32 error": apart(kept, exact),
            "bfloat16 error": apart(rounded, exact),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        ends = [r for r in results if r.cell["length"] == 1]
        normal = [(r["squared norm"], norm(str(r.cell["rule"]), int(r.cell["T"]))) for r in ends]
        wild = [r["squared norm"] for r in results if r.cell["length"] != 1]
        additive = [r["bfloat16 error"] for r in ends if r.cell["rule"] == "additive"]
        others = [r["bfloat16 error"] for r in ends if r.cell["rule"] != "additive"]
        return Verdict.of(
            [
                Check("squared norm off its formula by", furthest(normal), high=0.1),
                Check("float32 error", max(r["float32 error"] for r in ends), high=1e-4),
                Check("squared norm with keys of length 1.5", min(wild), low=1e6),
                Check("bfloat16 error of additive states, longest over shortest", additive[-1] / additive[0], low=1.5),
                Check("bfloat16 error of the others", max(others), high=0.02),
            ]
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for place, rule in enumerate(RULES):
            mine = [r for r in results if r.cell["rule"] == rule and r.cell["length"] == 1]
            T, color = [int(r.cell["T"]) for r in mine], f"C{place}"
            left.plot(T, [r["squared norm"] for r in mine], "o", color=color, label=rule)
            left.plot(T, [norm(rule, t) for t in T], color=color)
            right.plot(T, [r["float32 error"] for r in mine], "o-", color=color)
            right.plot(T, [r["bfloat16 error"] for r in mine], "x--", color=color)
        left.set(
            xscale="log", yscale="log", xlabel="T, tokens", ylabel="squared norm of the state", title="lines: formulas"
        )
        right.set(
            xscale="log",
            yscale="log",
            xlabel="T, tokens",
            ylabel="relative error of the state",
            title="solid: float32, dashed: bfloat16",
        )
        left.legend()


def after(state: State, k: Tensor, v: Tensor, rule: str) -> State:
    """The state after one more piece of text."""
    return linear_attention(k, k, v, log_decay=log_decay(rule), write=write(rule), state=state).state


def write(rule: str) -> WriteRule:
    return Delta(1.0) if rule in ("delta", "gated delta") else Additive()


def log_decay(rule: str) -> Tensor | None:
    return torch.tensor([math.log(DECAY)]) if rule in ("decayed", "gated delta") else None


def norm(rule: str, T: int) -> float:
    """The mean squared norm after T tokens: x <- x a + 1, where a is what a write leaves of what was there."""
    kept = {"additive": 1, "decayed": DECAY**2, "delta": 1 - 1 / K, "gated delta": DECAY**2 * (1 - 1 / K)}[rule]
    return T if kept == 1 else (1 - kept**T) / (1 - kept)


def apart(state: State, exact: State) -> float:
    """The relative error of a state."""
    return float((state.memory.double() - exact.memory).norm() / exact.memory.norm())
