"""The delta rule with a read key of its own."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.ops.write import Drawing, Sizes, WriteRule, Writes, as_beta, check_beta, check_shape


@final
@dataclass(frozen=True, eq=False)
class ReadKey(WriteRule):
    """Subtracts what another key recalls before writing under k.

    S_t = S~_t + beta_t k_t (v_t - S~_t^T p_t)^T

    Args:
        key: the read key p, [B,T,Hq,K] or [B,T,H,K] (without T in `step`). p = k is `Delta`.
        beta: strength of writing in [0, 2], a number or a tensor [H] or [B,T,H] ([B,H] in `step`).

    Raises:
        ValueError: in the call, a key or beta of another shape, or beta outside [0, 2].
        TypeError: in the call, a key that is no tensor, or a beta that is neither number nor tensor.

    Cost: 6 K V operations a token and head. Source: Comba (Hu et al. 2025), where p is k scaled by a learned feedback.

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, p = (torch.randn(1, 6, 2, 4) for _ in range(3))
        >>> rb.linear_attention(q, k, torch.randn(1, 6, 2, 5), write=rb.ReadKey(0.1 * p, 0.5)).out.shape
        torch.Size([1, 6, 2, 5])
    """

    key: Tensor
    beta: float | Tensor

    def check(self, sizes: Sizes) -> None:
        check_shape("key", self.key, sizes, "B,T,Hq,K", "B,T,H,K")
        check_beta(self.beta, sizes)

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        return Writes(k, v, r=self.key, beta=as_beta(self.beta, v))


def literal(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float, key: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One head, token by token: the error is taken at key [T,K], the correction written at k; beta [T]."""
    out = []
    for t in range(q.shape[0]):
        memory = decay[t, :, None] * memory
        error = v[t] - key[t] @ memory
        memory = memory + beta[t] * torch.outer(k[t], error)
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory


def drawn(draw: Drawing) -> ReadKey:
    """A sample for the laws: read keys near the keys contract."""
    return ReadKey(draw.near_keys("B,T,Hq,K"), draw.uniform(0.2, 1.2, "B,T,H"))
