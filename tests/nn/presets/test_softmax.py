"""Softmax attention, against its weights written out."""

import pytest
import torch

from rebracket.nn.rotary import Rotary
from tests.nn.presets.literal import HQ, H, K, V, flat
from tests.nn.tiny import mixer, tokens


@pytest.mark.parametrize("window", [None, 1, 4])
def test_it_is_attention_over_a_window(window: int | None):
    layer, x = mixer("softmax", chosen={"window": window}), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = (x[0] @ w["project.weight"].T).split([H * K, HQ * K, HQ * V], -1)
    turn = Rotary(K).double()
    q, k = (turn(z.reshape(1, T, -1, K), torch.arange(T))[0] for z in (q, k))
    v, age = v.reshape(T, HQ, V), torch.arange(T)[:, None] - torch.arange(T)
    seen = (age >= 0) & (age < (window or T))
    out = torch.zeros(T, H, V, dtype=x.dtype)
    for h in range(H):
        key = h // (H // HQ)
        scores = (q[:, h] @ k[:, key].T / K**0.5).masked_fill(~seen, -torch.inf)
        out[:, h] = scores.softmax(-1) @ v[:, key]
    torch.testing.assert_close(layer(x)[0][0], flat(out, w["out.weight"]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("window", [1, 4])
def test_a_window_bounds_the_cache(window: int):
    layer = mixer("softmax", chosen={"window": window})
    _, cache = layer(tokens(1, 30))
    assert cache.nbytes == layer.state_nbytes(30) == layer.state_nbytes(window - 1)
