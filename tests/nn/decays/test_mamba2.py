"""The step of Mamba-2's gate is the strength of a write."""

import torch

from rebracket.nn.decays.mamba2 import Mamba2Decay
from tests.nn.tiny import stir, tokens


def test_strength_is_the_step():
    decay = Mamba2Decay(7, 4).double()
    stir(decay)
    x = tokens()
    wanted = (1 + torch.exp(x @ decay.step.weight.T + decay.dt_bias)).log()
    torch.testing.assert_close(decay.strength(decay(x)), wanted)
    torch.testing.assert_close(decay(x), -decay.A_log.exp() * wanted)


def test_strength_survives_a_decay_that_erases():
    decay = Mamba2Decay(1, 1)
    with torch.no_grad():
        decay.step.weight.fill_(1.0)
    strength = decay.strength(decay(torch.tensor([[[1e4], [-1e4]]])))
    torch.testing.assert_close(strength[0, :, 0], torch.tensor([1e4, 0.0]), rtol=1e-3, atol=0)
