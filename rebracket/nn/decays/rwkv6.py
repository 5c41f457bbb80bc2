"""The gate of RWKV-6."""

from typing import final

import torch
from torch import Tensor, nn

from rebracket.nn.decays.base import LARGEST, Decay
from rebracket.nn.projections import GateProjection
from rebracket.ops.program import Builder, Value

RANK = 64


@final
class RWKV6Decay(Decay):
    """A decay per token, head and key channel: an exponential of an exponential.

    log_decay = -exp(w0 + W2 tanh(W1 x))

    At first w0 rises over the channels from -6 to -1, later in deeper layers: most channels keep what they read.

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_dim: key channels of a head, K.
        layer: which block this is, from 0.
        layers: blocks of the model.

    Returns:
        log_decay [B,T,H,K].

    Cost: 64 (d_model + H K) multiply-adds a token. Source: Peng et al. 2024, "Eagle and Finch" (RWKV-6).

    Example:
        >>> decay = RWKV6Decay(8, 2, 3, layer=0, layers=2)
        >>> decay(torch.zeros(1, 6, 8))[0, 0, 0, 0] == -torch.tensor(-6.0).exp()
        tensor(True)
    """

    def __init__(self, d_model: int, heads: int, key_dim: int, layer: int, layers: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, layer / max(layers - 1, 1)
        self.down, self.up = GateProjection(d_model, RANK), GateProjection(RANK, heads * key_dim)
        # One axis, so that the optimizer does not shrink it.
        self.w0 = nn.Parameter(torch.empty(heads * key_dim))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        w = self.up(self.down(x).tanh())
        return -(self.w0.to(w) + w).clamp(max=LARGEST).exp().unflatten(-1, (self.heads, -1))

    def lower(self, build: Builder, x: Value) -> Value:
        middle = self.down.lower(build, x)
        twice = build.apply("sigmoid", middle, before=2.0, after=2.0)
        tanh = build.pair("subtract", twice, torch.ones(RANK))  # tanh(x) = 2 sigmoid(2 x) - 1
        w = build.pair("add", self.up.lower(build, tanh), self.w0)
        return build.apply("exp", build.pair("minimum", w, torch.full_like(self.w0, LARGEST)), after=-1.0)

    def reset_parameters(self) -> None:
        """Draws W1 and W2 again; w0 as at first."""
        self.down.reset_parameters()
        self.up.reset_parameters()
        channel = torch.linspace(0, 1, len(self.w0), dtype=self.w0.dtype, device=self.w0.device)
        with torch.no_grad():
            self.w0.copy_(5 * channel ** (0.7 + 1.3 * self.depth) - 6)
