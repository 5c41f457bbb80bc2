"""Decays of the form -rate * softplus(x + dt_bias) and their first values, shared by Mamba-2 and its descendants."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.decays import Decay
from rebracket.nn.projections import GateProjection

SHORTEST, LONGEST, FLOOR = 0.001, 0.1, 1e-4


def draw_steps(dt_bias: Tensor) -> None:
    """Fills dt_bias so that softplus(dt_bias) is log-uniform in [0.001, 0.1]."""
    if dt_bias.is_meta:
        return
    with torch.no_grad():
        dt_bias.uniform_(math.log(SHORTEST), math.log(LONGEST))
        steps = dt_bias.exp().clamp(min=FLOOR)
        dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def draw_rates(A_log: Tensor, low: float, high: float) -> None:
    """Fills A_log so that exp(A_log) is uniform in [low, high]; a rate of 0, which could never move, is kept off."""
    if A_log.is_meta:
        return
    with torch.no_grad():
        A_log.uniform_(low, high).clamp_(min=FLOOR).log_()


class StepDecay(Decay):
    """A decay per token and head: a rate of its own for each head, times a step that the token sets.

    log_decay = -exp(A_log) Delta,   Delta = softplus(W x + dt_bias)

    Args:
        d_model: width of x.
        heads: heads of v, H.
    """

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.step = GateProjection(d_model, heads)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    @property
    @abstractmethod
    def least_rate(self) -> float:
        """The least that exp(A_log) is at first; 16 is the most."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.step(x)
        return -self.A_log.to(step).exp() * F.softplus(step + self.dt_bias.to(step))

    def reset_parameters(self) -> None:
        """Draws W, the rates and the steps again."""
        self.step.reset_parameters()
        draw_rates(self.A_log, self.least_rate, 16.0)
        draw_steps(self.dt_bias)
