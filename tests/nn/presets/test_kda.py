"""Kimi Delta Attention, against its recurrence written out."""

import torch

from tests.nn.presets.literal import H, K, V, convolved, flat, heads_of, normed, recurrence, sigmoid, unit
from tests.nn.tiny import mixer, tokens


def test_it_is_the_delta_rule_with_a_decay_per_channel():
    layer, x = mixer("kda"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(convolved(x[0] @ w["project.weight"].T, w["convolution.weight"]))
    narrow = x[0] @ w["decay.step.down.weight"].T
    assert narrow.shape == (T, K)
    step = (1 + torch.exp(narrow @ w["decay.step.up.weight"].T + w["decay.dt_bias"])).log().reshape(T, H, K)
    decay = torch.exp(-torch.exp(w["decay.A_log"])[:, None] * step)
    out = recurrence(unit(q), unit(k), v, decay, sigmoid(x[0] @ w["write.beta.weight"].T))
    gate = x[0] @ w["gate.down.weight"].T @ w["gate.up.weight"].T + w["gate.up.bias"]
    wanted = flat(normed(out, w["norm.weight"]) * sigmoid(gate).reshape(T, H, V), w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)
