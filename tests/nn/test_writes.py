"""Write rules have the shapes and ranges that the operator takes, for stretches and for single tokens."""

import pytest
import torch

from rebracket import Additive, Delta
from rebracket.nn import AdditiveWrite, DeltaWrite
from tests.nn.tiny import SIZE, B, T, stir, tokens


def test_additive_has_no_weights():
    write = AdditiveWrite()
    assert isinstance(write(tokens(), tokens()), Additive)
    assert list(write.parameters()) == []


@pytest.mark.parametrize("beta_max", [1.0, 2.0])
def test_delta_strengths_fill_their_range(beta_max: float):
    write = DeltaWrite(SIZE.d_model, SIZE.heads, beta_max).double()
    stir(write)
    rule = write(10 * tokens(), tokens())
    assert isinstance(rule, Delta)
    assert isinstance(rule.beta, torch.Tensor)
    assert rule.beta.shape == (B, T, SIZE.heads)
    assert 0 <= rule.beta.min() < 0.1 * beta_max
    assert 0.9 * beta_max < rule.beta.max() <= beta_max


def test_one_token_is_a_stretch_of_one():
    write = DeltaWrite(SIZE.d_model, SIZE.heads).double()
    stretch, single = write(tokens(), tokens()), write(tokens()[:, 4], tokens()[:, 4])
    assert isinstance(stretch, Delta)
    assert isinstance(single, Delta)
    torch.testing.assert_close(single.beta, torch.as_tensor(stretch.beta)[:, 4])


def test_strengths_are_not_rounded():
    write, x = DeltaWrite(SIZE.d_model, SIZE.heads), tokens(dtype=torch.float32)
    wanted = write(x, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = write(x, x)
    assert isinstance(found, Delta)
    assert isinstance(wanted, Delta)
    assert torch.equal(torch.as_tensor(found.beta), torch.as_tensor(wanted.beta))
