"""Elementwise exponentials."""

from typing import final

from torch import Tensor

from rebracket.base.checks import number
from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Exp(FeatureMap):
    """The exponential of every entry: phi(x) = exp(t x).

    It is unbounded: float32 overflows where t x exceeds 88, float16 features where it exceeds 11.

    Args:
        dim: d, the size of the vectors.
        temperature: t, > 0; larger is spikier.

    Raises:
        ValueError: If the temperature is not above 0.

    Cost: d exponentials. dim_out = d; positive.

    Source: Zhang et al. 2024, "The hedgehog and the porcupine", where t is 1 and 2.

    Example:
        >>> import torch
        >>> Exp(2, temperature=2.0)(torch.tensor([-1.0, 0.5]))
        tensor([0.1353, 2.7183])
    """

    def __init__(self, dim: int, *, temperature: float = 1.0) -> None:
        super().__init__(dim, dim, positive=True)
        self.temperature = number("temperature", temperature, above=0)

    def features(self, x: Tensor) -> Tensor:
        return (self.temperature * x).exp()

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        return build.apply("exp", x, before=self.temperature)
