"""HGRN2, against its recurrence written out."""

import dataclasses

import pytest
import torch

from tests.nn.presets.literal import HQ, H, K, V, sigmoid, silu
from tests.nn.tiny import SIZE, mixer, tokens


@pytest.mark.parametrize("place", [0, 1, 2])
def test_keys_are_what_the_decay_takes_away(place: int):
    layer, x = mixer("hgrn2", dataclasses.replace(SIZE, layer=place)), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, v = (x[0] @ w["project.weight"].T).split([HQ * K, H * V], -1)
    q, v = silu(q).reshape(T, HQ, K), v.reshape(T, H, V)
    least = sigmoid(w["decay.bound"]) if place else 0.0
    a = (least + (1 - least) * sigmoid(x[0] @ w["decay.gate.weight"].T)).reshape(T, H, K)
    out = torch.zeros_like(v)
    for h in range(H):
        S = torch.zeros(K, V, dtype=x.dtype)
        for t in range(T):
            S = a[t, h][:, None] * S + torch.outer(1 - a[t, h], v[t, h])
            out[t, h] = q[t, h // (H // HQ)] @ S / K**0.5
    joined = out.reshape(T, H * V)
    joined = w["norm.weight"] * joined / (joined.square().mean(-1, keepdim=True) + SIZE.norm_eps).sqrt()
    torch.testing.assert_close(layer(x)[0][0], joined @ w["out.weight"].T, rtol=1e-9, atol=1e-9)


def test_no_keys_are_projected():
    assert mixer("hgrn2").state_dict()["project.weight"].shape[0] == HQ * K + H * V
