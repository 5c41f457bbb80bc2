"""Gated DeltaNet, against its recurrence written out."""

import torch

from tests.nn.presets.literal import (
    H,
    V,
    convolved,
    flat,
    heads_of,
    normed,
    per_channel,
    recurrence,
    sigmoid,
    silu,
    unit,
)
from tests.nn.tiny import mixer, tokens


def test_it_is_the_gated_delta_rule():
    layer, x = mixer("gated_deltanet"), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(convolved(x[0] @ w["project.weight"].T, w["convolution.weight"]))
    step = (1 + torch.exp(x[0] @ w["decay.step.weight"].T + w["decay.dt_bias"])).log()
    decay = torch.exp(-torch.exp(w["decay.A_log"]) * step)
    out = recurrence(unit(q), unit(k), v, per_channel(decay), sigmoid(x[0] @ w["write.beta.weight"].T))
    gate = silu(x[0] @ w["gate.weight"].T).reshape(T, H, V)
    wanted = flat(normed(out, w["norm.weight"]) * gate, w["out.weight"])
    torch.testing.assert_close(layer(x)[0][0], wanted, rtol=1e-9, atol=1e-9)
