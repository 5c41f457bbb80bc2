"""What every decay is, and the form that Mamba-2 and its descendants share: -rate * softplus(x + dt_bias)."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.nn.projections import GateProjection
from rebracket.ops.program import Builder, Value, not_lowered

SHORTEST, LONGEST, FLOOR = 0.001, 0.1, 1e-4
LARGEST = 80.0
"""Of a number whose exponential is to be multiplied in float32."""


class Decay(nn.Module, ABC):
    """A layer from tokens to log-decays: natural logarithms, <= 0, at least float32, for a sequence or for one token.

    Weights that no optimizer should shrink have one axis (see `weight_decay_groups`).

    Example:
        >>> from rebracket.nn import MixerSize, decays
        >>> decay = decays.make("retnet", MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5))
        >>> isinstance(decay, Decay), decay(torch.ones(1, 6, 8)).shape
        (True, torch.Size([2]))
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[H], [B,T,H] or [B,T,H,K] for x [B,T,d_model]; the same without T for x [B,d_model]."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws every weight again."""

    def lower(self, build: Builder, x: Value) -> Value | Tensor:
        """The operations of `forward`: a value [H] or [H K], or a tensor of these where no token changes it."""
        not_lowered(self)


class StepDecay(Decay):
    """A decay per token and head: a rate for each head, times a step that the token sets.

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
        A_log, dt_bias = bounded(self.A_log.to(step), self.dt_bias.to(step))
        return -A_log.exp() * F.softplus(step + dt_bias)

    def lower(self, build: Builder, x: Value) -> Value:
        if type(self).forward is not StepDecay.forward:
            not_lowered(self, "it has a `forward` of its own and no `lower`")
        A_log, dt_bias = bounded(self.A_log, self.dt_bias)
        step = build.product(x, self.step.weight, dt_bias, exact=True)
        return build.pair("multiply", build.apply("softplus", step), -A_log.exp())

    def lower_steps(self, build: Builder, log_decay: Value) -> Value:
        """The operations of `steps`."""
        return build.pair("multiply", log_decay, -(-bounded(self.A_log, self.A_log)[0]).exp())

    def steps(self, log_decay: Tensor) -> Tensor:
        """Delta [B,T,H], for what `forward` returned."""
        A_log = self.A_log.to(log_decay)
        return -log_decay * (-bounded(A_log, A_log)[0]).exp()

    def reset_parameters(self) -> None:
        """Draws W, the rates and the steps again."""
        self.step.reset_parameters()
        draw_rates(self.A_log, self.least_rate, 16.0)
        draw_steps(self.dt_bias)


def bounded(A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """A_log of at most `LARGEST`, and dt_bias larger by the rest; without it a rate of infinity meets a step of 0.

    exp(A) softplus(x) = exp(A - c) softplus(x + c) where x + c is far below 0; elsewhere, with A beyond `LARGEST`, the
    decay is 0 by both.
    """
    rest = (A_log - LARGEST).clamp(min=0)
    return A_log - rest, dt_bias + rest


def draw_steps(dt_bias: Tensor) -> None:
    """Fills dt_bias so that softplus(dt_bias) is log-uniform in [0.001, 0.1]."""
    if dt_bias.is_meta:
        return
    with torch.no_grad():
        dt_bias.uniform_(math.log(SHORTEST), math.log(LONGEST))
        steps = dt_bias.exp().clamp(min=FLOOR)
        dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def draw_rates(A_log: Tensor, low: float, high: float) -> None:
    """Fills A_log so that exp(A_log) is uniform in [low, high], but at least 1e-4: a rate of 0 could never change."""
    if A_log.is_meta:
        return
    with torch.no_grad():
        A_log.uniform_(low, high).clamp_(min=FLOOR).log_()
