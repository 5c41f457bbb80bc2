"""rff estimates softmax's kernel without bias, with the variance that the theory gives."""

import math

import pytest
import torch

from rebracket.features.rff import Rff

SAMPLES = 200_000


def vectors(cosine: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k whose scaled forms y have lengths 0.7 and 0.5."""
    q, k = torch.zeros(2, 5, dtype=torch.float64)
    q[0], k[0], k[1] = 0.7, 0.5 * cosine, 0.5 * (1 - cosine**2) ** 0.5
    return q * 5**0.25, k * 5**0.25


def products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """What each of many samples says of the kernel."""
    phi = Rff(5, samples=SAMPLES, seed=3)
    cosines, sines = (SAMPLES * phi(q) * phi(k)).view(2, SAMPLES)
    return cosines + sines


@pytest.mark.parametrize("cosine", [-1.0, 0.0, 0.6])
def test_mean_and_variance_over_draws_are_those_of_the_theory(cosine):
    q, k = vectors(cosine)
    found = products(q, k)
    apart = float((q - k).square().sum()) / 5**0.5
    variance = math.exp(0.49 + 0.25) * (1 - math.exp(-apart)) ** 2 / 2
    assert float(found.mean()) == pytest.approx(math.exp(0.35 * cosine), abs=4 * (variance / SAMPLES) ** 0.5)
    assert float(found.var()) == pytest.approx(variance, rel=0.02)


def test_equal_vectors_are_exact():
    x = torch.randn(7, 5, dtype=torch.float64)
    phi = Rff(5, samples=3)
    expected = (x.square().sum(-1) / 5**0.5).exp()
    torch.testing.assert_close(phi(x).square().sum(-1), expected, rtol=1e-12, atol=0)


def test_a_seed_is_a_draw_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    untouched = torch.randn(1)
    torch.manual_seed(0)
    first = Rff(5, seed=4)
    assert torch.equal(torch.randn(1), untouched)
    assert torch.equal(first.omega, Rff(5, seed=4).omega)
    redrawn = Rff(5, seed=5)
    assert not torch.equal(first.omega, redrawn.omega)
    redrawn.redraw(4)
    assert torch.equal(redrawn.omega, first.omega)
    redrawn.reset_parameters()
    assert torch.equal(redrawn.omega, Rff(5, seed=5).omega)
