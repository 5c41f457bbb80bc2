"""dpfp against a loop over its formula."""

import pytest
import torch

from rebracket.features.dpfp import Dpfp


def literal(x: torch.Tensor, nu: int) -> torch.Tensor:
    """phi(x) entry by entry, as the paper writes it."""
    r = [max(float(entry), 0.0) for entry in x] + [max(-float(entry), 0.0) for entry in x]
    return torch.tensor(
        [r[i] * r[(i + j) % len(r)] for j in range(1, nu + 1) for i in range(len(r))], dtype=torch.float64
    )


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_every_feature_is_the_product_of_its_pair(dim: int):
    torch.manual_seed(dim)
    for nu in range(1, 2 * dim):
        for x in torch.randn(4, dim, dtype=torch.float64):
            torch.testing.assert_close(Dpfp(dim, nu=nu)(x), literal(x, nu), rtol=1e-15, atol=0)


def test_vectors_of_unlike_signs_share_no_feature():
    x = torch.rand(6) + 0.1
    phi = Dpfp(6, nu=3)
    assert float(phi(x) @ phi(x)) > 0
    assert float(phi(x) @ phi(-x)) == 0
