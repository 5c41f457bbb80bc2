"""Additive writing: the Hebbian outer product."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.ops.write import Sizes, WriteRule, Writes


@final
@dataclass(frozen=True, eq=False)
class Additive(WriteRule):
    """Adds each key-value pair to the state without looking at what is there.

    S_t = S~_t + k_t v_t^T

    Cost: 4 K V operations a token and head. Source: Katharopoulos et al. 2020, "Transformers are RNNs"; with a decay it
    is RetNet, Mamba-2 or GLA.

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 5)
        >>> rb.linear_attention(q, k, v, write=rb.Additive()).out.shape
        torch.Size([1, 6, 2, 5])
    """

    reads_back: ClassVar[bool] = False

    def check(self, sizes: Sizes) -> None:
        """Nothing to check: the rule carries no tensors."""

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        return Writes(k, v)


def literal(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One head, token by token: q, k [T,K], v [T,V], decay [T,K] as factors, memory [K,V]."""
    out = []
    for t in range(q.shape[0]):
        memory = decay[t, :, None] * memory + torch.outer(k[t], v[t])
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory
