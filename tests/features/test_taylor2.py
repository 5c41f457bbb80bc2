"""The kernel of taylor2 is the second-order Taylor polynomial of exp, exactly."""

import pytest
import torch

from rebracket.features.taylor2 import Taylor2


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 16])
def test_the_kernel_is_the_polynomial(dim: int):
    torch.manual_seed(dim)
    q, k = torch.randn(2, 30, dim, dtype=torch.float64) * 1.5
    s = q @ k.T / dim**0.5
    phi = Taylor2(dim)
    torch.testing.assert_close(phi(q) @ phi(k).T, 1 + s + s**2 / 2, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("dim", "dim_out"), [(8, 45), (16, 153), (24, 325), (32, 561), (64, 2145)])
def test_the_published_sizes(dim: int, dim_out: int):
    assert Taylor2(dim).dim_out == dim_out


def test_it_is_softmax_for_small_products():
    torch.manual_seed(0)
    q, k = torch.randn(2, 50, 7, dtype=torch.float64) * 0.1
    phi = Taylor2(7)
    s = q @ k.T / 7**0.5
    error = (phi(q) @ phi(k).T - s.exp()).abs()
    assert bool((error <= s.abs() ** 3 / 6 * s.abs().exp() + 1e-15).all())
