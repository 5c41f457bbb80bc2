"""RetNet's decays are 1 - 2^(-5-h)."""

import torch

from rebracket.nn.decays.retnet import RetNetDecay


def test_factors():
    factors = RetNetDecay(6)(torch.zeros(1, 2, 3, dtype=torch.float64)).exp()
    wanted = torch.tensor([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128, 1 - 1 / 256, 1 - 1 / 512, 1 - 1 / 1024])
    torch.testing.assert_close(factors, wanted.double(), rtol=1e-14, atol=0)


def test_long_memories_are_not_rounded_to_endless_ones():
    assert RetNetDecay(40).to(torch.bfloat16)(torch.zeros(1, 2, 3, dtype=torch.bfloat16))[-1] == -(2.0**-44)
