"""Grouped heads: head h of v uses head h // (H // Hq) of q and k."""

from torch import Tensor


def repeat_heads(x: Tensor, heads: int, dim: int = 2) -> Tensor:
    """Repeats the heads of x along `dim`, each head next to its copies, until there are `heads` of them."""
    repeats = heads // x.shape[dim]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim)
