"""Random pairs of keys and values: writes them into a state and measures how well they are read back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule


def generator(*seeds: int) -> torch.Generator:
    """A random generator of its own for every sequence of whole numbers.

    Example:
        >>> float(torch.rand((), generator=generator(1, 2))) == float(torch.rand((), generator=generator(2, 1)))
        False
    """
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


def unit_vectors(draw: torch.Generator, *shape: int) -> Tensor:
    """Vectors of length 1 along the last axis, uniform in direction, float32."""
    return normalize(torch.randn(shape, generator=draw), dim=-1)


def stored(k: Tensor, v: Tensor, write: WriteRule, log_decay: Tensor | None = None, passes: int = 1) -> Tensor:
    """The memories [N,K,V] of N states after n pairs were written into each.

    Args:
        k: keys [N,n,K].
        v: values [N,n,V].
        write: the write rule.
        log_decay: [1], or None.
        passes: how often all pairs are written, in order, >= 1.

    Example:
        >>> from rebracket.ops.writes.delta import Delta
        >>> k, v = torch.eye(3)[None], torch.randn(1, 3, 5)
        >>> bool(torch.allclose(stored(k, v, Delta(1.0)), v))
        True
    """
    state = State.zeros(k.shape[0], 1, k.shape[2], v.shape[2])
    keys, values = k[:, :, None], v[:, :, None]
    for _ in range(passes):
        state = linear_attention(keys, keys, values, log_decay=log_decay, write=write, state=state).state
    return state.memory[:, 0]


def squared_error(read: Tensor, v: Tensor) -> float:
    """The mean of |y - v|^2 / |v|^2 over what was read, y [N,n,V], and the values v [N,n,V]."""
    return float(((read - v).square().sum(-1) / v.square().sum(-1)).mean())


def accuracy(read: Tensor, values: Tensor, answers: Tensor) -> float:
    """How often the value nearest to what was read is the right one.

    Args:
        read: [N,n,V].
        values: the m candidates, of length 1 [N,m,V].
        answers: indices of the right ones [n].
    """
    return float(((read @ values.mT).argmax(-1) == answers).double().mean())


def recall_scores(memories: Mapping[str, Tensor], k: Tensor, values: Tensor, answers: Tensor) -> dict[str, float]:
    """Squared error and accuracy of memories [N,K,V] by name, read with keys k [N,n,K]; the rest as for `accuracy`."""
    reads = {name: k @ memory for name, memory in memories.items()}
    errors = {f"{name} error": squared_error(read, values[:, answers]) for name, read in reads.items()}
    return errors | {f"{name} accuracy": accuracy(read, values, answers) for name, read in reads.items()}
