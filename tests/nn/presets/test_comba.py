"""Comba, against its closed loop written out."""

import pytest
import torch

from tests.nn.presets.literal import HQ, H, K, V, convolved, flat, heads_of, normed, sigmoid, unit
from tests.nn.tiny import mixer, tokens


@pytest.mark.parametrize("least", [-5.0, -70.0])
def test_the_feedback_is_read_before_the_decay_and_queries_are_corrected(least: float):
    layer, x = mixer("comba"), tokens(1)
    with torch.no_grad():
        w = layer.state_dict()
        most = (1 + torch.exp(x[0] @ w["decay.step.weight"].T + w["decay.dt_bias"])).log().max()
        layer.get_parameter("decay.A_log").copy_(torch.log(-least / most))
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(convolved(x[0] @ w["project.weight"].T, w["convolution.weight"]))
    q, k = unit(q), unit(k)
    step = (1 + torch.exp(x[0] @ w["decay.step.weight"].T + w["decay.dt_bias"])).log()
    log_alpha = -torch.exp(w["decay.A_log"]) * step
    torch.testing.assert_close(log_alpha.min().item(), least)
    beta = sigmoid(x[0] @ w["write.beta.weight"].T)
    out = torch.zeros_like(v)
    for h in range(H):
        b, d = sigmoid(w["write.feedback"][h // (H // HQ)]), w["correction.d"][h // (H // HQ)]
        S = torch.zeros(K, V, dtype=x.dtype)
        for t in range(T):
            transition = torch.exp(log_alpha[t, h]) * torch.eye(K, dtype=x.dtype)
            transition = transition - b * beta[t, h] * torch.outer(k[t, h], k[t, h])
            S = transition @ S + beta[t, h] * torch.outer(k[t, h], v[t, h])
            out[t, h] = (q[t, h] - d * k[t, h]) @ S / K**0.5
    gate = sigmoid(x[0] @ w["gate.weight"].T).reshape(T, H, V)
    wanted = flat(normed(out, w["norm.weight"]) * gate, w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decay_that_erases_everything_stays_finite(dtype: torch.dtype):
    layer = mixer("comba", dtype=dtype)
    with torch.no_grad():
        layer.get_parameter("decay.A_log").fill_(12.0)
    y, _ = layer(tokens(dtype=dtype))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
