"""Mamba-2, against its state-space recurrence written out."""

import dataclasses

import pytest
import torch

from rebracket.nn import weight_decay_groups
from tests.nn.presets.literal import H, K, V, convolved, silu
from tests.nn.tiny import SIZE, mixer, tokens


@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_the_state_space_model(groups: int):
    layer, z = mixer("mamba2", dataclasses.replace(SIZE, key_heads=groups)), tokens(1)[0]
    w = layer.state_dict()
    cbx = convolved(z @ w["project.weight"].T, w["convolution.weight"])
    C, B, x = cbx.split([groups * K, groups * K, H * V], -1)
    C, B, x = C.reshape(-1, groups, K), B.reshape(-1, groups, K), x.reshape(-1, H, V)
    delta = (1 + torch.exp(z @ w["decay.step.weight"].T + w["decay.dt_bias"])).log()
    alpha = torch.exp(-torch.exp(w["decay.A_log"]) * delta)
    y = torch.zeros_like(x)
    for h in range(H):
        group, state = h // (H // groups), torch.zeros(V, K, dtype=z.dtype)
        for t in range(len(z)):
            state = alpha[t, h] * state + delta[t, h] * torch.outer(x[t, h], B[t, group])
            y[t, h] = state @ C[t, group] + w["skip.D"][h] * x[t, h]
    y = y.flatten(1) * silu(z @ w["gate.weight"].T)
    y = w["norm.weight"] * y / (y.square().mean(-1, keepdim=True) + SIZE.norm_eps).sqrt()
    torch.testing.assert_close(layer(z[None])[0][0], y @ w["out.weight"].T, rtol=1e-9, atol=1e-9)


def test_the_state_space_parameters_are_spared_by_weight_decay():
    layer = mixer("mamba2")
    spared = {id(p) for p in weight_decay_groups(layer, 0.3)[1]["params"]}
    names = {name for name, p in layer.named_parameters() if id(p) in spared}
    assert names == {"decay.A_log", "decay.dt_bias", "skip.D", "norm.weight"}


def test_the_skip_begins_at_one():
    layer = mixer("mamba2")
    layer.reset_parameters()
    assert torch.equal(layer.state_dict()["skip.D"], torch.ones(H, dtype=torch.float64))
