"""DeltaProduct, against its products of Householder matrices written out."""

import pytest
import torch

from tests.nn.presets.literal import HQ, H, K, V, convolved, flat, normed, sigmoid, unit
from tests.nn.tiny import mixer, tokens


@pytest.mark.parametrize("chosen", [{}, {"writes": 3, "beta_max": 1.0}, {"writes": 1, "gated": True}, {"gated": True}])
def test_every_token_writes_several_times(chosen: dict[str, int | float | bool]):
    layer, x = mixer("deltaproduct", chosen=chosen), tokens(1)
    w, T, n = layer.state_dict(), x.shape[1], int(chosen.get("writes", 2))
    qkv = convolved(x[0] @ w["project.weight"].T, w["convolution.weight"])
    q, k, v = qkv.split([HQ * K, n * HQ * K, n * H * V], -1)
    q, k, v = unit(q.reshape(T, HQ, K)), unit(k.reshape(T, n, HQ, K)), v.reshape(T, n, H, V)
    beta = float(chosen.get("beta_max", 2.0)) * sigmoid(x[0] @ w["write.beta.weight"].T).reshape(T, n, H)
    alpha = torch.ones(T, H, dtype=x.dtype)
    if chosen.get("gated"):
        step = (1 + torch.exp(x[0] @ w["decay.step.weight"].T + w["decay.dt_bias"])).log()
        alpha = torch.exp(-torch.exp(w["decay.A_log"]) * step)
    out = torch.zeros(T, H, V, dtype=x.dtype)
    for h in range(H):
        key, S = h // (H // HQ), torch.zeros(K, V, dtype=x.dtype)
        for t in range(T):
            S = alpha[t, h] * S
            for j in range(n):
                kj = k[t, j, key]
                S = (torch.eye(K, dtype=x.dtype) - beta[t, j, h] * torch.outer(kj, kj)) @ S
                S = S + beta[t, j, h] * torch.outer(kj, v[t, j, h])
            out[t, h] = q[t, key] @ S / K**0.5
    wanted = flat(normed(out, w["norm.weight"]), w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("writes", [1, 3])
def test_the_state_is_that_of_one_write(writes: int):
    layer = mixer("deltaproduct", chosen={"writes": writes, "convolution": 1})
    assert layer.state_nbytes(5) == 8 * H * K * V
