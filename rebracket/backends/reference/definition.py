"""The loop that is the specification: one token after the other, in the words of the recurrence."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from rebracket.backends.reference.canonical import Canonical, canonical, finish, initial_memory
from rebracket.ops.call import Recurrence
from rebracket.ops.state import Output


def run(call: Recurrence) -> Output:
    """The whole call, token by token."""
    terms, memory, per_token = canonical(call), initial_memory(call), call.per_token
    if call.cu_seqlens is None:
        out, memory = scan(terms, memory)
    else:
        out, memory = scan_packed(terms, memory, [per_token * x for x in call.cu_seqlens.tolist()])
    return finish(call, out[:, per_token - 1 :: per_token], memory)


def scan_packed(terms: Canonical, memory: Tensor, offsets: list[int]) -> tuple[Tensor, Tensor]:
    """Each packed sequence by itself, zeros in the tail."""
    runs = [
        scan(terms.each(lambda x, a=a, b=b: x[:, a:b]), memory[n : n + 1]) for n, (a, b) in enumerate(pairwise(offsets))
    ]
    tail = terms.v[:, offsets[-1] :]
    out = torch.cat([*(o for o, _ in runs), torch.zeros_like(tail)], 1)
    return out, torch.cat([memory[:0], *(last for _, last in runs)])


def scan(terms: Canonical, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Write by write: outputs [B,T,H,V] and the memory [B,H,K,V] after the last."""
    out = []
    for t in range(terms.v.shape[1]):
        o, memory = token(terms.each(lambda x, t=t: x[:, t]), memory)
        out.append(o)
    return torch.stack(out, 1) if out else terms.v, memory


def token(now: Canonical, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One write of every sequence and head: terms [B,H,...], memory [B,H,K,V]."""
    before = memory
    if now.log_decay is not None:
        memory = now.log_decay.exp()[..., None] * memory
    u = now.v if now.r is None else now.v - recall(memory, now.r)
    u = u if now.beta is None else now.beta * u
    memory = memory + now.k[..., None] * u[..., None, :]
    if now.bonus is None:
        return now.scale * recall(memory, now.q), memory
    own = (now.q * now.bonus * now.k).sum(-1, keepdim=True) * now.v
    return now.scale * (recall(before, now.q) + own), memory


def recall(memory: Tensor, key: Tensor) -> Tensor:
    """memory^T key for every sequence and head."""
    return (key[..., None, :] @ memory).squeeze(-2)
