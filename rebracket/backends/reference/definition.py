"""The loop that is the specification: one token after the other, in the words of the recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from rebracket.backends.reference.canonical import Canonical, canonical, finish
from rebracket.ops.call import Recurrence
from rebracket.ops.state import Output


def run(call: Recurrence) -> Output:
    """The whole call, token by token; each packed sequence by itself, zeros in the padding."""
    terms, memory = canonical(call)
    if call.cu_seqlens is None:
        return finish(call, *scan(terms, memory))
    lengths = (call.per_token * call.cu_seqlens.diff()).tolist()
    padding = terms.v.shape[1] - sum(lengths)
    *sequences, behind = terms.split(lambda x: x.split([*lengths, padding], 1))
    runs = [scan(sequence, memory[n : n + 1]) for n, sequence in enumerate(sequences)]
    out = torch.cat([*(o for o, _ in runs), torch.zeros_like(behind.v)], 1)
    return finish(call, out, torch.cat([memory[:0], *(last for _, last in runs)]))


def scan(terms: Canonical, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Write by write: outputs [B,T,H,V] and the memory [B,H,K,V] after the last."""
    out = []
    for now in terms.split(lambda x: x.unbind(1)):
        o, memory = token(now, memory)
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
