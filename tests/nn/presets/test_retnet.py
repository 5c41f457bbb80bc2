"""RetNet, against its retention written out."""

import torch

from rebracket.nn.rotary import Rotary
from tests.nn.presets.literal import H, K, V, flat, heads_of, normed, silu
from tests.nn.tiny import mixer, tokens


def test_it_is_retention():
    layer, x = mixer("retnet"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(x[0] @ w["project.weight"].T)
    turn = Rotary(K).double()
    q, k = (turn(z[None], torch.arange(T))[0] for z in (q, k))
    age = torch.arange(T)[:, None] - torch.arange(T)
    out = torch.zeros_like(v)
    for h in range(H):
        gamma = 1 - 2.0 ** (-5 - h)
        weights = (q[:, h] @ k[:, h].T).tril() * gamma ** age.clamp(min=0).double() / K**0.5
        out[:, h] = weights @ v[:, h]
    gate = silu(x[0] @ w["gate.weight"].T).reshape(T, H, V)
    wanted = flat(normed(out, w["norm.weight"]) * gate, w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)


def test_only_distances_count():
    layer, x = mixer("retnet"), tokens(1)
    empty = layer.empty_cache(1)
    assert empty.seen is not None
    empty.seen.fill_(1000)
    torch.testing.assert_close(layer(x, cache=empty)[0], layer(x)[0], rtol=1e-9, atol=1e-9)
