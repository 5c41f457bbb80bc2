"""cosFormer, against attention weights written out."""

import math

import torch

from tests.nn.presets.literal import H, flat, heads_of
from tests.nn.tiny import mixer, tokens

M = 15


def test_it_is_attention_whose_weights_fall_with_the_cosine_of_the_distance():
    layer, x = mixer("cosformer", chosen={"horizon": M}), tokens(1)
    w, T = layer.state_dict(), x.shape[1]
    q, k, v = heads_of(x[0] @ w["project.weight"].T)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    out = torch.zeros_like(v)
    for h in range(H):
        weights = (q[:, h].clamp(min=0) @ k[:, h].clamp(min=0).T) * torch.cos(math.pi * distance.double() / 2 / M)
        total = weights.tril().sum(1, keepdim=True)
        out[:, h] = torch.where(total > 0, weights.tril() @ v[:, h] / total, 0)
    torch.testing.assert_close(layer(x)[0][0], flat(out, w["out.weight"]), rtol=1e-9, atol=1e-9)


def test_a_text_beyond_the_horizon_is_read_on():
    layer, x = mixer("cosformer", chosen={"horizon": M}), tokens(1, 4 * M)
    whole, _ = layer(x)
    assert whole.isfinite().all()
    _, cache = layer(x[:, : 2 * M])
    torch.testing.assert_close(layer(x[:, 2 * M :], cache=cache)[0], whole[:, 2 * M :], rtol=1e-9, atol=1e-9)
    # Once the horizon has passed no token is nearer than another, so their order is nothing.
    later = torch.tensor([2 * M + 3, 2 * M + 1, 2 * M, 2 * M + 2])
    swapped = torch.cat([x[:, : 2 * M], x[:, later], x[:, 2 * M + 4 :]], 1)
    torch.testing.assert_close(layer(swapped)[0][:, 2 * M + 4 :], whole[:, 2 * M + 4 :], rtol=1e-9, atol=1e-9)
