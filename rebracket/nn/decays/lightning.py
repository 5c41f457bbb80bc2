"""Lightning attention's fixed decays."""

from typing import final

import torch
from torch import Tensor

from rebracket.nn.decays.base import Decay
from rebracket.ops.program import Builder, Value


@final
class LightningDecay(Decay):
    """One fixed decay per head, weaker in later layers.

    log_decay_h = -slope_h (1 - layer / (layers - 1) + 1e-5), slope_h = 2^(-8 h / H), h = 1..H

    When H is no power of 2 the slopes are those of the power P below it, then every second one of 2P's.

    Args:
        heads: heads of v, H.
        layer: which block this is, from 0.
        layers: blocks of the model.

    Returns:
        log_decay [H], for any x.

    Source: Qin et al. 2024, "Lightning Attention-2"; MiniMax-01; slopes from ALiBi, Press et al. 2021.

    Example:
        >>> LightningDecay(2, layer=0, layers=3)(torch.ones(1, 6, 8))
        tensor([-0.0625, -0.0039])
    """

    def __init__(self, heads: int, layer: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.weakening = 1 - layer / max(layers - 1, 1) + 1e-5

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return -self.weakening * slopes(torch.arange(self.heads, dtype=dtype, device=x.device))

    def lower(self, build: Builder, x: Value) -> Tensor:
        return self(torch.zeros(1, dtype=torch.float64))

    def reset_parameters(self) -> None:
        """Nothing to draw."""


def slopes(head: Tensor) -> Tensor:
    """ALiBi's slopes of heads 0..H-1, for any H."""
    power = 2 ** (head.shape[0].bit_length() - 1)
    whole, between = 8 * (head + 1) / power, 4 * (2 * (head - power) + 1) / power
    return torch.exp2(-torch.where(head < power, whole, between))
