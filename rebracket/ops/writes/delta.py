"""The delta rule: replace what the key recalls, by the fraction beta."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.ops.write import Drawing, Sizes, WriteRule, Writes, as_beta, check_beta


@final
@dataclass(frozen=True, eq=False)
class Delta(WriteRule):
    """Moves the value that the key recalls towards the new one.

    S_t = S~_t + beta_t k_t (v_t - S~_t^T k_t)^T

    With unit keys beta = 1 replaces the old value exactly; beta in (1, 2] overshoots, which gives the transition a
    negative eigenvalue. Keys longer than 1 with beta > 2 / |k|^2 make the state grow: normalize keys.

    Args:
        beta: strength of writing in [0, 2], a number or a tensor [H] or [B,T,H] ([B,H] in `step`).

    Raises:
        ValueError: in the call, beta outside [0, 2] or a tensor of another shape.
        TypeError: in the call, a beta that is neither number nor tensor.

    Cost: 6 K V operations a token and head. Source: Schlag, Irie and Schmidhuber 2021 (DeltaNet); with a decay per
    token Gated DeltaNet, per channel Kimi Delta Attention.

    Example:
        >>> import torch, rebracket as rb
        >>> k, v = torch.eye(3).view(1, 3, 1, 3), torch.randn(1, 3, 1, 5)
        >>> _, state = rb.linear_attention(k, k, v, write=rb.Delta(1.0), scale=1.0)
        >>> bool(torch.equal(state.memory[0, 0], v[0, :, 0]))
        True
    """

    beta: float | Tensor

    def check(self, sizes: Sizes) -> None:
        check_beta(self.beta, sizes)

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        return Writes(k, v, r=k, beta=as_beta(self.beta, v))


def literal(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, scale: float, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One head, token by token, as a product with the generalized Householder matrix I - beta k k^T; beta [T]."""
    identity = torch.eye(k.shape[1], dtype=k.dtype)
    out = []
    for t in range(q.shape[0]):
        transition = identity - beta[t] * torch.outer(k[t], k[t])
        memory = transition @ torch.diag(decay[t]) @ memory + beta[t] * torch.outer(k[t], v[t])
        out.append(scale * q[t] @ memory)
    return torch.stack(out), memory


def drawn(draw: Drawing) -> Delta:
    """A sample for the laws: below 2 every transition contracts unit keys."""
    return Delta(draw.uniform(0.0, 1.9, "B,T,H"))
