"""The maps that treat each entry alone, against their formulas."""

import math
from collections.abc import Callable

import pytest
import torch

from rebracket import features

FORMULAS: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "elu1": lambda x: math.exp(x) if x <= 0 else x + 1,
    "relu": lambda x: max(x, 0.0),
    "squared_relu": lambda x: max(x, 0.0) ** 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "exp": math.exp,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_every_entry_follows_the_formula(name: str):
    x = torch.tensor([-30.0, -2.5, -1e-3, 0.0, 1e-3, 0.7, 4.0], dtype=torch.float64)
    expected = torch.tensor([FORMULAS[name](float(entry)) for entry in x], dtype=torch.float64)
    torch.testing.assert_close(features.make(name, 7)(x), expected, rtol=1e-14, atol=0)


def test_elu1_keeps_its_relative_precision_where_adding_one_would_lose_it():
    x = torch.tensor([-12.0, -20.0, -60.0])
    torch.testing.assert_close(features.make("elu1", 3)(x), x.double().exp().float(), rtol=1e-6, atol=0)


def test_elu1_has_slope_one_at_zero():
    x = torch.zeros(1, requires_grad=True)
    features.make("elu1", 1)(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad) == 1.0


def test_exp_takes_its_temperature():
    x = torch.randn(4, dtype=torch.float64)
    sharp = features.make("exp", 4, {"temperature": 2.0})(x)
    torch.testing.assert_close(sharp, features.make("exp", 4)(x) ** 2, rtol=1e-14, atol=0)


def test_softmax_is_a_distribution_over_the_channels_of_each_vector():
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = torch.tensor([[math.exp(e) / sum(map(math.exp, row)) for e in row] for row in x.tolist()])
    torch.testing.assert_close(features.make("softmax", 4)(x), expected.double(), rtol=1e-6, atol=0)
