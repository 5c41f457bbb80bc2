"""The softmax layer beside the laws that all presets share."""

import dataclasses

import pytest
import torch

from tests.nn.tiny import SIZE, mixer, tokens


@pytest.mark.parametrize("cuts", [[1], [4, 5], list(range(1, 11))])
def test_a_window_moves_across_pieces(cuts: list[int]):
    layer, x = mixer("softmax", chosen={"window": 4}), tokens()
    cache, ys = None, []
    for begin, end in zip([0, *cuts], [*cuts, 11], strict=True):
        y, cache = layer(x[:, begin:end], cache=cache)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), layer(x)[0], rtol=1e-9, atol=1e-9)


def test_positions_are_distances():
    layer, x = mixer("softmax"), tokens(1)
    later = layer.empty_cache(1)
    later.tensors()["state.seen"].fill_(0)
    turned = mixer("softmax", chosen={"rotary_base": 50.0})
    assert not torch.allclose(turned(x)[0], layer(x)[0])


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="mode"):
        mixer("softmax")(tokens(), mode="paralel")  # type: ignore[arg-type]


def test_an_odd_key_dim_cannot_be_turned():
    with pytest.raises(ValueError, match="dim"):
        mixer("softmax", dataclasses.replace(SIZE, key_dim=5))
