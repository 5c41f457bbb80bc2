"""Softmax attention, with which the rules of linear attention are compared."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rebracket.base.tensors import map_tensors
from rebracket.bench.case import Prepared, Results, Work
from rebracket.bench.cases.base import AttentionCase, AttentionInputs, prepare_sequence
from rebracket.ops.softmax import softmax_attention

BLOCK = 512
"""Queries whose scores are held at one time."""


@final
class SoftmaxAttentionCase(AttentionCase):
    """`softmax_attention` over a sequence, which is torch's kernel; its state grows, so there is no decode case."""

    titles: ClassVar = {"softmax": "softmax"}
    modes = ("forward", "train")
    growth = 2.0
    best = "softmax_attention"
    note = "The operations of softmax are those of the half of the T x T scores that tokens see."

    @property
    def work(self) -> Work:
        _, T, _, D = self.shape
        return self.count(2 * (T + 1) * D, 4 * D, 2 * T * D)

    def backends(self) -> tuple[str, ...]:
        return (self.best,)

    def draw(self) -> AttentionInputs:
        x = self.draw_tokens(torch.Generator().manual_seed(0))
        return map_tensors(x, lambda _, t: t.to(self.dtype))

    def prepare(self, backend: str, x: AttentionInputs) -> Prepared:
        return prepare_sequence(self, x, lambda x: softmax_attention(x.q, x.k, x.v).out)

    def exact(self) -> Results:
        """As the formula is written; some queries at a time, as T x T numbers may not fit."""
        x = map_tensors(self.draw(), lambda _, t: t.double())
        prepared = prepare_sequence(self, x, formula)
        return prepared.results(prepared.run())


def formula(x: AttentionInputs) -> Tensor:
    stops = range(BLOCK, x.q.shape[1] + BLOCK, BLOCK)
    blocks = [(x.q[:, stop - BLOCK : stop], x.k[:, :stop], x.v[:, :stop]) for stop in stops]
    return torch.cat([checkpoint(last_queries, *block, use_reentrant=False) for block in blocks], 1)


def last_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The outputs of the last queries, q [1,Q,1,D], of a sequence of keys and values [1,T,1,D]."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
