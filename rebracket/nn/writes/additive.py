"""Additive writes."""

from typing import final

from torch import Tensor

from rebracket.nn.writes.base import LoweredWrite, Write, Written
from rebracket.ops.program import Builder, Value
from rebracket.ops.writes.additive import Additive


@final
class AdditiveWrite(Write):
    """Adds every key-value pair with weight 1; it has no weights.

    Cost: none. Source: Katharopoulos et al. 2020, "Transformers are RNNs".

    Example:
        >>> import torch
        >>> x, k, v = torch.ones(1, 6, 8), torch.ones(1, 6, 2, 3), torch.ones(1, 6, 2, 5)
        >>> AdditiveWrite()(x, k, v, None).rule
        Additive()
    """

    def forward(self, x: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Written:
        return Written(k, v, Additive())

    def lower(self, build: Builder, x: Value, given: LoweredWrite, log_decay: Value | Tensor | None) -> LoweredWrite:
        return given

    def reset_parameters(self) -> None:
        """Nothing to draw."""
