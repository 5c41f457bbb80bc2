"""The sigmoid-weighted linear unit, the feature map of the delta-rule models."""

from typing import final

from torch import Tensor
from torch.nn import functional as F

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Silu(FeatureMap):
    """The sigmoid-weighted linear unit: phi(x) = x / (1 + exp(-x)).

    Delta-rule models then normalize these features to unit length; that is an option of the layer, not part of the map.

    Args:
        dim: d, the size of the vectors.

    Cost: d exponentials. dim_out = d; not positive (features reach down to -0.28).

    Source: Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length".

    Example:
        >>> import torch
        >>> Silu(2)(torch.tensor([-1.0, 2.0]))
        tensor([-0.2689,  1.7616])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=False)

    def features(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.apply("silu", x)
