"""A learned projection, rectified."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from rebracket.base.checks import whole
from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class T2R(FeatureMap):
    """A learned projection, rectified: phi(x) = max(W x + b, 0).

    Args:
        dim: d, the size of the vectors.
        width: m, the number of features; d by default.

    Cost: m d multiply-adds. dim_out = m; positive.

    Source: Kasai et al. 2021, "Finetuning pretrained transformers into RNNs".

    Example:
        >>> import torch
        >>> T2R(4, width=6)(torch.randn(2, 4)).shape
        torch.Size([2, 6])
    """

    def __init__(self, dim: int, *, width: int | None = None) -> None:
        width = dim if width is None else whole("width", width)
        super().__init__(dim, width, positive=True)
        self.projection = nn.Linear(dim, width)

    def reset_parameters(self) -> None:
        """Draws W and b uniformly from +- 1 / sqrt(d)."""
        self.projection.reset_parameters()

    def features(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.projection.weight.to(x.dtype), self.projection.bias.to(x.dtype)))

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        weight, bias = self.projection.weight, self.projection.bias
        return build.apply("relu", build.product(x, weight, bias, groups=heads, exact=True))
