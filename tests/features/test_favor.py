"""favor estimates softmax's kernel without bias, with the variance that the theory gives."""

import math

import pytest
import torch
from torch import Tensor

from rebracket.features.favor import Favor, orthogonal_normals

DRAWS = 2000


def estimates(q: Tensor, k: Tensor, favor: Favor) -> Tensor:
    """The kernel of one pair of vectors, for many draws."""
    values = []
    for seed in range(DRAWS):
        favor.redraw(seed)
        values.append(favor(q) @ favor(k))
    return torch.stack(values)


def pair(dim: int, norm: float) -> tuple[Tensor, Tensor]:
    """Two vectors whose scaled forms y have this norm."""
    torch.manual_seed(dim)
    q, k = torch.randn(2, dim, dtype=torch.float64)
    return q / q.norm() * norm * dim**0.25, k / k.norm() * norm * dim**0.25


def independent_variance(q: Tensor, k: Tensor, samples: int) -> float:
    """The variance of the same estimate with independent normal w_i."""
    dim = q.shape[0]
    z2, s = float((q + k).square().sum()) / dim**0.5, float(q @ k) / dim**0.5
    return math.exp(z2 + 2 * s) * (1 - math.exp(-z2)) / samples


@pytest.mark.parametrize("samples", [3, 13])
@pytest.mark.parametrize("hyperbolic", [False, True])
def test_the_mean_over_draws_is_the_kernel(samples: int, hyperbolic: bool):
    q, k = pair(5, 0.7)
    values = estimates(q, k, Favor(5, samples=samples, hyperbolic=hyperbolic))
    error = float(values.mean() - (q @ k / 5**0.5).exp())
    assert abs(error) < 4 * float(values.std()) / DRAWS**0.5


def test_orthogonal_draws_vary_no_more_than_the_bound_and_less_than_independent_ones():
    dim = 6
    q, k = pair(dim, 0.5)
    kernel = float((q @ k / dim**0.5).exp())
    far = math.exp(-0.25)  # exp(-(|x|^2 + |y|^2) / 2) at norms of 0.5
    bound = independent_variance(q, k, dim) - 2 * (dim - 1) / (dim * (dim + 2)) * (kernel - far) ** 2
    measured = float(estimates(q, k, Favor(dim, samples=dim)).var())
    assert measured < 1.08 * bound  # the estimate of a variance from so many draws is itself good to 3 %
    assert measured < 0.9 * independent_variance(q, k, dim)


def test_signs_on_both_sides_at_least_halve_the_variance():
    q, k = pair(5, 0.7)
    single = float(estimates(q, k, Favor(5, samples=8)).var())
    double = float(estimates(q, k, Favor(5, samples=8, hyperbolic=True)).var())
    assert double < 0.55 * single


def test_rows_are_orthogonal_in_blocks_with_the_lengths_of_normal_vectors():
    dim, count = 6, 15
    omega = orthogonal_normals(count, dim, 3)
    for block in omega.split(dim):
        gram = block @ block.T
        torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-12)
    squares = torch.cat([orthogonal_normals(count, dim, seed).square().sum(-1) for seed in range(400)])
    assert float(squares.mean()) == pytest.approx(dim, abs=4 * (2 * dim / len(squares)) ** 0.5)
    assert float(squares.var()) == pytest.approx(2 * dim, rel=0.15)  # chi-squared with d degrees of freedom


def test_no_direction_is_preferred():
    entries = torch.stack([orthogonal_normals(3, 3, seed) for seed in range(2000)])
    assert float(entries.mean(0).abs().max()) < 5 / 2000**0.5
    second = torch.einsum("nri,nrj->rij", entries, entries) / 2000
    torch.testing.assert_close(second, torch.eye(3, dtype=torch.float64).expand(3, 3, 3), rtol=0, atol=0.2)


def test_a_seed_is_a_draw_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    untouched = torch.randn(1)
    torch.manual_seed(0)
    first = Favor(5, seed=4)
    assert torch.equal(torch.randn(1), untouched)
    assert torch.equal(first.omega, Favor(5, seed=4).omega)
    assert not torch.equal(first.omega, Favor(5, seed=5).omega)
    redrawn = Favor(5, seed=5)
    address = redrawn.omega.data_ptr()
    redrawn.redraw(4)
    assert torch.equal(redrawn.omega, first.omega)
    assert redrawn.omega.data_ptr() == address
    redrawn.reset_parameters()
    assert torch.equal(redrawn.omega, Favor(5, seed=5).omega)


def test_stabilizing_changes_no_weight_of_any_key():
    torch.manual_seed(0)
    q, k = torch.randn(2, 9, 5, dtype=torch.float64)
    plain, stabilized = Favor(5), Favor(5, stabilized=True)
    assert torch.equal(stabilized(k), plain(k))
    weights = [phi.queries(q) @ phi(k).T for phi in (plain, stabilized)]
    assert not torch.allclose(weights[0], weights[1])
    ratios = [w / w.sum(-1, keepdim=True) for w in weights]
    torch.testing.assert_close(ratios[0], ratios[1], rtol=1e-12, atol=0)


def test_long_queries_keep_their_features_when_stabilized():
    q = torch.full((5,), 40.0)
    assert float(Favor(5).queries(q).sum()) == 0
    assert float(Favor(5, stabilized=True).queries(q).sum()) >= 1
