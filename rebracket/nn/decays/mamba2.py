"""The gate of Mamba-2, whose step is also the strength of its writes."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.decays import Decay
from rebracket.nn.mixer import MixerSize
from rebracket.nn.projections import GateProjection
from rebracket.nn.rates import draw_rates, draw_steps


@final
class Mamba2Decay(Decay):
    """A decay per token and head, and values weighted by the step that made it.

    log_decay = -exp(A_log) Delta,   v' = Delta v,   Delta = softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.

    Returns:
        log_decay [B,T,H].

    At first exp(A_log) is uniform in [1, 16] and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: d_model H multiply-adds a token. Source: Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).

    Example:
        >>> decay = Mamba2Decay(8, 2)
        >>> log_decay = decay(torch.zeros(1, 6, 8))
        >>> bool(torch.allclose(decay.strength(log_decay), F.softplus(decay.dt_bias)))
        True
    """

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.step = GateProjection(d_model, heads)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        step = self.step(x)
        return -self.A_log.to(step).exp() * F.softplus(step + self.dt_bias.to(step))

    def strength(self, log_decay: Tensor) -> Tensor:
        """Delta [...,H]."""
        return -log_decay * (-self.A_log.to(log_decay)).exp()

    def reset_parameters(self) -> None:
        """Draws W, the rates and the steps again."""
        self.step.reset_parameters()
        draw_rates(self.A_log, 1.0, 16.0)
        draw_steps(self.dt_bias)


def build(size: MixerSize) -> Decay:
    """The gate for `size.heads` heads."""
    return Mamba2Decay(size.d_model, size.heads)
