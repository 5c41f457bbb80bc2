"""How sharply attention can focus on one token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket import features
from rebracket.lab.base.drawing import draw_line
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
TURNED, ALIGNED = "turned", "aligned"
"""Orthogonal keys turned at random, and along the axes."""
TAUGHT = (SOFTMAX, "relu", "squared_relu", "elu1", "softmax")
"""Maps whose queries and keys are trained, and softmax attention."""
CROWDS: Mapping[Size, Sequence[int]] = {"tiny": (16, 64), "quick": (16, 32, 64, 128), "full": (8, 16, 32, 64, 128, 256)}
STEPS, RATE = 300, 0.1
IDENTITY = "theory: an identity, which only a fault can break"
"""Where the bounds on weights come from that follow from a kernel alone."""


@final
class Sharpness(Experiment):
    """The weight of the key that equals the query: as its score rises, and among ever more keys."""

    question = "How much of its attention can a query give to the one token that matches it?"
    claim = (
        "Among n orthogonal keys that are turned at random, the one whose score is g and all others' 0 has weight "
        "exp(g) / (exp(g) + n - 1) under softmax attention and (1 + g + g^2 / 2) / (n + g + g^2 / 2) under the Taylor "
        "map, and maps of one degree look no sharper at a large g. On keys along the axes relu and its square give it "
        "all of their attention, so maps can be sharp where training chooses the keys. What no map can do is be sharp "
        "on average among more keys than it has features: its n weights are a stochastic matrix of rank m, so the "
        "matches together have at most m / n each, trained or not; relu comes to that, softmax attention has no such "
        "bound."
    )

    def grid(self, size: Size) -> list[Cell]:
        untrained = points({"keys": (TURNED, ALIGNED), "map": (SOFTMAX, *MAPS), "gap": GAPS[size]})
        return [*untrained, *points({"taught": TAUGHT, "n": CROWDS[size]})]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        if "taught" in cell:
            return taught(str(cell["taught"]), int(cell["n"]), int(cell["seed"]))
        gap, name, seed = float(cell["gap"]), str(cell["map"]), int(cell["seed"])
        x = gap**0.5 * DIM**0.25 * (directions(seed) if cell["keys"] == TURNED else along_axes(seed))
        found = weights(name, x, x).detach()
        own = found.diagonal(dim1=-2, dim2=-1)
        return {
            "weight": float(own.mean()),
            "entropy": float(torch.special.entr(found.clamp(min=0)).sum(-1).mean()),
            "found": float((found.argmax(-1) == torch.arange(n)).double().mean()),
        }

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        turned, aligned = select(results, "keys", TURNED), select(results, "keys", ALIGNED)
        last = {str(r.cell["map"]): r for r in turned}  # at the largest gap, which comes last
        along = {str(r.cell["map"]): r for r in aligned}
        found = [[r["weight"] for r in select(turned, "map", name)] for name in HOMOGENEOUS]
        missed = [r["found"] for r in turned if r.cell["map"] in (SOFTMAX, "taylor2")]
        trained = [r for r in results if "taught" in r.cell]
        shares = {name: [of_bound(r) for r in select(trained, "taught", name)] for name in TAUGHT}
        mapped = [x for name in TAUGHT if name != SOFTMAX for x in shares[name]]
        most = max(select(trained, "taught", SOFTMAX), key=lambda r: int(r.cell["n"]))
        axis = [r["weight"] for r in aligned if r.cell["map"] in ("relu", "squared_relu")]
        return Verdict.of(
            Check("softmax weight off its formula by", off(turned, SOFTMAX, exponential), high=1e-4, source=IDENTITY),
            Check("Taylor weight off its formula by", off(turned, "taylor2", polynomial), high=1e-4, source=IDENTITY),
            Check.every(
                "change of a homogeneous map's weight over all gaps",
                [max(x) - min(x) for x in found],
                high=1e-4,
                source=IDENTITY,
            ),
            Check("softmax weight at the largest gap, keys turned", last[SOFTMAX]["weight"], low=0.99, source=IDENTITY),
            Check("Taylor weight there", last["taylor2"]["weight"], high=0.99, source=IDENTITY),
            Check("largest weight of relu there", last["relu"]["weight"], high=0.5, source="a review: 0.09 to 0.19"),
            Check("entropy of elu1 there, over log n", last["elu1"]["entropy"] / math.log(n), low=0.9, source="pilot"),
            Check.every("rate at which softmax and Taylor have the match first", missed, low=1.0, source=IDENTITY),
            Check.every("weight of relu and its square, keys along the axes", axis, low=0.999, source=IDENTITY),
            Check("weight of exp at the largest gap there", along["exp"]["weight"], low=0.99, source="a review: 0.995"),
            Check.every("trained weight of a map over its bound min(1, m / n)", mapped, high=1 + 1e-6, source=RANK),
            Check.every("trained weight of relu over that bound", shares["relu"], low=0.8, source=TRAINED),
            Check("trained weight of softmax attention, most keys", most["weight"], low=0.99, source=TRAINED),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3, sharey=True)
        for name in (SOFTMAX, *MAPS):
            color = "black" if name == SOFTMAX else f"C{MAPS.index(name)}"
            for axes, keys in ((left, TURNED), (middle, ALIGNED)):
                mine = select(select(results, "keys", keys), "map", name)
                gaps = [float(r.cell["gap"]) for r in mine]
                draw_line(axes, gaps, [r["weight"] for r in mine], color=color, label=name)
            mine = select(results, "taught", name)
            if mine:
                counts = [int(r.cell["n"]) for r in mine]
                draw_line(right, counts, [r["weight"] for r in mine], color=color, label=name)
        crowd = [int(r.cell["n"]) for r in select(results, "taught", "relu")]
        right.plot(crowd, [min(1, DIM / x) for x in crowd], "--", color="0.4", label=f"m / n, m = {DIM}")
        left.set(xscale="log", xlabel="g, score of the match", ylabel="weight of the match", ylim=(-0.02, 1.04))
        left.set_title("Keys turned at random:\nmaps are flat", fontsize="medium")
        middle.set(xscale="log", xlabel="g, score of the match", title="Keys along the axes:\nsome are not")
        right.set(
            xscale="log", xlabel="n, keys that training may choose", title="Trained queries and keys:\nat most m / n"
        )
        right.set_xticks(crowd, list(map(str, crowd)))
        right.minorticks_off()
        right.legend(fontsize="x-small", loc="lower left")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")


RANK = "theory: the trace of a stochastic matrix of rank m"
TRAINED = "pilot at seed 100"


def of_bound(result: Result) -> float:
    """The weight of the match over the largest mean that so many features allow."""
    return result["weight"] / min(1.0, result["features"] / int(result.cell["n"]))


def taught(name: str, count: int, seed: int) -> Mapping[str, float]:
    """The weight of the match among so many keys once queries and keys are trained to give it all."""
    draw = generator(count, seed)
    q, k = (torch.randn(1, count, DIM, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([q, k], RATE)
    for _ in range(STEPS):
        loss = -weights(name, q, k).diagonal(dim1=-2, dim2=-1).clamp(min=1e-12).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    m = count if name == SOFTMAX else features.make(name, DIM).dim_out  # exp has as many as there are keys
    return {"weight": float(weights(name, q, k).diagonal(dim1=-2, dim2=-1).mean().detach()), "features": m}


def along_axes(seed: int) -> Tensor:
    """Unit vectors along the axes [TRIALS,n,DIM], in an order of their own."""
    orders = torch.rand(TRIALS, n, generator=generator(seed)).argsort(-1)
    return torch.eye(DIM, dtype=torch.float64)[orders]


def directions(seed: int) -> Tensor:
    """Orthonormal vectors [TRIALS,n,DIM], rotated at random."""
    normals = torch.randn(TRIALS, DIM, n, generator=generator(seed), dtype=torch.float64)
    return torch.linalg.qr(normals).Q.mT


def weights(name: str, q: Tensor, k: Tensor) -> Tensor:
    """The weights [B,n,n] that queries give to keys [B,n,DIM]: attention to one-hot values."""
    one_hot = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], -1, -1)
    if name == SOFTMAX:
        return softmax_attention(heads(q), heads(k), heads(one_hot), causal=False).out[:, :, 0]
    phi = features.make(name, DIM)
    phi_q, phi_k = heads(phi.queries(q)), heads(phi(k))
    return linear_attention(phi_q, phi_k, heads(one_hot), normalize=True, causal=False).out[:, :, 0]


def heads(x: Tensor) -> Tensor:
    return x[:, :, None]


def exponential(gap: float) -> float:
    return math.exp(gap) / (math.exp(gap) + n - 1)


def polynomial(gap: float) -> float:
    return (1 + gap + gap**2 / 2) / (n + gap + gap**2 / 2)


def off(results: Sequence[Result], name: str, formula: Callable[[float], float]) -> float:
    return largest_deviation((r["weight"], formula(float(r.cell["gap"]))) for r in select(results, "map", name))
