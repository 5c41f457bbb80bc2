"""The gate of HGRN2, which stays above a bound that rises from layer to layer."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.decays.base import Decay
from rebracket.nn.projections import GateProjection
from rebracket.ops.program import Builder, Value


@final
class HGRN2Decay(Decay):
    """A decay per token, head and key channel, above a learned bound of the layer.

    a = l + (1 - l) sigmoid(W x),   l = sigmoid(bound), and l = 0 in layer 0

    The paper learns the bounds of all layers as one cumulative softmax over the layers, which begins at
    l = layer / layers. A layer does not see the others: here each learns its own bound for every channel, from the same
    beginning.

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_dim: key channels of a head, K.
        layer: which block this is, from 0.
        layers: blocks of the model.

    Returns:
        log_decay = log a, [B,T,H,K].

    Cost: d_model H K multiply-adds a token. Source: Qin et al. 2024, "HGRN2: Gated Linear RNNs with State Expansion".

    Example:
        >>> decay = HGRN2Decay(8, 2, 3, layer=1, layers=2)
        >>> bool((decay(torch.randn(1, 6, 8)).exp() > 0.5).all())
        True
    """

    def __init__(self, d_model: int, heads: int, key_dim: int, layer: int, layers: int) -> None:
        super().__init__()
        self.heads, self.first = heads, layer / layers
        self.gate = GateProjection(d_model, heads * key_dim)
        self.bound = nn.Parameter(torch.empty(heads * key_dim)) if layer else None
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        log_decay = F.logsigmoid(self.gate(x))
        if self.bound is not None:
            bound = self.bound.to(log_decay)
            log_decay = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + log_decay)
        return log_decay.unflatten(-1, (self.heads, -1))

    def lower(self, build: Builder, x: Value) -> Value:
        log_decay = build.apply("logsigmoid", self.gate.lower(build, x))
        if self.bound is None:
            return log_decay
        above = build.pair("add", log_decay, F.logsigmoid(-self.bound))
        return build.pair("logaddexp", above, F.logsigmoid(self.bound))

    def reset_parameters(self) -> None:
        """Draws W again; l = layer / layers."""
        self.gate.reset_parameters()
        if self.bound is not None:
            nn.init.constant_(self.bound, math.log(self.first / (1 - self.first)))
