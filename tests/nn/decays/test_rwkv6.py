"""RWKV-6's decays begin as its authors begin them."""

import pytest
import torch

from rebracket.nn.decays.rwkv6 import RWKV6Decay


@pytest.mark.parametrize(("place", "power"), [(0, 0.7), (1, 1.35), (2, 2.0)])
def test_channels_begin_between_minus_six_and_minus_one(place: int, power: float):
    decay = RWKV6Decay(7, 2, 3, layer=place, layers=3).double()
    wanted = [-6 + 5 * (n / 5) ** power for n in range(6)]
    torch.testing.assert_close(decay.w0.detach(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    found = decay(torch.zeros(1, 1, 7, dtype=torch.float64)).flatten()
    torch.testing.assert_close(found, -torch.tensor(wanted, dtype=torch.float64).exp(), rtol=1e-5, atol=1e-6)


def test_a_single_channel_and_a_single_layer_begin_somewhere():
    assert RWKV6Decay(7, 1, 1, layer=0, layers=1).w0.tolist() == [-6.0]
