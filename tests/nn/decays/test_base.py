"""First rates and steps lie where they should, and decays made of them reach both ends."""

import pytest
import torch
from torch.nn.functional import softplus

from rebracket.nn.decays.base import StepDecay, draw_rates, draw_steps
from rebracket.nn.decays.gated_deltanet import GatedDeltaNetDecay
from rebracket.nn.decays.mamba2 import Mamba2Decay

LEAST_RATE: dict[type[StepDecay], float] = {GatedDeltaNetDecay: 0.0, Mamba2Decay: 1.0}


def test_the_inverse_of_softplus_is_exact():
    dt_bias = torch.empty(1000, dtype=torch.float64)
    torch.manual_seed(0)
    draw_steps(dt_bias)
    torch.manual_seed(0)
    steps = torch.empty(1000, dtype=torch.float64).uniform_(-3, -1).mul(torch.tensor(10.0).log()).exp()
    torch.testing.assert_close(softplus(dt_bias), steps, rtol=1e-6, atol=0)


def test_no_rate_is_nothing():
    A_log = torch.empty(5)
    draw_rates(A_log, 0.0, 0.0)
    assert A_log.isfinite().all()


@pytest.mark.parametrize("kind", LEAST_RATE)
def test_rates_are_uniform_and_steps_log_uniform(kind: type[StepDecay]):
    torch.manual_seed(0)
    decay, least = kind(3, 4000), LEAST_RATE[kind]
    rates, steps = decay.A_log.exp(), softplus(decay.dt_bias)
    assert least - 0.001 < rates.min() < least + 0.1
    assert 15.9 < rates.max() < 16.001
    assert abs(rates.mean() - (least + 16) / 2) < 0.3
    assert 0.00099 < steps.min() < 0.00102
    assert 0.098 < steps.max() < 0.1001
    assert abs(steps.log10().mean() + 2) < 0.05


@pytest.mark.parametrize("kind", LEAST_RATE)
def test_extreme_tokens_erase_and_keep(kind: type[StepDecay]):
    decay = kind(1, 1)
    with torch.no_grad():
        decay.step.weight.fill_(1.0)
    erased, kept = decay(torch.tensor([[[1e4], [-1e4]]]))[0].exp()
    assert erased == 0
    assert kept == 1
