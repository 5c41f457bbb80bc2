"""Diagonal plus low rank: erase along one direction, write along another."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.precision import without_autocast
from rebracket.ops.write import Drawing, Sizes, WriteRule, Writes, check_shape


@final
@dataclass(frozen=True, eq=False)
class LowRank(WriteRule):
    """Erases along a direction that is not the key, then adds the new pair.

    S_t = S~_t - e_t (r_t^T S~_t) + k_t v_t^T

    A transition Diag(a) + x y^T of the literature is e = -x, r = y / a.

    Args:
        erase: e, [B,T,Hq,K] or [B,T,H,K] (without T in `step`).
        read: r, the same shapes.

    Raises:
        ValueError: in the call, a direction of another shape.
        TypeError: in the call, a direction that is no tensor.

    Cost: two writes a token, 10 K V operations a token and head. Source: RWKV-7 (Peng et al. 2025).

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 5)
        >>> e = torch.nn.functional.normalize(torch.randn(1, 6, 2, 4), dim=-1)
        >>> rb.linear_attention(q, k, v, write=rb.LowRank(e, 0.5 * e)).out.shape
        torch.Size([1, 6, 2, 5])
    """

    erase: Tensor
    read: Tensor

    def check(self, sizes: Sizes) -> None:
        check_shape("erase", self.erase, sizes, "B,T,Hq,K", "B,T,H,K")
        check_shape("read", self.read, sizes, "B,T,Hq,K", "B,T,H,K")

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        heads = max(self.erase.shape[2], k.shape[2])
        keys = interleave(repeat_heads(self.erase, heads), repeat_heads(k, heads))
        return Writes(
            keys, interleave(torch.zeros_like(v), v), interleave(self.read, torch.zeros_like(self.read)), None, 2
        )


def interleave(first: Tensor, second: Tensor) -> Tensor:
    """Two sequences [B,T,...] as one [B,2T,...] that alternates between them."""
    dtype = torch.promote_types(first.dtype, second.dtype)
    with without_autocast(first):  # which on a CPU has no float16 to put together
        return torch.stack((first.to(dtype), second.to(dtype)), 2).flatten(1, 2)


def literal(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float, erase: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """One head, token by token, with the transition matrix (I - e r^T) Diag(a) written out."""
    identity = torch.eye(k.shape[1], dtype=k.dtype)
    out = []
    for t in range(q.shape[0]):
        transition = (identity - torch.outer(erase[t], read[t])) @ torch.diag(decay[t])
        memory = transition @ memory + torch.outer(k[t], v[t])
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory


def drawn(draw: Drawing) -> LowRank:
    """A sample for the laws: directions near each other and the keys contract."""
    return LowRank(draw.near_keys("B,T,H,K"), 0.8 * draw.near_keys("B,T,Hq,K"))
