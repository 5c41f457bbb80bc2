"""Memories of random pairs: what the experiments on storing and recalling share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from rebracket.ops.attention import linear_attention
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule


def generator(*seeds: int) -> torch.Generator:
    """A generator of its own for every combination of numbers.

    Args:
        seeds: any integers.

    Returns:
        A generator, the same for the same numbers.

    Cost: none to speak of.

    Example:
        >>> float(torch.rand((), generator=generator(1, 2))) == float(torch.rand((), generator=generator(2, 1)))
        False
    """
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


def unit(draw: torch.Generator, *shape: int) -> Tensor:
    """Vectors of length 1 without a preferred direction.

    Args:
        draw: where they are drawn from.
        shape: theirs, the last axis being the one along which they have length 1.

    Returns:
        A float32 tensor of that shape.

    Cost: one normal number an entry.

    Example:
        >>> bool(torch.allclose(unit(generator(0), 5, 3).norm(dim=-1), torch.ones(5)))
        True
    """
    return normalize(torch.randn(shape, generator=draw), dim=-1)


def stored(k: Tensor, v: Tensor, write: WriteRule, log_decay: Tensor | None = None, passes: int = 1) -> Tensor:
    """What N states hold after n pairs were written into each.

    Args:
        k: keys [N,n,K].
        v: values [N,n,V].
        write: the write rule.
        log_decay: as in `linear_attention` for one head, or None.
        passes: how often all pairs are written, in order, >= 1.

    Returns:
        The memories [N,K,V].

    Cost: that of `linear_attention` over n tokens, as many times as passes.

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


def least_squares(k: Tensor, v: Tensor) -> Tensor:
    """The smallest states that recall pairs with the least squared error: pinv(k) v.

    Args:
        k: keys [N,n,K].
        v: values [N,n,V].

    Returns:
        The memories [N,K,V].

    Cost: a singular value decomposition of every k.

    Example:
        >>> k, v = torch.eye(3)[None], torch.randn(1, 3, 5)
        >>> bool(torch.allclose(least_squares(k, v), v, atol=1e-6))
        True
    """
    return torch.linalg.pinv(k) @ v


def squared_error(read: Tensor, v: Tensor) -> float:
    """Mean of |y - v|^2 / |v|^2.

    Args:
        read: y, what was read [N,n,V].
        v: what should have been [N,n,V], nowhere 0.

    Returns:
        The mean over all N n vectors.

    Cost: one pass.

    Example:
        >>> squared_error(torch.zeros(1, 2, 3), torch.ones(1, 2, 3))
        1.0
    """
    return float(((read - v).square().sum(-1) / v.square().sum(-1)).mean())


def accuracy(read: Tensor, values: Tensor, answers: Tensor) -> float:
    """How often the value nearest to what was read is the right one.

    Args:
        read: [N,n,V].
        values: the m candidates, of length 1 [N,m,V].
        answers: the right ones' places [n].

    Returns:
        A fraction in [0, 1].

    Cost: N n m V multiply-adds.

    Example:
        >>> values = torch.eye(3)[None]
        >>> accuracy(values, values, torch.arange(3))
        1.0
    """
    return float(((read @ values.mT).argmax(-1) == answers).double().mean())
