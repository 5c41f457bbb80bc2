"""Features of length 1 keep their direction."""

import pytest
import torch

from rebracket import features
from rebracket.nn import UnitFeatures


@pytest.mark.parametrize("name", ["identity", "elu1", "hedgehog"])
def test_length_and_direction(name: str):
    inner = features.make(name, 6)
    phi, x = UnitFeatures(inner), torch.randn(3, 5, 6, dtype=torch.float64)
    for found, plain in ((phi(x), inner(x)), (phi.queries(x), inner.queries(x))):
        torch.testing.assert_close(found.norm(dim=-1), torch.ones(3, 5).double(), rtol=1e-4, atol=0)
        torch.testing.assert_close(found * plain.norm(dim=-1, keepdim=True), plain, rtol=1e-4, atol=1e-6)
    assert (phi.dim_in, phi.dim_out, phi.positive) == (inner.dim_in, inner.dim_out, inner.positive)


def test_queries_keep_what_their_map_does_for_them():
    phi, long = UnitFeatures(features.make("favor", 4, {"stabilized": True})), 60 * torch.ones(1, 4)
    assert not phi(long).any()
    torch.testing.assert_close(phi.queries(long).norm(), torch.tensor(1.0))


def test_zero_stays_zero_with_a_finite_gradient():
    x = torch.zeros(2, 4, requires_grad=True)
    y = UnitFeatures(features.make("identity", 4))(x)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_learned_map_is_drawn_again():
    phi = UnitFeatures(features.make("t2r", 4))
    before = phi(torch.ones(4))
    torch.manual_seed(8)
    phi.reset_parameters()
    assert not torch.equal(phi(torch.ones(4)), before)
