"""How sharply attention can focus on one token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket import features
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means, points, select
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict, largest_deviation
from rebracket.ops.attention import linear_attention
from rebracket.ops.softmax import softmax_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM = n = 32
TRIALS = 16
SOFTMAX = "softmax attention"
MAPS = ("elu1", "relu", "squared_relu", "dpfp", "taylor2", "softmax", "hedgehog", "exp")
HOMOGENEOUS = ("relu", "squared_relu", "dpfp")
"""phi(c x) = c^p phi(x), so that the length of queries and keys divides out."""
GAPS: Mapping[Size, Sequence[float]] = {
    "tiny": (1, 16),
    "quick": (1, 2, 4, 8, 16),
    "full": (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
}


@final
class Sharpness(Experiment):
    """The weight of the key that equals the query, among n orthogonal ones, as its score rises above the others'."""

    question = "How much of its attention can a query give to the one token that matches it?"
    claim = (
        "Among n orthogonal keys, the one whose score is g and all others' 0 has weight exp(g) / (exp(g) + n - 1) "
        "under softmax attention and (1 + g + g^2 / 2) / (n + g + g^2 / 2) under the Taylor map: at g = 16 the first "
        "looks at nothing else, the second still does. Maps of one degree (relu, its square, dpfp) look no sharper at "
        "a large g than at a small one, since lengths divide out; elu + 1 stays nearly even, with more than 9 / 10 of "
        "the largest entropy."
    )

    def grid(self, size: Size) -> list[Cell]:
        return points({"map": (SOFTMAX, *MAPS), "gap": GAPS[size]})

    def measure(self, cell: Cell) -> Mapping[str, float]:
        gap, name = float(cell["gap"]), str(cell["map"])
        x = gap**0.5 * DIM**0.25 * directions(int(cell["seed"]))
        found = softmax_weights(x) if name == SOFTMAX else weights(features.make(name, DIM), x)
        own = found.diagonal(dim1=-2, dim2=-1)
        return {
            "weight": float(own.mean()),
            "entropy": float(torch.special.entr(found.clamp(min=0)).sum(-1).mean()),
            "found": float((found.argmax(-1) == torch.arange(n)).double().mean()),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        last = {str(r.cell["map"]): r for r in results}  # at the largest gap, which comes last
        found = [[r["weight"] for r in select(results, "map", name)] for name in HOMOGENEOUS]
        missed = [r["found"] for r in results if r.cell["map"] in (SOFTMAX, "taylor2")]
        return Verdict.of(
            Check("softmax weight off its formula by", off(results, SOFTMAX, exponential), high=1e-4),
            Check("Taylor weight off its formula by", off(results, "taylor2", polynomial), high=1e-4),
            Check("change of a homogeneous map's weight over all gaps", max(max(x) - min(x) for x in found), high=1e-4),
            Check("softmax weight at the largest gap", last[SOFTMAX]["weight"], low=0.99),
            Check("Taylor weight there", last["taylor2"]["weight"], high=0.99),
            Check("entropy of elu1 there, over log n", last["elu1"]["entropy"] / math.log(n), low=0.9),
            Check("least rate at which softmax and Taylor have the match first", min(missed), low=1.0),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for name in (SOFTMAX, *MAPS):
            mine, color = select(results, "map", name), "black" if name == SOFTMAX else f"C{MAPS.index(name)}"
            gaps = [float(r.cell["gap"]) for r in mine]
            left.plot(gaps, [r["weight"] for r in mine], "o-", color=color, label=name)
            right.plot(gaps, [r["entropy"] / math.log(n) for r in mine], "o-", color=color, label=name)
        left.set(xscale="log", xlabel="g, score of the match", ylabel="its weight", title=f"One of {n} orthogonal keys")
        right.set(xscale="log", xlabel="g, score of the match", ylabel="entropy / log n")
        right.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def directions(seed: int) -> Tensor:
    """Orthonormal vectors [TRIALS,n,DIM], rotated at random."""
    normals = torch.randn(TRIALS, DIM, n, generator=generator(seed), dtype=torch.float64)
    return torch.linalg.qr(normals).Q.mT


@torch.no_grad()
def weights(phi: features.FeatureMap, x: Tensor) -> Tensor:
    """The weights [TRIALS,n,n] that each vector as a query gives to all as keys: attention to one-hot values."""
    q, k, v = heads(phi.queries(x)), heads(phi(x)), heads(torch.eye(n, dtype=x.dtype).expand(TRIALS, n, n))
    return linear_attention(q, k, v, normalize=True, causal=False).out[:, :, 0]


def softmax_weights(x: Tensor) -> Tensor:
    one_hot = torch.eye(n, dtype=x.dtype).expand(TRIALS, n, n)
    return softmax_attention(heads(x), heads(x), heads(one_hot), causal=False).out[:, :, 0]


def heads(x: Tensor) -> Tensor:
    return x[:, :, None]


def exponential(gap: float) -> float:
    return math.exp(gap) / (math.exp(gap) + n - 1)


def polynomial(gap: float) -> float:
    return (1 + gap + gap**2 / 2) / (n + gap + gap**2 / 2)


def off(results: Sequence[Result], name: str, formula: Callable[[float], float]) -> float:
    return largest_deviation((r["weight"], formula(float(r.cell["gap"]))) for r in select(results, "map", name))
