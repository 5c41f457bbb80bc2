"""Weight decay takes matrices, once each, and nothing else."""

import torch
from torch import nn

from rebracket.nn import weight_decay_groups
from tests.nn.tiny import mixer


def test_rates_biases_and_norms_are_spared():
    layer = mixer("gated_deltanet")
    decayed, spared = weight_decay_groups(layer, 0.3)
    names = {id(p): name for name, p in layer.named_parameters()}
    assert {names[id(p)] for p in spared["params"]} == {"decay.A_log", "decay.dt_bias", "norm.weight"}
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)


def test_a_shared_weight_is_listed_once():
    a, b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    b.weight = a.weight
    assert len(weight_decay_groups(nn.Sequential(a, b), 0.1)[0]["params"]) == 1


def test_an_optimizer_takes_them():
    layer = mixer("kda")
    optimizer = torch.optim.AdamW(weight_decay_groups(layer, 0.5), lr=0.1)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p, before[name] * (0.95 if p.ndim > 1 else 1.0))
