"""HGRN2's bounds rise from layer to layer, from 0."""

import pytest
import torch

from rebracket.nn.decays.hgrn2 import HGRN2Decay


@pytest.mark.parametrize("place", [1, 2, 3])
def test_nothing_falls_below_the_bound(place: int):
    decay = HGRN2Decay(7, 2, 3, layer=place, layers=4).double()
    kept = decay(1e6 * torch.randn(1, 50, 7, dtype=torch.float64)).exp()
    assert abs(kept.min() - place / 4) < 1e-6
    assert 1 - 1e-6 < kept.max() <= 1


def test_the_first_layer_has_no_bound():
    decay = HGRN2Decay(7, 2, 3, layer=0, layers=4)
    assert [name for name, _ in decay.named_parameters()] == ["gate.weight"]
    assert decay(1e6 * torch.randn(1, 50, 7)).exp().min() == 0


def test_a_bound_that_is_learned_to_be_nothing_or_all_stays_finite():
    decay = HGRN2Decay(7, 2, 3, layer=1, layers=2)
    with torch.no_grad():
        assert decay.bound is not None
        decay.bound.copy_(torch.tensor([-200.0, 200.0] * 3))
    log_decay = decay(30 * torch.randn(1, 9, 7))
    log_decay.sum().backward()
    assert log_decay.isfinite().all()
    assert (log_decay <= 0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decay.parameters())
