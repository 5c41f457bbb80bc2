"""The feature map of the linear transformer: elu + 1."""

from typing import final

from torch import Tensor
from torch.nn import functional as F

from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Elu1(FeatureMap):
    """One more than the exponential linear unit: phi(x) = elu(x) + 1 = exp(x) for x <= 0, x + 1 above.

    Args:
        dim: d, the size of the vectors.

    Cost: d exponentials. dim_out = d; positive.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs".

    Example:
        >>> import torch
        >>> Elu1(3)(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0.3679, 1.0000, 3.0000])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, positive=True)

    def features(self, x: Tensor) -> Tensor:
        # Not elu(x) + 1: adding 1 to nearly -1 rounds the features of large negative x away.
        return x.clamp(max=0).exp() + F.relu(x)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.apply("elu1", x)
