"""What a case must give, in float64, and how far a result is from it: nothing is timed before it has been checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rebracket.bench.cases import SOFTMAX, Case, Inputs, factors, pattern
from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.testing.budgets import error

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Errors, as `rebracket.testing.budgets.error` has them, above which a result is wrong and not merely rounded."""
BLOCK = 512
"""Queries whose scores are held at one time."""
# A value that is twice as large has an output and gradients twice as large; its own gradient does not know it.
UNSCALED = {"grad v", "state.key_sum"}

Results = dict[str, Tensor]
"""Tensors of one call by name: "out", in training "grad q" and so on, in decode "state.memory"."""


@final
@dataclass(frozen=True, eq=False)
class Truth:
    """The exact results of one head, [1,T,1,...] and [1,1,...], of which those of all heads are made."""

    case: Case
    one: Results

    @classmethod
    def of(cls, case: Case) -> Truth:
        """Computes them by the reference, which the laws hold against the token loop, in float64.

        Cost: one head of one sequence, at a float64 reference's pace.
        """
        exact = pattern(case).map(Tensor.double)
        if case.mode == "train":
            return cls(case, trained(case, exact.leaves()))
        with torch.no_grad():
            return cls(case, attended(case, exact))

    def errors(self, found: Results) -> dict[str, float]:
        """How far each result is from what it must be, as a fraction of the largest; infinite where it is missing."""
        scale = factors(self.case.shape).double()
        return {name: distance(found, name, every(name, x, scale)) for name, x in self.one.items()}


def distance(found: Results, name: str, exact: Tensor) -> float:
    return error(found[name], exact) if name in found else float("inf")


def every(name: str, one: Tensor, scale: Tensor) -> Tensor:
    """The exact result of all heads, `scale` [B,H] being the factor of their values."""
    factor = torch.ones_like(scale) if name in UNSCALED else scale
    if name.startswith("state."):
        return one * factor.view(*scale.shape, *[1] * (one.ndim - 2))
    return one * factor[:, None].view(scale.shape[0], 1, scale.shape[1], *[1] * (one.ndim - 3))


def attended(case: Case, x: Inputs) -> Results:
    if case.rule is SOFTMAX:
        return {"out": softmax(x)}
    out, state = linear_attention(
        x.q, x.k, x.v, log_decay=x.log_decay, write=x.write, normalize=case.rule.normalizes,
        state=None if x.state is None else x.state.to(torch.float64), backend="reference",
    )  # fmt: skip
    return {"out": out} | (held(state) if case.mode == "decode" else {})


def softmax(x: Inputs) -> Tensor:
    """out [1,T,1,D], as the formula is written; some queries at a time, as T x T numbers may not fit."""
    stops = range(BLOCK, x.q.shape[1] + BLOCK, BLOCK)
    rows = [(x.q[:, stop - BLOCK : stop], x.k[:, :stop], x.v[:, :stop]) for stop in stops]
    return torch.cat([checkpoint(softmax_rows, *row, use_reentrant=False) for row in rows], 1)


def softmax_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The outputs of the last queries, q [1,Q,1,D], of a sequence of keys and values [1,T,1,D]."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def held(state: State) -> Results:
    """The tensors of a state by their names among the results."""
    return {f"state.{name}": x for name, x in state.tensors().items()}


def trained(case: Case, x: Inputs) -> Results:
    out = attended(case, x)["out"]
    wanted = x.differentiated()
    grads = torch.autograd.grad(out, list(wanted.values()), x.weight)
    return {"out": out.detach()} | {f"grad {name}": g for name, g in zip(wanted, grads, strict=True)}
