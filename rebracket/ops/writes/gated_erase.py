"""Separate gates for erasing and for writing."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.precision import at_least_float32
from rebracket.ops.write import Drawing, Sizes, WriteRule, Writes, check_shape


@final
@dataclass(frozen=True, eq=False)
class GatedErase(WriteRule):
    """Erases through one gate per key channel and writes through one gate per value channel.

    S_t = S~_t + k_t (w_t * v_t - S~_t^T (e_t * k_t))^T

    Args:
        erase: e in [0, 2], [B,T,Hq,K] or [B,T,H,K] (without T in `step`).
        write: w in [0, 2], [B,T,H,V] (without T in `step`). e = w = beta is `Delta(beta)`.

    Raises:
        ValueError: in the call, a gate of another shape.
        TypeError: in the call, a gate that is no tensor.

    Cost: 6 K V operations a token and head. Source: Gated DeltaNet-2.

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 5)
        >>> gates = rb.GatedErase(torch.rand(1, 6, 2, 4), torch.rand(1, 6, 2, 5))
        >>> rb.linear_attention(q, k, v, write=gates).state.memory.shape
        torch.Size([1, 2, 4, 5])
    """

    erase: Tensor
    write: Tensor

    def check(self, sizes: Sizes) -> None:
        check_shape("erase", self.erase, sizes, "B,T,Hq,K", "B,T,H,K")
        check_shape("write", self.write, sizes, "B,T,H,V")

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        k, v, erase, write = (at_least_float32(x) for x in (k, v, self.erase, self.write))
        return Writes(k, write * v, r=erase * repeat_heads(k, erase.shape[2]))


def literal(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float, erase: Tensor, write: Tensor
) -> tuple[Tensor, Tensor]:
    """One head, token by token, erasing first and writing after; erase [T,K], write [T,V]."""
    out = []
    for t in range(q.shape[0]):
        memory = decay[t, :, None] * memory
        memory = memory - torch.outer(k[t], (erase[t] * k[t]) @ memory)
        memory = memory + torch.outer(k[t], write[t] * v[t])
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory


def drawn(draw: Drawing) -> GatedErase:
    """A sample for the laws: gates up to 1 contract unit keys."""
    return GatedErase(draw.uniform(0.2, 1.0, "B,T,Hq,K"), draw.uniform(0.2, 1.0, "B,T,H,V"))
