"""The short convolution is torch's with padding on the left; its laws are in `rebracket.testing.convolution`."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.ops.backend import INSTALLED
from rebracket.ops.convolution import short_convolution

B, T, D = 2, 11, 3
WIDTHS = [1, 2, 4, 7]


def inputs(width: int, batch: int = B, rows: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and a tail."""
    torch.manual_seed(width)
    shapes = ((batch, T, D), (D, width), (D,), (batch if rows is None else rows, width - 1, D))
    x, weight, bias, tail = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return x, weight, bias, tail


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_torchs_convolution_padded_on_the_left(width: int):
    x, weight, bias, tail = inputs(width)
    expected = F.conv1d(F.pad(x.mT, (width - 1, 0)), weight[:, None], bias, groups=D).mT
    same(short_convolution(x, weight, bias)[0], expected)
    before = torch.cat([tail, x], 1)
    expected = F.conv1d(before.mT, weight[:, None], bias, groups=D).mT
    same(short_convolution(x, weight, bias, tail)[0], expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_newest_token_has_the_last_weight(width: int):
    impulse = torch.zeros(1, T, D)
    impulse[0, 2] = 1
    weight = torch.arange(1.0, D * width + 1).reshape(D, width)
    out, _ = short_convolution(impulse, weight)
    assert bool((out[0, :2] == 0).all())
    for age in range(width):
        assert torch.equal(out[0, 2 + age], weight[:, width - 1 - age])


@pytest.mark.parametrize("backend", INSTALLED)
def test_the_activation_comes_last(backend: str):
    x, weight, bias, tail = (y.float() for y in inputs(4))
    plain, _ = short_convolution(x, weight, bias, tail, backend=backend)
    y, _ = short_convolution(x, weight, bias, tail, activation="silu", backend=backend)
    torch.testing.assert_close(y, F.silu(plain), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_one_rounding_of_float32(dtype: torch.dtype, backend: str):
    x, weight, bias, tail = (y.to(dtype) for y in inputs(4))
    for bounds in (None, torch.tensor([0, 3, 11])):
        row, past = (x, tail) if bounds is None else (x[:1], tail)
        for activation in ("silu", None):
            out, last = short_convolution(row, weight, bias, past, bounds, activation=activation, backend=backend)
            x32, w32, b32, t32 = (y.float() for y in (row, weight, bias, past))
            exact, _ = short_convolution(x32, w32, b32, t32, bounds, activation=activation, backend=backend)
            assert out.dtype == last.dtype == dtype
            assert torch.equal(out, exact.to(dtype))


@pytest.mark.parametrize("backend", INSTALLED)
def test_dtypes_may_be_mixed(backend: str):
    x, weight, bias, tail = inputs(4)
    mixed = (x.bfloat16(), weight.float(), bias.half(), tail.float())
    y, last = short_convolution(*mixed, activation="silu", backend=backend)
    wide = (mixed[0].float(), mixed[1], mixed[2].float(), mixed[3].bfloat16().float())
    exact, _ = short_convolution(*wide, activation="silu", backend=backend)
    assert torch.equal(y, exact.bfloat16())
    assert y.dtype == last.dtype == torch.bfloat16


def test_bad_calls_say_what_is_wrong():
    x, weight, bias, tail = inputs(4)
    calls: list[tuple[tuple, str]] = [
        ((x[0], weight), "x must be"),
        ((x, weight[1:]), "weight must be"),
        ((x, weight, bias[1:]), "bias must be"),
        ((x, weight, bias, tail[:1]), r"tail must be \[N,W-1,D\] = \[2, 3, 3\]"),
        ((x, weight, bias, tail[:, 1:]), "tail must be"),
        ((x, weight, bias, None, torch.tensor([0, 11])), "needs B = 1"),
        ((x[:1], weight, bias, None, torch.tensor([0, 12])), "must not pass T"),
        ((x[:1], weight, bias, tail, torch.tensor([0, 11])), "tail must be"),
    ]
    for arguments, message in calls:
        with pytest.raises(ValueError, match=message):
            short_convolution(*arguments)
    with pytest.raises(ValueError, match="activation must be one of 'silu', None, got 'relu'"):
        short_convolution(x, weight, activation="relu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="backend must be auto or one of .*, got 'nowhere'"):
        short_convolution(x, weight, backend="nowhere")
    with pytest.raises(ValueError, match="bias must be where x is, cpu, got meta"):
        short_convolution(x, weight, bias.to("meta"))
    for arguments, message in [
        ((x.int(), weight), "x must be float32, .* got torch.int32"),
        ((x, weight.int()), "weight must be float32"),
        ((x, [1.0]), "weight must be a tensor, got list"),
        ((x[:1], weight, None, None, [0, 11]), "cu_seqlens must be an int32 or int64 tensor"),
    ]:
        with pytest.raises(TypeError, match=message):
            short_convolution(*arguments)
