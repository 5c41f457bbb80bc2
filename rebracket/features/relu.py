"""Rectified features."""

from typing import final

from torch import Tensor
from torch.nn import functional as F

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Relu(FeatureMap):
    """The positive part: phi(x) = max(x, 0).

    A vector without a positive entry has no features at all; under a normalizer its output is the operator's 0.

    Args:
        dim: d, the size of the vectors.

    Cost: d comparisons. dim_out = d; positive.

    Source: Performer-ReLU, Choromanski et al. 2021; with a learned projection it is the map "t2r".

    Example:
        >>> import torch
        >>> Relu(2)(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=True)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.apply("relu", x)
