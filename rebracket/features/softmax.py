"""Softmax over the channels of one vector."""

from typing import final

from torch import Tensor

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Softmax(FeatureMap):
    """Each vector as a distribution over its own channels: phi(x) = exp(x_i) / sum_j exp(x_j).

    The features of a vector sum to 1, so every key has the same total weight.

    Args:
        dim: d, the size of the vectors.

    Cost: d exponentials. dim_out = d; positive.

    Source: Shen et al. 2021, "Efficient attention: attention with linear complexities", for the queries.

    Example:
        >>> import torch
        >>> Softmax(2)(torch.tensor([1.0, 1.0]))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=True)

    def features(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.exponentials(x, heads, divided=True)
