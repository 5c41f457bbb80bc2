"""The gate of gated linear attention."""

from typing import final

from torch import Tensor
from torch.nn import functional as F

from rebracket.nn.decays.base import Decay
from rebracket.nn.projections import LowRankProjection
from rebracket.ops.program import Builder, Value

RANK = 16
TEMPERATURE = 16.0


@final
class GLADecay(Decay):
    """A decay per token, head and key channel, close to 1 by its root.

    log_decay = log_sigmoid(W2 W1 x + b) / 16

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_dim: key channels of a head, K.

    Returns:
        log_decay [B,T,H,K].

    Cost: 16 (d_model + H K) multiply-adds a token. Source: Yang et al. 2023, "Gated Linear Attention".

    Example:
        >>> import torch
        >>> bool((GLADecay(8, 2, 3)(torch.ones(1, 6, 8)) < 0).all())
        True
    """

    def __init__(self, d_model: int, heads: int, key_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.gate = LowRankProjection(d_model, RANK, heads * key_dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(self.gate(x).unflatten(-1, (self.heads, -1))) / TEMPERATURE

    def lower(self, build: Builder, x: Value) -> Value:
        return build.apply("logsigmoid", self.gate.lower(build, x), after=1 / TEMPERATURE)

    def reset_parameters(self) -> None:
        """Draws W1 and W2 again, b = 0."""
        self.gate.reset_parameters()
