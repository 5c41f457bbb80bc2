"""Queries less a part of the present key."""

from typing import final

import torch
from torch import Tensor, nn

from rebracket.ops.program import Builder, Value


@final
class QueryCorrection(nn.Module):
    """Every query less the key of its own token, weighted per head.

    q' = q - d k

    What a token has just written is then read d times less: the output corrects the query by what it asks for.

    Args:
        key_heads: heads of q and k, Hq.

    Cost: K multiply-adds a head. Source: Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop Control".

    Example:
        >>> QueryCorrection(2)(torch.ones(1, 6, 2, 3), torch.full((1, 6, 2, 3), 0.25))[0, 0, 0].detach()
        tensor([0.7500, 0.7500, 0.7500])
    """

    def __init__(self, key_heads: int) -> None:
        super().__init__()
        self.d = nn.Parameter(torch.ones(key_heads))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q and k [...,Hq,K], features already, to q'."""
        return q - self.d.to(q.dtype)[:, None] * k

    def lower(self, build: Builder, q: Value, k: Value) -> Value:
        """The operations of `forward`."""
        weights = self.d.repeat_interleave(k.width // len(self.d))
        return build.pair("subtract", q, build.pair("multiply", k, weights))

    def reset_parameters(self) -> None:
        """d = 1."""
        nn.init.ones_(self.d)
