"""First rates and steps lie where they should."""

import torch
from torch.nn.functional import softplus

from rebracket.nn.rates import draw_rates, draw_steps


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
