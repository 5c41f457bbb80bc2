"""Memories of random pairs: what the experiments on storing and recalling share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule


def generator(*seeds: int) -> torch.Generator:
    """A generator of its own for every combination of numbers."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


def unit(draw: torch.Generator, *shape: int) -> Tensor:
    """Vectors of length 1 without a preferred direction, along the last axis."""
    return normalize(torch.randn(shape, generator=draw), dim=-1)


def stored(k: Tensor, v: Tensor, write: WriteRule, log_decay: Tensor | None = None, passes: int = 1) -> Tensor:
    """The states [N,K,V] after writing pairs k [N,n,K], v [N,n,V] in order, all of them `passes` times."""
    state = State.zeros(k.shape[0], 1, k.shape[2], v.shape[2])
    keys, values = k[:, :, None], v[:, :, None]
    for _ in range(passes):
        state = linear_attention(keys, keys, values, log_decay=log_decay, write=write, state=state).state
    return state.memory[:, 0]


def least_squares(k: Tensor, v: Tensor) -> Tensor:
    """The smallest states [N,K,V] that recall pairs k [N,n,K], v [N,n,V] with the least squared error."""
    return torch.linalg.pinv(k) @ v


def squared_error(read: Tensor, v: Tensor) -> float:
    """Mean of |y - v|^2 / |v|^2 for what was read [N,n,V]."""
    return float(((read - v).square().sum(-1) / v.square().sum(-1)).mean())


def accuracy(read: Tensor, values: Tensor, answers: Tensor) -> float:
    """How often the nearest of the unit values [N,m,V] to what was read [N,n,V] is the one at `answers` [n]."""
    return float(((read @ values.mT).argmax(-1) == answers).double().mean())
