"""Performer, against attention weights written out and against softmax attention."""

import torch
from torch import Tensor

from rebracket import features
from rebracket.nn import LinearAttention
from tests.nn.presets.literal import H, K, flat, heads_of
from tests.nn.tiny import SIZE, mixer, tokens


def test_it_is_attention_whose_weights_are_random_exponentials():
    layer, x = mixer("performer"), tokens(1)
    w = layer.state_dict()
    q, k, v = heads_of(x[0] @ w["project.weight"].T)
    q, k = ((z / K**0.25 @ w["feature.omega"].T - z.square().sum(-1, keepdim=True) / K**0.5 / 2).exp() for z in (q, k))
    out = torch.zeros_like(v)
    for h in range(H):
        weights = (q[:, h] @ k[:, h].T).tril()
        out[:, h] = weights @ v[:, h] / weights.sum(1, keepdim=True)
    torch.testing.assert_close(layer(x)[0][0], flat(out, w["out.weight"]), rtol=1e-9, atol=1e-9)


def test_many_features_come_near_softmax():
    torch.manual_seed(0)
    feature = features.make("favor", K, {"samples": 20_000})
    layer, x = LinearAttention(SIZE, feature=feature, normalize=True).double(), tokens(1)
    with torch.no_grad():
        layer.project.weight.mul_(0.12 * SIZE.d_model**0.5)
    q, k, v = heads_of(layer.project(x)[0])
    scores = torch.einsum("thk,shk->hts", q, k) / K**0.5
    found, wanted, even = layer(x)[0][0], attended(scores, v), attended(0 * scores, v)
    wanted, even = flat(wanted, layer.out.weight), flat(even, layer.out.weight)
    assert (found - wanted).norm() < 0.1 * (even - wanted).norm()


def attended(scores: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of v [T,H,V] with scores [H,T,T]."""
    weights = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    return torch.einsum("hts,shv->thv", weights, v)
