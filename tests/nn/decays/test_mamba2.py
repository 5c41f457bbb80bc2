"""The gate of Mamba-2 begins where the paper's code begins, and its step is the strength of a write."""

import torch
from torch.nn.functional import softplus

from rebracket.nn.decays.mamba2 import Mamba2Decay
from tests.nn.tiny import stir, tokens


def test_rates_are_uniform_from_one_and_steps_log_uniform():
    torch.manual_seed(0)
    decay = Mamba2Decay(3, 4000)
    rates, steps = decay.A_log.exp(), softplus(decay.dt_bias)
    assert 0.999 < rates.min() < 1.1
    assert 15.9 < rates.max() < 16.001
    assert abs(rates.mean() - 8.5) < 0.3
    assert 0.00099 < steps.min() < 0.00102
    assert 0.098 < steps.max() < 0.1001
    assert abs(steps.log10().mean() + 2) < 0.05


def test_strength_is_the_step():
    decay = Mamba2Decay(7, 4).double()
    stir(decay)
    x = tokens()
    wanted = (1 + torch.exp(x @ decay.step.weight.T + decay.dt_bias)).log()
    torch.testing.assert_close(decay.strength(decay(x)), wanted)
    torch.testing.assert_close(decay(x), -decay.A_log.exp() * wanted)


def test_extreme_tokens_erase_and_keep():
    decay = Mamba2Decay(1, 1)
    with torch.no_grad():
        decay.step.weight.fill_(1.0)
    log_decay = decay(torch.tensor([[[1e4], [-1e4]]]))
    erased, kept = log_decay[0].exp()
    assert erased == 0
    assert kept == 1
    torch.testing.assert_close(decay.strength(log_decay)[0, :, 0], torch.tensor([1e4, 0.0]), rtol=1e-3, atol=0)
