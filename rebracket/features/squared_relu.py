"""Squared rectified features."""

from typing import final

from torch import Tensor
from torch.nn import functional as F

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class SquaredRelu(FeatureMap):
    """The square of the positive part: phi(x) = max(x, 0)^2, sparse like relu and spikier.

    Args:
        dim: d, the size of the vectors.

    Cost: d multiplications. dim_out = d; positive.

    Source: as an activation So et al. 2021, "Primer".

    Example:
        >>> import torch
        >>> SquaredRelu(2)(torch.tensor([-1.0, 3.0]))
        tensor([0., 9.])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=True)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(x).square()

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.apply("square", build.apply("relu", x))
