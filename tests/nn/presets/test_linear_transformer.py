"""The linear transformer, against attention weights written out."""

import torch
from torch.nn.functional import elu

from tests.nn.presets.literal import H, flat, heads_of
from tests.nn.tiny import mixer, tokens


def test_it_is_attention_whose_weights_are_products_of_features():
    layer, x = mixer("linear_transformer"), tokens(1)
    w = layer.state_dict()
    q, k, v = heads_of(x[0] @ w["project.weight"].T)
    q, k = elu(q) + 1, elu(k) + 1
    out = torch.zeros_like(v)
    for h in range(H):
        weights = (q[:, h] @ k[:, h].T).tril()
        out[:, h] = weights @ v[:, h] / weights.sum(1, keepdim=True)
    torch.testing.assert_close(layer(x)[0][0], flat(out, w["out.weight"]), rtol=1e-9, atol=1e-9)
