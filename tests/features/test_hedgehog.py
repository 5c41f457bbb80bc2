"""hedgehog and t2r: the projections are the ones of the formula and begin where they should."""

import torch

from rebracket.features.hedgehog import Hedgehog
from rebracket.features.t2r import T2R


def test_softmax_over_both_signs_of_the_projection():
    torch.manual_seed(0)
    phi = Hedgehog(4, width=3).double()
    torch.nn.init.normal_(phi.weight)
    x = torch.randn(6, 4, dtype=torch.float64)
    y = torch.einsum("md,nd->nm", phi.weight, x)
    positive, negative = y.exp(), (-y).exp()
    total = positive.sum(-1, keepdim=True) + negative.sum(-1, keepdim=True)
    torch.testing.assert_close(phi(x), torch.cat([positive, negative], -1) / total, rtol=1e-13, atol=0)


def test_the_exponential_form_is_the_softmax_form_without_its_sum():
    torch.manual_seed(0)
    x = torch.randn(6, 4, dtype=torch.float64)
    plain, normalized = Hedgehog(4, activation="exp")(x), Hedgehog(4)(x)
    torch.testing.assert_close(plain / plain.sum(-1, keepdim=True), normalized, rtol=1e-13, atol=0)


def test_it_begins_as_the_identity():
    torch.testing.assert_close(Hedgehog(4).weight.detach(), torch.eye(4))
    torch.testing.assert_close(Hedgehog(4, width=3).weight.detach(), torch.eye(4)[:3])


def test_long_vectors_do_not_overflow_the_softmax():
    assert bool(Hedgehog(4)(torch.full((4,), 1e4)).isfinite().all())


def test_t2r_is_its_formula():
    torch.manual_seed(0)
    phi = T2R(4, width=6).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    y = torch.einsum("md,nd->nm", phi.projection.weight, x) + phi.projection.bias
    torch.testing.assert_close(phi(x), torch.where(y > 0, y, torch.zeros_like(y)), rtol=1e-13, atol=0)
    assert bool((phi(x) == 0).any())
