"""What every decay owes."""

import itertools
import math

import pytest
import torch

from rebracket.nn import decays
from rebracket.nn.decays.lightning import LightningDecay
from tests.nn.tiny import SIZE, B, T, stir, tokens

pytestmark = pytest.mark.parametrize("name", decays.names())
SHAPES = [(SIZE.heads,), (B, T, SIZE.heads), (B, T, SIZE.heads, SIZE.key_dim)]


def test_it_is_a_logarithm_of_a_factor_in_one_of_the_three_shapes(name: str):
    decay = decays.make(name, SIZE).double()
    stir(decay)
    log_decay = decay(tokens())
    assert tuple(log_decay.shape) in SHAPES
    assert (log_decay < 0).all()
    assert log_decay.isfinite().all()


def test_one_token_is_a_stretch_of_one(name: str):
    decay = decays.make(name, SIZE).double()
    stir(decay)
    x = tokens()
    stretch, single = decay(x), decay(x[:, 3])
    torch.testing.assert_close(single, stretch if stretch.ndim == 1 else stretch[:, 3], rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_never_shorter_than_float32(name: str, dtype: torch.dtype):
    decay = decays.make(name, SIZE).to(dtype)
    assert decay(tokens(dtype=dtype)).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_autocast_does_not_round_it(name: str):
    decay, x = decays.make(name, SIZE), tokens(dtype=torch.float32)
    stir(decay)
    wanted = decay(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(decay(x), wanted)


def test_it_can_be_drawn_again(name: str):
    decay = decays.make(name, SIZE)
    torch.manual_seed(3)
    decay.reset_parameters()
    first = {key: p.clone() for key, p in decay.named_parameters()}
    stir(decay)
    torch.manual_seed(3)
    decay.reset_parameters()
    assert all(torch.equal(p, first[key]) for key, p in decay.named_parameters())


def test_an_optimizer_shrinks_matrices_only(name: str):
    for key, p in decays.make(name, SIZE).named_parameters():
        assert (p.ndim >= 2) == key.endswith("weight"), key


def test_it_begins_as_a_long_memory(name: str):
    torch.manual_seed(0)
    decay = decays.make(name, SIZE)
    if isinstance(decay, LightningDecay):
        return
    assert decay(tokens(dtype=torch.float32)).median() > math.log(0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_weights_make_no_nan(name: str, dtype: torch.dtype):
    """Every weight of one axis at every extreme, alone and against another: a decay in [0, 1], finite gradients."""
    decay, x = decays.make(name, SIZE).to(dtype), tokens(dtype=dtype)
    stir(decay)
    biases = [p for p in decay.parameters() if p.ndim == 1]
    for values in itertools.product([-200.0, -100.0, -88.0, 0.0, 30.0, 88.0, 100.0, 200.0], repeat=len(biases)):
        with torch.no_grad():
            for p, value in zip(biases, values, strict=True):
                p.fill_(value)
        factor = decay(x).exp()
        assert ((factor >= 0) & (factor <= 1)).all(), values
        if factor.requires_grad:
            gradients = torch.autograd.grad(factor.sum(), list(decay.parameters()))
            assert all(g.isfinite().all() for g in gradients), values


@pytest.mark.parametrize("A_log", [100.0, 150.0, 200.0])
@pytest.mark.parametrize("distance", [-200.0, -30.0, -3.0, 0.0, 3.0, 30.0])
def test_an_extreme_rate_meets_an_extreme_step(name: str, A_log: float, distance: float):
    decay = decays.make(name, SIZE)
    weights = dict(decay.named_parameters())
    if not {"A_log", "dt_bias"} <= weights.keys():
        return
    with torch.no_grad():
        weights["A_log"].fill_(A_log)
        weights["dt_bias"].fill_(distance - A_log)
    wanted = math.exp(-math.exp(distance)) if distance < 10 else 0.0  # softplus(x) is exp(x) there
    found = decay(torch.zeros(1, 1, SIZE.d_model)).exp()
    torch.testing.assert_close(found, torch.full_like(found, wanted), rtol=1e-4, atol=0)
