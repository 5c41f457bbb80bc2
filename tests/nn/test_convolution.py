"""The short convolution as a layer: whole and in steps, born on meta, and with a word for what is wrong."""

import pytest
import torch
from torch.nn import functional as F

from rebracket.nn.convolution import ShortConvolution
from rebracket.ops.convolution import short_convolution

B, T, D = 2, 11, 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", None])
def test_a_step_is_a_sequence_of_one(width: int, bias: bool, activation: str | None, dtype: torch.dtype):
    torch.manual_seed(0)
    convolution = ShortConvolution(D, width, "silu" if activation else None, bias).to(dtype)
    x, tail = torch.randn(B, T, D, dtype=dtype), torch.randn(B, width - 1, D, dtype=dtype)
    out, last = convolution(x, tail)
    stepped = []
    for token in x.unbind(1):
        one, tail = convolution.step(token, tail)
        stepped.append(one)
    torch.testing.assert_close(torch.stack(stepped, 1), out)
    assert torch.equal(tail, last)


def test_the_layer_is_the_operator_with_its_own_weights():
    torch.manual_seed(0)
    convolution = ShortConvolution(D, bias=True)
    x = torch.randn(B, T, D)
    plain, _ = short_convolution(x, convolution.weight, convolution.bias)
    torch.testing.assert_close(convolution(x)[0], F.silu(plain))
    convolution.activation = None
    assert torch.equal(convolution(x)[0], plain)


def test_a_convolution_born_on_meta_is_drawn_afterwards():
    torch.manual_seed(1)
    expected = ShortConvolution(D, bias=True)
    with torch.device("meta"):
        born = ShortConvolution(D, bias=True)
        assert born(torch.empty(B, T, D), torch.empty(B, 3, D))[1].shape == (B, 3, D)
        assert born(torch.empty(1, T, D))[0].shape == (1, T, D)
    born = born.to_empty(device="cpu")
    torch.manual_seed(1)
    born.reset_parameters()
    x = torch.randn(B, T, D)
    assert torch.equal(born(x)[0], expected(x)[0])
    assert float(born.weight.detach().abs().max()) <= 0.5


def test_bad_calls_say_what_is_wrong():
    convolution = ShortConvolution(D)
    with pytest.raises(ValueError, match="x must be"):
        convolution.step(torch.randn(B, D + 1), torch.randn(B, 3, D))
    with pytest.raises(ValueError, match="tail must be"):
        convolution.step(torch.randn(B, D), torch.randn(B, 4, D))
    with pytest.raises(ValueError, match="width"):
        ShortConvolution(D, 0)
    with pytest.raises(ValueError, match="activation"):
        ShortConvolution(D, 4, "relu")  # pyright: ignore[reportArgumentType]
