"""Trigonometric random features."""

from typing import final

import torch
from torch import Tensor

from rebracket.base.checks import whole
from rebracket.features.base import FeatureMap
from rebracket.ops.program import Builder, Value


@final
class Rff(FeatureMap):
    """Random cosines and sines whose kernel is softmax's on average over the draws, but may be negative.

    phi(x) = m^(-1/2) exp(|y|^2 / 2) [cos(w_i . y), sin(w_i . y)], i = 1..m, with y = x / d^(1/4)

    E[phi(q) . phi(k)] = exp(q . k / sqrt(d))

    The w_i are independent standard normal vectors, a buffer: saved with the model, and drawn again from the seed by
    `reset_parameters`. With unit vectors, as in RFA, the exponential is the same factor for all.

    Args:
        dim: d, the size of the vectors.
        samples: m; d by default.
        seed: of the draw, which is the same on every device.

    Raises:
        ValueError: If samples is below 1.

    Cost: m d multiply-adds and 2 m trigonometric functions. dim_out = 2 m; not positive. The variance of the kernel is
    exp(|y_q|^2 + |y_k|^2) (1 - exp(-|y_q - y_k|^2))^2 / (2 m): none for equal vectors, most where the kernel is small.

    Source: Rahimi and Recht 2007; Peng et al. 2021, "Random feature attention".

    Example:
        >>> import torch
        >>> rff = Rff(4, samples=4096)
        >>> q, k = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> bool(((rff(q) @ rff(k)).log() - 0.5).abs() < 0.05)
        True
    """

    omega: Tensor

    def __init__(self, dim: int, *, samples: int | None = None, seed: int = 0) -> None:
        samples = whole("dim", dim) if samples is None else whole("samples", samples)
        super().__init__(dim, 2 * samples, positive=False)
        self.seed = seed
        self.register_buffer("omega", torch.empty(samples, whole("dim", dim)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the w_i of the seed that the map was built with."""
        self.redraw(self.seed)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Replaces the w_i, in place, by those of another seed; states written before no longer match."""
        # On the CPU by name: the draw must not depend on a default device, and `meta` has no numbers.
        generator = torch.Generator().manual_seed(seed)
        normals = torch.randn(self.omega.shape, generator=generator, dtype=torch.float64, device="cpu")
        self.omega.copy_(normals)

    def features(self, x: Tensor) -> Tensor:
        y = x * self.dim_in**-0.25
        angles = y @ self.omega.to(y.dtype).T
        length = (y.square().sum(-1, keepdim=True) / 2).exp() * self.omega.shape[0] ** -0.5
        return length * torch.cat([angles.cos(), angles.sin()], -1)

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        samples = self.omega.shape[0]
        half_square = build.apply("square", x, before=(2 * self.dim_in**0.5) ** -0.5)
        length = build.apply("exp", build.sum(half_square, heads), after=samples**-0.5)
        angles = build.product(x, self.omega * self.dim_in**-0.25, groups=heads, exact=True)
        waves = build.together(build.apply("cos", angles), build.apply("sin", angles))
        # From [cos of all heads, sin of all heads] to both of each head.
        order = torch.arange(waves.width).view(2, heads, samples).transpose(0, 1).flatten()
        return build.pair("multiply", build.select(waves, order), length)
