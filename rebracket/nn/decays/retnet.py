"""RetNet's fixed decays."""

from typing import final

import torch
from torch import Tensor

from rebracket.nn.decays.base import Decay
from rebracket.ops.program import Builder, Value


@final
class RetNetDecay(Decay):
    """One fixed decay per head; each head's memory spans twice the last one's.

    log_decay_h = log(1 - 2^(-5-h)), h = 0..H-1

    Args:
        heads: heads of v, H.

    Returns:
        log_decay [H], for any x.

    Source: Sun et al. 2023, "Retentive Network".

    Example:
        >>> RetNetDecay(2)(torch.ones(1, 6, 8)).exp()
        tensor([0.9688, 0.9844])
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        # Computed at every call: a buffer would be rounded when the model moves to a shorter dtype.
        dtype = torch.promote_types(x.dtype, torch.float32)
        head = torch.arange(self.heads, dtype=dtype, device=x.device)
        return torch.log1p(-torch.exp2(-5 - head))

    def lower(self, build: Builder, x: Value) -> Tensor:
        return self(torch.zeros(1, dtype=torch.float64))

    def reset_parameters(self) -> None:
        """Nothing to draw."""
