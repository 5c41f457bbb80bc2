"""Additive writes that are read before they are written, the present token through a weight of its own."""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.additive import Additive


@final
class BonusWrite(Write):
    """Additive writes; the output reads the state before the write, and the present token with weight u.

    o_t = S_{t-1}^T q_t + (q_t . (u * k_t)) v_t

    Args:
        heads: heads of v, H.
        key_dim: width of a head's keys, K.
        layer: which block this is, from 0.
        layers: blocks of the model.

    At first u falls over the channels, the more the deeper the layer, with a ripple of 0.1.

    Cost: K + V multiply-adds a token and head. Source: Peng et al. 2024, "Eagle and Finch" (RWKV-6).

    Example:
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> BonusWrite(2, 3, layer=0, layers=2)(x, k, v, None).bonus.shape
        torch.Size([2, 3])
    """

    def __init__(self, heads: int, key_dim: int, layer: int, layers: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, layer / max(layers - 1, 1)
        # One axis, so that the optimizer does not shrink it.
        self.u = nn.Parameter(torch.empty(heads * key_dim))
        self.reset_parameters()

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        return Written(k, v, Additive(), self.u.unflatten(0, (self.heads, -1)))

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        return replace(given, bonus=self.u.view(self.heads, -1))

    def reset_parameters(self) -> None:
        """u as at first."""
        channel = torch.arange(len(self.u), dtype=self.u.dtype, device=self.u.device)
        ripple = 0.1 * ((channel + 1) % 3 - 1)
        with torch.no_grad():
            self.u.copy_(self.depth * (1 - channel / max(len(self.u) - 1, 1)) + ripple)
