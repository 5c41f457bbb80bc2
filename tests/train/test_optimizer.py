"""AdamW: the published update, two groups, a state that comes back bitwise, and a rate that never jumps."""

import math

import pytest
import torch
from torch import nn

from rebracket.train.config import OptimizerConfig
from rebracket.train.optimizer import adamw, learning_rate, moments, restore_moments
from tests.train.tiny import same

CONFIG = OptimizerConfig(learning_rate=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def pull(of, optimizer, seed):
    """One step on gradients that a seed decides."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in of.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def literal(weight, gradients, decay):
    """AdamW as its paper writes it, in float64."""
    weight, mean, square = weight.double(), 0.0, 0.0
    for count, gradient in enumerate(gradients, 1):
        mean = 0.8 * mean + 0.2 * gradient.double()
        square = 0.9 * square + 0.1 * gradient.double() ** 2
        corrected = (mean / (1 - 0.8**count)) / ((square / (1 - 0.9**count)) ** 0.5 + 1e-6)
        weight = weight - 0.1 * (corrected + decay * weight)
    return weight


@pytest.mark.parametrize(("part", "decay"), [("0.weight", 0.3), ("0.bias", 0.0), ("1.weight", 0.0)])
def test_it_is_the_published_update_and_only_matrices_decay(part, decay):
    of = model()
    before = of.get_parameter(part).detach().clone()
    optimizer, gradients = adamw(of, CONFIG), []
    for seed in range(5):
        pull(of, optimizer, seed)
        gradients.append(of.get_parameter(part).grad)
    assert torch.allclose(of.get_parameter(part).double(), literal(before, gradients, decay), rtol=0, atol=1e-6)


def test_a_restored_optimizer_goes_on_bitwise():
    one, other = model(), model()
    first, second = adamw(one, CONFIG), adamw(other, CONFIG)
    for seed in range(3):
        pull(one, first, seed)
    saved = {name: tensor.clone() for name, tensor in moments(one, first).items()}
    other.load_state_dict(one.state_dict())
    restore_moments(other, second, saved)
    for seed in range(3, 6):
        pull(one, first, seed)
        pull(other, second, seed)
    assert same(one.state_dict(), other.state_dict())
    assert same(moments(one, first), moments(other, second))


def test_without_its_state_it_would_not():
    one, other = model(), model()
    first, second = adamw(one, CONFIG), adamw(other, CONFIG)
    pull(one, first, 0)
    other.load_state_dict(one.state_dict())
    pull(one, first, 1)
    pull(other, second, 1)
    assert not same(one.state_dict(), other.state_dict())


def test_restored_tensors_are_copies():
    of = model()
    optimizer = adamw(of, CONFIG)
    pull(of, optimizer, 0)
    saved = {name: tensor.clone() for name, tensor in moments(of, optimizer).items()}
    restore_moments(of, optimizer, saved)
    before = {name: tensor.clone() for name, tensor in saved.items()}
    pull(of, optimizer, 1)
    assert same(saved, before)


def test_there_is_no_state_before_the_first_step():
    of = model()
    optimizer = adamw(of, CONFIG)
    assert moments(of, optimizer) == {}
    restore_moments(of, optimizer, {})
    assert moments(of, optimizer) == {}
    assert math.isclose(optimizer.param_groups[0]["weight_decay"], 0.3)


def rates(steps, **values):
    config = OptimizerConfig(**values)
    return [learning_rate(step, steps, config) for step in range(steps)]


@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (100, 0), (100, 99), (7, 3), (2, 1)])
def test_it_rises_to_the_peak_and_falls_to_the_floor(steps, warmup):
    course = rates(steps, learning_rate=3.0, warmup=warmup, floor=0.25)
    if warmup:
        assert course[warmup - 1] == 3.0
    assert course[-1] == pytest.approx(0.75)
    assert course[:warmup] == sorted(course[:warmup])
    assert course[warmup:] == sorted(course[warmup:], reverse=True)
    assert all(0 < rate <= 3.0 for rate in course)


def test_it_is_linear_then_a_half_cosine():
    course = rates(104, learning_rate=1.0, warmup=4, floor=0.0)
    assert course[:4] == [0.25, 0.5, 0.75, 1.0]
    assert course[53] == pytest.approx(0.5)
    assert course[28] == pytest.approx((1 + 2**-0.5) / 2)


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert rates(3, learning_rate=1.0, warmup=10) == [0.1, 0.2, 0.3]
