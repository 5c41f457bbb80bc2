"""Where each token stands in its own sequence, across caches and packed sequences."""

import torch
from torch import Tensor


def positions(seen: Tensor, tokens: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """The position of each token of a call in its own sequence, counted from 0.

    p[n,t] = seen[n] + t; packed, with token t in row n: p[0,t] = seen[n] + t - cu_seqlens[n].

    Args:
        seen: tokens that each row read before this call, [N] int64.
        tokens: T, tokens of this call.
        cu_seqlens: [N+1] bounds of packed sequences, or None. Tokens beyond the last bound get a position without
            meaning.

    Returns:
        [N,T] int64, or [1,T] when packed.

    Cost: T log N.

    Example:
        >>> positions(torch.tensor([0, 7]), 5, torch.tensor([0, 3, 5]))
        tensor([[0, 1, 2, 7, 8]])
    """
    steps = torch.arange(tokens, device=seen.device)
    if cu_seqlens is None:
        return seen[:, None] + steps
    bounds = cu_seqlens.to(seen)
    row = torch.searchsorted(bounds[1:], steps, right=True).clamp(max=seen.shape[0] - 1)
    return (steps - bounds[row] + seen[row])[None]


def advance(seen: Tensor, tokens: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """What `seen` is after the call, [N] int64.

    Example:
        >>> advance(torch.tensor([0, 7]), 5, torch.tensor([0, 3, 5]))
        tensor([3, 9])
    """
    return seen + (tokens if cu_seqlens is None else cu_seqlens.to(seen).diff())


def check_positions(positions: Tensor, x: Tensor) -> None:
    """Raises unless there is a position for every token of x [B,T,...]: [B,T], [1,T] or [T]."""
    B, T = x.shape[:2]
    if list(positions.shape) not in ([B, T], [1, T], [T]):
        raise ValueError(f"positions must be [B,T] = {[B, T]}, [1,T] or [T], got {list(positions.shape)}")
