"""The loop that is the specification: one token after the other, in the words of the recurrence."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from rebracket.backends.reference.canonical import Canonical, canonical, finish
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output


def run(call: Recurrence) -> Output:
    """The whole call, token by token."""
    terms = canonical(call)
    if call.cu_seqlens is None:
        out, memory = scan(terms, terms.memory)
    else:
        out, memory = scan_packed(terms, call.cu_seqlens.tolist(), call.writes.per_token)
    return finish(call, out[:, call.writes.per_token - 1 :: call.writes.per_token], memory)


def scan_packed(terms: Canonical, offsets: list[int], per_token: int) -> tuple[Tensor, Tensor]:
    """Each packed sequence by itself, zeros in the tail."""
    spans = [slice(a * per_token, b * per_token) for a, b in pairwise(offsets)]
    runs = [scan(terms.span(span), terms.memory[n : n + 1]) for n, span in enumerate(spans)]
    tail = terms.v.shape[1] - offsets[-1] * per_token
    out = torch.cat([*(o for o, _ in runs), terms.v.new_zeros(1, tail, *terms.v.shape[2:])], 1)
    return out, torch.cat([terms.memory[:0], *(memory for _, memory in runs)])


def scan(terms: Canonical, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Sub-step by sub-step: outputs [B,T,H,V] and the memory [B,H,K,V] after the last."""
    out = []
    for t in range(terms.v.shape[1]):
        o, memory = token(terms.at(t), memory, terms.bonus, terms.scale)
        out.append(o)
    return torch.stack(out, 1) if out else terms.v, memory


def token(now: Canonical, memory: Tensor, bonus: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """One sub-step of every sequence and head: q, k, r [B,H,K], v [B,H,V], memory [B,H,K,V]."""
    before = memory
    if now.log_decay is not None:
        memory = now.log_decay.exp()[..., None] * memory
    u = now.v if now.r is None else now.v - recall(memory, now.r)
    u = u if now.beta is None else now.beta[..., None] * u
    memory = memory + now.k[..., None] * u[..., None, :]
    if bonus is None:
        return scale * recall(memory, now.q), memory
    own = (now.q * bonus * now.k).sum(-1, keepdim=True) * now.v
    return scale * (recall(before, now.q) + own), memory


def recall(memory: Tensor, key: Tensor) -> Tensor:
    """memory^T key for every sequence and head."""
    return (key[..., None, :] @ memory).squeeze(-2)
