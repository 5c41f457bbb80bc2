"""No feature map."""

from typing import final

from torch import Tensor

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Identity(FeatureMap):
    """The vectors as they are: phi(x) = x, so the kernel is q . k.

    Args:
        dim: d, the size of the vectors.

    Cost: none. dim_out = d; not positive.

    Source: RetNet, GLA, Mamba-2 and others that decay and drop the normalizer.

    Example:
        >>> import torch
        >>> Identity(2)(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=False)

    def features(self, x: Tensor) -> Tensor:
        return x

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return x
