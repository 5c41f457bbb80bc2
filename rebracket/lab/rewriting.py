"""Which write rule recalls the newest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points
from rebracket.lab.base.pairs import generator, recall_scores, stored, unit_vectors
from rebracket.lab.base.verdict import Check, Verdict, largest_deviation
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K = V = 64
PASSES = 20
PAIRS = 16384
"""Written in one cell, over all its memories."""
REWRITES: Mapping[Size, Mapping[str, Sequence[int]]] = {
    "tiny": {"n": [16], "writes": [1, 2, 4], "cosine": [0]},
    "quick": {"n": [16, 32], "writes": [1, 2, 4], "cosine": [0]},
    "full": {"n": [8, 16, 32, 64], "writes": [1, 2, 4, 8], "cosine": [0]},
}
COSINES: Mapping[Size, Sequence[float]] = {
    "tiny": [0.1, 0.5, 0.8],
    "quick": [0.1, 0.2, 0.5, 0.8],
    "full": [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
}
ALIKE = 32
"""Correlated keys in one memory."""


@final
class Rewriting(Experiment):
    """Accuracy of the newest value among all that were written: rewritten keys, and keys that resemble each other."""

    question = "Where does the delta rule win over plain addition, and where does it lose?"
    claim = (
        "A key written m times recalls its newest value in 1 / m of the cases under addition, which keeps all of them "
        "alike, and always under the delta rule (within 0.03). Keys of mean cosine c recall with squared error of "
        "(n - 1) (c^2 + (1 - c)^2 / (K - 1)) under addition; the delta rule in one pass stays below that at every c. "
        "Under argmax it is the better one at c = 0.5, and the worse one at c = 0.1 and at c = 0.8, where it has "
        "overwritten all but the last."
    )

    def grid(self, size: Size) -> list[Cell]:
        alike = {"n": [ALIKE], "writes": [1], "cosine": COSINES[size]}
        return [*points(REWRITES[size]), *points(alike)]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        n, writes, cosine = int(cell["n"]), int(cell["writes"]), float(cell["cosine"])
        draw = generator(n, writes, round(1000 * cosine), int(cell["seed"]))
        N = PAIRS // (n * writes)
        keys, values = resembling(draw, N, n, cosine), unit_vectors(draw, N, n * writes, V)
        k, newest = keys.repeat(1, writes, 1), torch.arange(n * (writes - 1), n * writes)
        memories = {
            "additive": stored(k, values, Additive()),
            "delta": stored(k, values, Delta(1.0)),
            "repeated": stored(k, values, Delta(1.0), passes=PASSES),
        }
        return recall_scores(memories, keys, values, newest)

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        again = [r for r in results if int(r.cell["writes"]) > 1 and int(r.cell["n"]) <= K // 2]
        alike = {float(r.cell["cosine"]): r for r in results if r.cell["cosine"]}
        gains = {c: r["delta accuracy"] - r["additive accuracy"] for c, r in alike.items()}
        missed = [abs(r["additive accuracy"] - 1 / int(r.cell["writes"])) for r in again]
        # The cosines of two keys are c + (1 - c) x with x of variance 1 / (K - 1).
        expected = {c: (ALIKE - 1) * (c**2 + (1 - c) ** 2 / (K - 1)) for c in alike}
        off = largest_deviation((r["additive error"], expected[c]) for c, r in alike.items())
        shares = [r["delta error"] / r["additive error"] for r in alike.values()]
        return Verdict.of(
            Check("additive accuracy off 1 / m by", max(missed), high=0.03),
            Check("least delta accuracy of the newest", min(r["delta accuracy"] for r in again), low=0.97),
            Check("additive error of like keys off its formula by", off, high=0.05),
            Check("largest delta error over additive", max(shares), high=0.7),
            Check("delta's gain in accuracy at c = 0.1", gains[0.1], high=-0.003),
            Check("at c = 0.5", gains[0.5], low=0.05),
            Check("at c = 0.8", gains[0.8], high=-0.01),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for n in dict.fromkeys(r.cell["n"] for r in results):
            mine = [r for r in results if r.cell["n"] == n and not r.cell["cosine"]]
            for name, color in (("additive", "tab:blue"), ("delta", "tab:orange")):
                m = [int(r.cell["writes"]) for r in mine]
                left.plot(m, [r[f"{name} accuracy"] for r in mine], "o", color=color, label=f"{name}, {n} keys")
                left.plot(m, [1 / x if name == "additive" else 1 for x in m], color=color)
        alike = [r for r in results if r.cell["cosine"]]
        for name, color in (("additive", "tab:blue"), ("delta", "tab:orange"), ("repeated", "tab:green")):
            c = [float(r.cell["cosine"]) for r in alike]
            right.plot(c, [r[f"{name} accuracy"] for r in alike], "o-", color=color, label=name)
        left.set(xlabel="m, writes of each key", ylabel="accuracy of the newest value", title="Rewritten keys")
        right.set(xlabel="c, mean cosine of the keys", ylabel="accuracy", title=f"{ALIKE} keys that are alike")
        left.legend(title="lines: 1 / m and 1")
        right.legend()


def resembling(draw: torch.Generator, N: int, n: int, cosine: float) -> Tensor:
    """Unit keys [N,n,K] that share a direction, so that two of them have this cosine on average."""
    shared, own = unit_vectors(draw, N, 1, K), unit_vectors(draw, N, n, K)
    own = normalize(own - (own * shared).sum(-1, keepdim=True) * shared, dim=-1)
    return cosine**0.5 * shared + (1 - cosine) ** 0.5 * own
