"""Gated DeltaNet-2, against its recurrence written out."""

import pytest
import torch

from tests.nn.presets.literal import H, K, V, convolved, flat, heads_of, normed, sigmoid, unit
from tests.nn.tiny import mixer, tokens


@pytest.mark.parametrize("chosen", [{}, {"erase_max": 2.0}])
def test_it_erases_and_writes_through_gates_of_their_own(chosen: dict[str, float]):
    layer, x = mixer("gated_deltanet2", chosen=chosen), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(convolved(x[0] @ w["project.weight"].T, w["convolution.weight"]))
    q, k = unit(q), unit(k)
    step = x[0] @ w["decay.step.down.weight"].T @ w["decay.step.up.weight"].T + w["decay.dt_bias"]
    decay = torch.exp(-torch.exp(w["decay.A_log"])[:, None] * (1 + step.exp()).log().reshape(T, H, K))
    erase = chosen.get("erase_max", 1.0) * sigmoid(x[0] @ w["write.erase.weight"].T).reshape(T, H, K)
    write = sigmoid(x[0] @ w["write.write.weight"].T).reshape(T, H, V)
    out = torch.zeros_like(v)
    for h in range(H):
        S = torch.zeros(K, V, dtype=x.dtype)
        for t in range(T):
            transition = torch.eye(K, dtype=x.dtype) - torch.outer(k[t, h], erase[t, h] * k[t, h])
            S = transition @ torch.diag(decay[t, h]) @ S + torch.outer(k[t, h], write[t, h] * v[t, h])
            out[t, h] = q[t, h] @ S / K**0.5
    gate = x[0] @ w["gate.down.weight"].T @ w["gate.up.weight"].T + w["gate.up.bias"]
    wanted = flat(normed(out, w["norm.weight"]) * sigmoid(gate).reshape(T, H, V), w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)
