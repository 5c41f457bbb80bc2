"""The first values of decays of the form -rate * softplus(x + dt_bias), shared by Mamba-2's descendants."""

import math

import torch
from torch import Tensor

SHORTEST, LONGEST, FLOOR = 0.001, 0.1, 1e-4


def draw_steps(dt_bias: Tensor) -> None:
    """Fills dt_bias so that softplus(dt_bias) is log-uniform in [0.001, 0.1]."""
    if dt_bias.is_meta:
        return
    with torch.no_grad():
        dt_bias.uniform_(math.log(SHORTEST), math.log(LONGEST))
        steps = dt_bias.exp().clamp(min=FLOOR)
        dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def draw_rates(A_log: Tensor, low: float, high: float) -> None:
    """Fills A_log so that exp(A_log) is uniform in [low, high]; a rate of 0, which could never move, is kept off."""
    if A_log.is_meta:
        return
    with torch.no_grad():
        A_log.uniform_(low, high).clamp_(min=FLOOR).log_()
