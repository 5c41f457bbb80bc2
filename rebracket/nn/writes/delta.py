"""Writes of the delta rule."""

from dataclasses import replace
from typing import final

from torch import Tensor

from rebracket.base.checks import number
from rebracket.nn.projections import GateProjection
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.delta import Delta


@final
class DeltaWrite(Write):
    """The delta rule with a strength per token and head.

    beta = beta_max * sigmoid(W x)

    Args:
        d_model: width of x.
        heads: heads of v, H.
        beta_max: largest strength, in (0, 2]; above 1 the transition may have negative eigenvalues.

    Raises:
        ValueError: If beta_max is out of its range.

    Cost: d_model H multiply-adds a token. Source: DeltaNet, Yang et al. 2024; beta_max = 2 for negative eigenvalues,
    Grazzi et al. 2024.

    Example:
        >>> import torch
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> DeltaWrite(8, 2)(x, k, v, None).rule.beta.shape
        torch.Size([1, 6, 2])
    """

    def __init__(self, d_model: int, heads: int, beta_max: float = 1.0) -> None:
        super().__init__()
        self.beta_max = number("beta_max", beta_max, 0, 2)
        self.beta = GateProjection(d_model, heads)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        return Written(k, v, Delta(self.beta_max * self.beta(x).sigmoid()))

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        beta = build.apply("sigmoid", self.beta.lower(build, x), after=self.beta_max)
        return replace(given, r=given.k, beta=beta)

    def reset_parameters(self) -> None:
        """Draws W again."""
        self.beta.reset_parameters()
