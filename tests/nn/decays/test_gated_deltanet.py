"""The scalar gate begins where Gated DeltaNet begins."""

import torch
from torch.nn.functional import softplus

from rebracket.nn.decays.gated_deltanet import GatedDeltaNetDecay


def test_rates_are_uniform_and_steps_log_uniform():
    torch.manual_seed(0)
    decay = GatedDeltaNetDecay(3, 4000)
    rates, steps = decay.A_log.exp(), softplus(decay.dt_bias)
    assert 0 < rates.min() < 0.1
    assert 15.9 < rates.max() < 16
    assert abs(rates.mean() - 8) < 0.3
    assert 0.00099 < steps.min() < 0.00102
    assert 0.098 < steps.max() < 0.1001
    assert abs(steps.log10().mean() + 2) < 0.05


def test_extreme_tokens_erase_and_keep():
    decay = GatedDeltaNetDecay(1, 1)
    with torch.no_grad():
        decay.step.weight.fill_(1.0)
    erased, kept = decay(torch.tensor([[[1e4], [-1e4]]]))[0].exp()
    assert erased == 0
    assert kept == 1
