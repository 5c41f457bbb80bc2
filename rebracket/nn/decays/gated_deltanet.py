"""The scalar gate of Mamba-2 as Gated DeltaNet draws it."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.decays import Decay
from rebracket.nn.mixer import MixerSize
from rebracket.nn.projections import GateProjection
from rebracket.nn.rates import draw_rates, draw_steps


@final
class GatedDeltaNetDecay(Decay):
    """A decay per token and head: a rate of its own for each head, times a step that the token sets.

    log_decay = -exp(A_log) softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.

    Returns:
        log_decay [B,T,H].

    At first exp(A_log) is uniform in (0, 16) and softplus(dt_bias) log-uniform in [0.001, 0.1].

    Cost: d_model H multiply-adds a token. Source: Dao and Gu 2024 (Mamba-2); Yang et al. 2024, "Gated Delta Networks".

    Example:
        >>> bool((GatedDeltaNetDecay(8, 2)(torch.ones(1, 6, 8)) < 0).all())
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

    def reset_parameters(self) -> None:
        """Draws W, the rates and the steps again."""
        self.step.reset_parameters()
        draw_rates(self.A_log, 0.0, 16.0)
        draw_steps(self.dt_bias)


def build(size: MixerSize) -> Decay:
    """The gate for `size.heads` heads."""
    return GatedDeltaNetDecay(size.d_model, size.heads)
