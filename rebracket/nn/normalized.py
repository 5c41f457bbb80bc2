"""Features of length 1, as the delta rule wants its keys."""

from typing import final

from torch import Tensor

from rebracket.features.base import FeatureMap
from rebracket.nn.norms import UNIT_EPS, l2_normalize
from rebracket.ops.program import Builder, Value


@final
class UnitFeatures(FeatureMap):
    """Another map's features, each vector divided by its length.

    phi(x) = f(x) / |f(x)|

    A delta write with a unit key and beta = 1 replaces exactly what the key recalled.

    Args:
        inner: f.

    Returns:
        phi(x), of the size and sign of f(x); a vector of zeros stays one.

    Cost: that of f, and 2 dim_out multiply-adds. Source: Yang et al. 2024, "Parallelizing linear transformers with the
    delta rule".

    Example:
        >>> import torch
        >>> from rebracket import features
        >>> UnitFeatures(features.make("identity", 2))(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    def __init__(self, inner: FeatureMap) -> None:
        super().__init__(inner.dim_in, inner.dim_out, positive=inner.positive)
        self.inner = inner

    def features(self, x: Tensor) -> Tensor:
        return l2_normalize(self.inner.features(x))

    def query_features(self, x: Tensor) -> Tensor:
        """Those of queries, of unit length."""
        return l2_normalize(self.inner.query_features(x))

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.normalize("unit", self.inner.lower(build, x, heads), UNIT_EPS, groups=heads)

    def lower_queries(self, build: Builder, x: Value, heads: int) -> Value:
        return build.normalize("unit", self.inner.lower_queries(build, x, heads), UNIT_EPS, groups=heads)

    def reset_parameters(self) -> None:
        """Draws the inner map again."""
        self.inner.reset_parameters()
