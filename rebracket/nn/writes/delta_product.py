"""Several writes of the delta rule a token."""

from dataclasses import replace
from typing import final

from torch import Tensor

from rebracket.base.checks import number, whole
from rebracket.nn.projections import GateProjection
from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.delta_product import DeltaProduct


@final
class DeltaProductWrite(Write):
    """Several delta writes a token, each with a key, a value and a strength per head.

    beta = beta_max * sigmoid(W x)

    Args:
        d_model: width of x.
        heads: heads of v, H.
        beta_max: largest strength, in (0, 2]; above 1 a write may reflect.
        writes: writes of a token, n >= 1.

    Raises:
        ValueError: If beta_max or writes is out of its range.

    Cost: n d_model H multiply-adds a token, and n times as many for keys and values. Source: Siems et al. 2025,
    "DeltaProduct".

    Example:
        >>> import torch
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 12, 2, 3), torch.ones(1, 12, 2, 5)
        >>> DeltaProductWrite(8, 2)(x, k, v, None).rule.beta.shape
        torch.Size([1, 12, 2])
    """

    def __init__(self, d_model: int, heads: int, beta_max: float = 1.0, writes: int = 2) -> None:
        super().__init__()
        self.beta_max, self.writes = number("beta_max", beta_max, 0, 2), whole("writes", writes)
        self.beta = GateProjection(d_model, writes * heads)

    @property
    def entries(self) -> int:
        return self.writes

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        beta = self.beta(x).unflatten(-1, (self.writes, -1)).flatten(1, -2)
        return Written(k, v, DeltaProduct(self.beta_max * beta.sigmoid(), self.writes))

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        beta = build.apply("sigmoid", self.beta.lower(build, x), after=self.beta_max)
        return replace(given, r=given.k, beta=beta)

    def reset_parameters(self) -> None:
        """Draws W again."""
        self.beta.reset_parameters()
