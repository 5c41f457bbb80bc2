"""Lightning attention, against its recurrence written out."""

import torch

from tests.nn.presets.literal import H, V, flat, heads_of, sigmoid, silu
from tests.nn.tiny import SIZE, mixer, tokens


def test_it_is_linear_attention_with_a_slope_for_each_head():
    layer, x = mixer("lightning"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(silu(x[0] @ w["project.weight"].T))
    out = torch.zeros_like(v)
    for h in range(H):
        slope = 2.0 ** (-8 * (h + 1) / H) * (1 - SIZE.layer / (SIZE.layers - 1) + 1e-5)
        S = torch.zeros(q.shape[2], V, dtype=x.dtype)
        for t in range(T):
            S = torch.exp(torch.tensor(-slope, dtype=x.dtype)) * S + torch.outer(k[t, h], v[t, h])
            out[t, h] = q[t, h] @ S
    joined = out.reshape(T, H * V)
    joined = w["norm.weight"] * joined / (joined.square().mean(-1, keepdim=True) + SIZE.norm_eps).sqrt()
    gated = (joined * sigmoid(x[0] @ w["gate.weight"].T)).reshape(T, H, V)
    torch.testing.assert_close(layer(x)[0][0], flat(gated, w["out.weight"]), rtol=1e-9, atol=1e-9)
