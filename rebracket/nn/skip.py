"""A way from a token's value to its output that passes the memory by."""

from typing import final

import torch
from torch import Tensor, nn

from rebracket.ops.program import Builder, Value


@final
class ValueSkip(nn.Module):
    """The output of each head with the token's own value added, weighted per head.

    y_h = o_h + D_h v_h

    Args:
        heads: heads of v, H, >= 1.

    Cost: V multiply-adds a head. Source: the D of state-space models; Dao and Gu 2024 (Mamba-2).

    Example:
        >>> ValueSkip(2)(torch.zeros(1, 2, 3), torch.ones(1, 2, 3)).detach()
        tensor([[[1., 1., 1.],
                 [1., 1., 1.]]])
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.D = nn.Parameter(torch.ones(heads))

    def forward(self, out: Tensor, v: Tensor) -> Tensor:
        """out and v [...,H,V] to the same."""
        return out + self.D.to(out.dtype)[:, None] * v.to(out.dtype)

    def lower(self, build: Builder, out: Value, v: Value) -> Value:
        """The operations of `forward`."""
        return build.pair("add", out, build.pair("multiply", v, self.D.repeat_interleave(v.width // len(self.D))))

    def reset_parameters(self) -> None:
        """D = 1."""
        nn.init.ones_(self.D)
