"""The bonus begins as RWKV-6 begins it."""

import pytest
import torch

from rebracket.nn.writes.bonus import BonusWrite


@pytest.mark.parametrize(("place", "depth"), [(0, 0.0), (1, 0.5), (2, 1.0)])
def test_it_falls_over_the_channels_with_a_ripple(place: int, depth: float):
    u = BonusWrite(2, 3, layer=place, layers=3).u.detach()
    wanted = [depth * (1 - n / 5) + 0.1 * ((n + 1) % 3 - 1) for n in range(6)]
    torch.testing.assert_close(u, torch.tensor(wanted), rtol=1e-6, atol=1e-6)


def test_a_single_channel_and_a_single_layer_begin_somewhere():
    assert BonusWrite(1, 1, layer=0, layers=1).u.tolist() == [0.0]
