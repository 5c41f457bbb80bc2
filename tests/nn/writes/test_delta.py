"""Strengths of the delta rule fill their range."""

import pytest
import torch

from rebracket import Delta
from rebracket.nn import DeltaWrite
from tests.nn.tiny import SIZE, B, T, stir, tokens


@pytest.mark.parametrize("beta_max", [1.0, 2.0])
def test_strengths_fill_their_range(beta_max: float):
    write = DeltaWrite(SIZE.d_model, SIZE.heads, beta_max).double()
    stir(write)
    rule = write(10 * tokens(), tokens(), tokens(), None).rule
    assert isinstance(rule, Delta)
    assert isinstance(rule.beta, torch.Tensor)
    assert rule.beta.shape == (B, T, SIZE.heads)
    assert 0 <= rule.beta.min() < 0.1 * beta_max
    assert 0.9 * beta_max < rule.beta.max() <= beta_max


@pytest.mark.parametrize("beta_max", [0, 2.5, "2", True])
def test_a_strength_out_of_range_is_refused(beta_max: float):
    with pytest.raises(ValueError, match=r"beta_max must lie in \(0, 2\]"):
        DeltaWrite(SIZE.d_model, SIZE.heads, beta_max)
