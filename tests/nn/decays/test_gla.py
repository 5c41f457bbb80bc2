"""GLA's gate is the sixteenth root of a sigmoid."""

import torch

from rebracket.nn.decays.gla import GLADecay


def test_it_begins_near_the_root_of_a_half():
    decay = GLADecay(7, 2, 3)
    torch.testing.assert_close(decay(torch.zeros(1, 1, 7)).exp(), torch.full((1, 1, 2, 3), 0.5 ** (1 / 16)))


def test_extreme_tokens_neither_overflow_nor_vanish():
    log_decay = GLADecay(7, 2, 3)(1e6 * torch.randn(1, 5, 7))
    assert log_decay.isfinite().all()
    assert (log_decay <= 0).all()
