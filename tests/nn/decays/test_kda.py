"""KDA's gate begins where Kimi Linear begins."""

import torch
from torch.nn.functional import softplus

from rebracket.nn.decays.kda import KDADecay


def test_rates_belong_to_heads_and_steps_to_channels():
    torch.manual_seed(0)
    decay = KDADecay(3, 4000, 4)
    rates, steps = decay.A_log.exp(), softplus(decay.dt_bias)
    assert rates.shape == (4000,)
    assert steps.shape == (16000,)
    assert 1 <= rates.min() < 1.1
    assert 15.9 < rates.max() <= 16
    assert abs(rates.mean() - 8.5) < 0.3
    assert abs(steps.log10().mean() + 2) < 0.05


def test_the_steps_of_a_head_share_its_rate():
    decay = KDADecay(3, 2, 4)
    with torch.no_grad():
        decay.dt_bias.zero_()
        decay.A_log.copy_(torch.tensor([1.0, 2.0]).log())
    log_decay = decay(torch.zeros(1, 1, 3))[0, 0]
    torch.testing.assert_close(log_decay[1], 2 * log_decay[0])
    torch.testing.assert_close(log_decay[0], torch.full((4,), -torch.tensor(2.0).log().item()))
