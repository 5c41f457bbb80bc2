"""Several delta writes a token."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from rebracket.base.checks import whole
from rebracket.ops.write import Drawing, Sizes, WriteRule, Writes, as_beta, check_beta


@final
@dataclass(frozen=True, eq=False)
class DeltaProduct(WriteRule):
    """Writes n key-value pairs a token by the delta rule, after one decay and before one read.

    S_t = (product over j of (I - beta_tj k_tj k_tj^T) applied in order to S~_t, each followed by + beta_tj k_tj v_tj^T)

    A product of n reflections is any orthogonal transformation of rank n: state tracking that one write cannot do.

    Args:
        beta: strength of writing in [0, 2], a number or a tensor [H] or [B, T * writes, H].
        writes: n >= 1, the writes of one token; k and v hold T * writes entries, a token's in a row ([B, writes, ...]
            in `step`).

    Raises:
        ValueError: writes below 1; in the call, beta outside [0, 2], or a tensor of another shape.
        TypeError: in the call, a beta that is neither number nor tensor.

    Cost: 6 n K V operations a token and head. Source: Siems et al. 2025, DeltaProduct.

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 12, 2, 4), torch.randn(1, 12, 2, 5)
        >>> rb.linear_attention(q, k, v, write=rb.DeltaProduct(0.2, writes=2)).out.shape
        torch.Size([1, 6, 2, 5])
    """

    beta: float | Tensor
    writes: int

    @property
    def entries(self) -> int:
        return self.writes

    def __post_init__(self) -> None:
        whole("writes", self.writes)

    def check(self, sizes: Sizes) -> None:
        check_beta(self.beta, sizes, f"T*{self.writes}")

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        return Writes(k, v, r=k, beta=as_beta(self.beta, v), per_token=self.writes)

    def with_time_axis(self) -> Self:
        return self


def literal(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float, beta: Tensor, writes: int
) -> tuple[Tensor, Tensor]:
    """One head, token by token and write by write; k, v, beta hold T * writes rows."""
    identity = torch.eye(k.shape[1], dtype=k.dtype)
    out = []
    for t in range(q.shape[0]):
        memory = decay[t, :, None] * memory
        for j in range(t * writes, (t + 1) * writes):
            memory = (identity - beta[j] * torch.outer(k[j], k[j])) @ memory + beta[j] * torch.outer(k[j], v[j])
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory


def drawn(draw: Drawing) -> DeltaProduct:
    """A sample for the laws: below 2 every transition contracts unit keys."""
    return DeltaProduct(draw.uniform(0.0, 1.9, "B,T*2,H"), writes=2)
