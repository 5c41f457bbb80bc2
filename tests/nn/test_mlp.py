"""The gated MLP is its equation."""

import torch

from rebracket.nn import GatedMLP
from tests.nn.tiny import stir


def test_equation():
    mlp, x = GatedMLP(7, 5).double(), torch.randn(2, 3, 7, dtype=torch.float64)
    stir(mlp)
    gate, up = x @ mlp.gate_up.weight[:5].T, x @ mlp.gate_up.weight[5:].T
    wanted = (gate / (1 + torch.exp(-gate)) * up) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), wanted, rtol=1e-12, atol=1e-12)


def test_deep_models_add_less_at_first():
    torch.manual_seed(0)
    assert abs(GatedMLP(100, 40, 8).down.weight.std() * 40**0.5 - 0.5 / 10 / 4) < 0.0005
