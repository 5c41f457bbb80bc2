"""RWKV-6, against its recurrence written out."""

import torch

from tests.nn.presets.literal import H, K, V, flat, heads_of, silu
from tests.nn.tiny import SIZE, mixer, tokens


def test_it_reads_before_it_writes_and_the_present_token_by_its_bonus():
    layer, x = mixer("rwkv6"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    projected, filters = x[0] @ w["project.weight"].T, w["convolution.weight"]
    before = torch.cat([torch.zeros_like(projected[:1]), projected[:-1]])
    r, k, v = heads_of(filters[:, 0] * before + filters[:, 1] * projected)
    narrow = torch.tanh(x[0] @ w["decay.down.weight"].T)
    assert narrow.shape == (T, 64)
    decay = torch.exp(-torch.exp(w["decay.w0"] + narrow @ w["decay.up.weight"].T)).reshape(T, H, K)
    u, out = w["write.u"].reshape(H, K), torch.zeros_like(v)
    for h in range(H):
        S = torch.zeros(K, V, dtype=x.dtype)
        for t in range(T):
            kv = torch.outer(k[t, h], v[t, h])
            out[t, h] = r[t, h] @ (S + u[h][:, None] * kv)
            S = decay[t, h][:, None] * S + kv
    centred = out - out.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 64 * SIZE.norm_eps).sqrt()
    normed = normed * w["norm.weight"].reshape(H, V) + w["norm.bias"].reshape(H, V)
    gate = silu(x[0] @ w["gate.weight"].T).reshape(T, H, V)
    torch.testing.assert_close(layer(x)[0][0], flat(normed * gate, w["out.weight"]), rtol=1e-9, atol=1e-9)
