"""Softmax attention behind a convolution is one causal function, whole, in pieces, packed or in steps."""

import pytest
import torch

from rebracket.lab.base.convolved import Convolved
from rebracket.nn import MixerSize, presets


@pytest.fixture
def mixer():
    torch.manual_seed(0)
    size = MixerSize(d_model=8, heads=2, key_heads=1, key_dim=4, value_dim=5)
    made = Convolved(presets.make("softmax", size), 3)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def test_pieces_and_steps_are_the_whole(mixer):
    x = torch.randn(2, 9, 8)
    whole, _ = mixer(x)
    first, cache = mixer(x[:, :4])
    second, cache = mixer(x[:, 4:7], cache=cache)
    steps = []
    for token in x[:, 7:].unbind(1):
        y, cache = mixer.step(token, cache)
        steps.append(y)
    torch.testing.assert_close(torch.cat([first, second, torch.stack(steps, 1)], 1), whole)


def test_packed_is_each_alone(mixer):
    x = torch.randn(1, 9, 8)
    packed, _ = mixer(x, cu_seqlens=torch.tensor([0, 4, 9]))
    torch.testing.assert_close(packed, torch.cat([mixer(x[:, :4])[0], mixer(x[:, 4:])[0]], 1))


def test_the_convolution_reaches_the_outputs_and_its_tail_is_counted(mixer):
    x = torch.randn(2, 9, 8)
    alone, _ = mixer.inner(x)
    assert not torch.allclose(mixer(x)[0], alone, rtol=0.1)
    assert mixer.state_nbytes(5) == mixer.inner.state_nbytes(5) + 2 * 8 * 4
