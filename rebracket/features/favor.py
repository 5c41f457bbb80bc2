"""Positive orthogonal random features (FAVOR+)."""

import math
from typing import final

import torch
from torch import Tensor

from rebracket.base.checks import whole
from rebracket.features.base import FeatureMap, both_signs
from rebracket.ops.program import Builder, Value


@final
class Favor(FeatureMap):
    """Random exponentials whose kernel is softmax's on average over the draws (FAVOR+).

    phi(x) = m^(-1/2) exp(w_i . y - |y|^2 / 2), i = 1..m, with y = x / d^(1/4)

    E[phi(q) . phi(k)] = exp(q . k / sqrt(d))

    The w_i are orthogonal in blocks of d, with the lengths of normal vectors. They are a buffer: saved with the model,
    and drawn again from the seed by `reset_parameters`.

    Args:
        dim: d, the size of the vectors.
        samples: m; by default d log d, the order at which the paper bounds the error, and at least d.
        seed: of the draw, which is the same on every device.
        hyperbolic: use each w_i and its negative, which at least halves the variance for twice the features.
        stabilized: let `queries` subtract the largest exponent of each query, so that the features of long queries do
            not underflow to 0. A normalizer divides that out; without one the outputs change. Keys are never shifted:
            a factor per key would change its weight against the others.

    Raises:
        ValueError: If samples is below 1.

    Cost: m d multiply-adds and dim_out exponentials. dim_out = m, hyperbolic 2 m; positive. The variance of the kernel
    grows as exp(|q + k|^2 / sqrt(d)) / m.

    Source: Choromanski et al. 2021, "Rethinking attention with performers".

    Example:
        >>> import torch
        >>> favor = Favor(4, samples=4096)
        >>> q, k = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> bool(((favor(q) @ favor(k)).log() - 0.5).abs() < 0.05)
        True
    """

    omega: Tensor

    def __init__(
        self, dim: int, *, samples: int | None = None, seed: int = 0, hyperbolic: bool = False, stabilized: bool = False
    ) -> None:
        samples = paper_samples(whole("dim", dim)) if samples is None else whole("samples", samples)
        super().__init__(dim, 2 * samples if hyperbolic else samples, positive=True)
        self.seed = seed
        self.hyperbolic = hyperbolic
        self.stabilized = stabilized
        self.register_buffer("omega", torch.empty(samples, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the w_i of the seed that the map was built with."""
        self.redraw(self.seed)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Replaces the w_i, in place, by those of another seed; states written before no longer match."""
        self.omega.copy_(orthogonal_normals(self.omega.shape[0], self.dim_in, seed))

    def features(self, x: Tensor) -> Tensor:
        y = x * self.dim_in**-0.25
        return self.dim_out**-0.5 * (self.project(y) - y.square().sum(-1, keepdim=True) / 2).exp()

    def lower(self, build: Builder, x: Value, heads: int) -> Value:
        half_square = build.apply("square", x, before=(2 * self.dim_in**0.5) ** -0.5)
        exponents = build.pair("subtract", self.lower_exponents(build, x, heads), build.sum(half_square, heads))
        return build.apply("exp", exponents, after=self.dim_out**-0.5)

    def lower_queries(self, build: Builder, x: Value, heads: int) -> Value:
        if not self.stabilized:
            return self.lower(build, x, heads)
        return build.exponentials(self.lower_exponents(build, x, heads), heads, divided=False)

    def lower_exponents(self, build: Builder, x: Value, heads: int) -> Value:
        projected = build.product(x, self.omega * self.dim_in**-0.25, groups=heads, exact=True)
        return both_signs(build, projected, heads) if self.hyperbolic else projected

    def query_features(self, x: Tensor) -> Tensor:
        if not self.stabilized:
            return self.features(x)
        exponents = self.project(x * self.dim_in**-0.25)
        return (exponents - exponents.amax(-1, keepdim=True)).exp()

    def project(self, y: Tensor) -> Tensor:
        projected = y @ self.omega.to(y.dtype).T
        return torch.cat([projected, -projected], -1) if self.hyperbolic else projected


def paper_samples(dim: int) -> int:
    return max(dim, round(dim * math.log(dim)))


def orthogonal_normals(count: int, dim: int, seed: int) -> Tensor:
    """[count, dim] float64 rows, each a standard normal vector by itself, orthogonal within blocks of dim."""
    generator = torch.Generator().manual_seed(seed)
    # On the CPU by name: the draw must not depend on a default device, and `meta` has no numbers.
    blocks = [random_rotation(dim, generator) for _ in range(-(-count // dim))]
    lengths = torch.randn(count, dim, generator=generator, dtype=torch.float64, device="cpu").norm(dim=-1)
    return lengths[:, None] * torch.cat(blocks)[:count]


def random_rotation(dim: int, generator: torch.Generator) -> Tensor:
    """A uniformly random orthogonal matrix."""
    normals = torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(normals)
    # The Q of QR alone is not uniform; times the signs of R's diagonal it is.
    return q * r.diagonal().sign()
