"""GLA, against its recurrence written out."""

import torch

from tests.nn.presets.literal import H, K, V, flat, heads_of, normed, recurrence, sigmoid, silu
from tests.nn.tiny import mixer, tokens


def test_it_is_gated_linear_attention():
    layer, x = mixer("gla"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(x[0] @ w["project.weight"].T)
    logits = x[0] @ w["decay.gate.down.weight"].T @ w["decay.gate.up.weight"].T + w["decay.gate.up.bias"]
    assert w["decay.gate.down.weight"].shape[0] == 16
    out = recurrence(q, k, v, sigmoid(logits).reshape(T, H, K) ** (1 / 16))
    gate = silu(x[0] @ w["gate.weight"].T).reshape(T, H, V)
    wanted = flat(normed(out, w["norm.weight"]) * gate, w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)
