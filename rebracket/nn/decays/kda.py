"""The channel-wise gate of Kimi Delta Attention."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.decays.base import Decay, bounded, draw_rates, draw_steps
from rebracket.nn.projections import LowRankProjection
from rebracket.ops.program import Builder, Value


@final
class KDADecay(Decay):
    """A decay per token, head and key channel: a rate for each head, times a step for each channel.

    log_decay = -exp(A_log) softplus(W2 W1 x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.
        key_dim: key channels of a head, K, and the rank of W2 W1.

    Returns:
        log_decay [B,T,H,K].

    At first exp(A_log) is uniform in [1, 16] and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: K (d_model + H K) multiply-adds a token. Source: Kimi Team 2025, "Kimi Linear".

    Example:
        >>> KDADecay(8, 2, 3)(torch.ones(1, 6, 8)).shape
        torch.Size([1, 6, 2, 3])
    """

    def __init__(self, d_model: int, heads: int, key_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.step = LowRankProjection(d_model, key_dim, heads * key_dim)
        self.A_log = nn.Parameter(torch.empty(heads))
        # One axis, so that the optimizer does not shrink it.
        self.dt_bias = nn.Parameter(torch.empty(heads * key_dim))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        step = self.step(x).unflatten(-1, (self.heads, -1))
        A_log, dt_bias = bounded(self.A_log.to(step)[:, None], self.dt_bias.to(step).view(self.heads, -1))
        return -A_log.exp() * F.softplus(step + dt_bias)

    def lower(self, build: Builder, x: Value) -> Value:
        A_log, dt_bias = bounded(self.A_log[:, None], self.dt_bias.view(self.heads, -1))
        step = build.pair("add", self.step.lower(build, x), dt_bias.flatten())
        rates = -A_log.exp().expand_as(dt_bias).flatten()
        return build.pair("multiply", build.apply("softplus", step), rates)

    def reset_parameters(self) -> None:
        """Draws W1, W2, the rates and the steps again."""
        self.step.reset_parameters()
        draw_rates(self.A_log, 1.0, 16.0)
        draw_steps(self.dt_bias)
