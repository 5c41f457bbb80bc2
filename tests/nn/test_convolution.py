"""The short convolution is torch's with padding on the left, however the sequence is cut or packed."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.nn.convolution import ShortConvolution, short_convolution

B, T, D = 2, 11, 3
WIDTHS = [1, 2, 4, 7]
BOUNDS = [[0, 4, 11], [0, 0, 5, 5, 9, 9], [0, 1, 2, 3], [0], [0, 0], [0, 11], [0, 2, 3, 10]]


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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cuts", [[0], [1], [11], [5, 5], [1, 2, 3, 4], [3, 6], list(range(1, T))])
def test_any_cutting_is_the_whole(width: int, cuts: list[int]):
    x, weight, bias, start = inputs(width)
    whole, last = short_convolution(x, weight, bias, start)
    tail, outs = start, []
    for begin, end in pairwise([0, *cuts, T]):
        out, tail = short_convolution(x[:, begin:end], weight, bias, tail)
        outs.append(out)
    assert torch.equal(torch.cat(outs, 1), whole)
    assert torch.equal(tail, last)
    assert torch.equal(last, torch.cat([start, x], 1)[:, T:])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("continued", [False, True])
def test_packed_sequences_are_separate_ones(width: int, bounds: list[int], continued: bool):
    rows = len(bounds) - 1
    x, weight, bias, tail = inputs(width, 1, rows)
    x[:, bounds[-1] :] = float("nan")
    out, last = short_convolution(x, weight, bias, tail if continued else None, torch.tensor(bounds, dtype=torch.int32))
    assert out.shape == (1, T, D)
    assert last.shape == (rows, width - 1, D)
    assert bool((out[:, bounds[-1] :] == 0).all())
    for n, (begin, end) in enumerate(pairwise(bounds)):
        past = tail[n : n + 1] if continued else None
        alone, alone_last = short_convolution(x[:, begin:end], weight, bias, past)
        same(out[:, begin:end], alone)
        assert torch.equal(last[n : n + 1], alone_last)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", None])
def test_a_step_is_a_sequence_of_one(width: int, bias: bool, activation: str | None):
    torch.manual_seed(0)
    convolution = ShortConvolution(D, width, "silu" if activation else None, bias).double()
    x, _, _, tail = inputs(width)
    out, last = convolution(x, tail)
    stepped = []
    for token in x.unbind(1):
        one, tail = convolution.step(token, tail)
        stepped.append(one)
    same(torch.stack(stepped, 1), out)
    assert torch.equal(tail, last)


def test_the_activation_comes_last():
    torch.manual_seed(0)
    convolution = ShortConvolution(D, bias=True)
    x = torch.randn(B, T, D)
    plain, _ = short_convolution(x, convolution.weight, convolution.bias)
    assert torch.equal(convolution(x)[0], F.silu(plain))
    convolution.activation = None
    assert torch.equal(convolution(x)[0], plain)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("bounds", [None, [0, 1, 1, 5]])
def test_gradients_are_those_of_finite_differences(width: int, bounds: list[int] | None):
    rows = 2 if bounds is None else 3
    x, weight, bias, tail = inputs(width, 2 if bounds is None else 1, rows)
    cu_seqlens = None if bounds is None else torch.tensor(bounds)
    x = x[:, :6]
    variables = [y.requires_grad_() for y in (x, weight, bias, tail) if y.numel()]

    def function(x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None = None) -> tuple[Tensor, ...]:
        out, last = short_convolution(x, weight, bias, past, cu_seqlens)
        return (out, last) if last.numel() else (out,)

    assert torch.autograd.gradcheck(function, variables)
    assert torch.autograd.gradgradcheck(function, variables)


def test_no_gradient_comes_from_the_tail_of_a_packed_row():
    x, weight, bias, _ = inputs(4, 1)
    x[:, 9:] = float("nan")
    for y in (x, weight, bias):
        y.requires_grad_()
    short_convolution(x, weight, bias, None, torch.tensor([0, 4, 9]))[0].square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad[:, 9:] == 0).all())
    assert bool((x.grad[:, :9] != 0).all())
    assert all(bool(y.grad is not None and y.grad.isfinite().all()) for y in (x, weight, bias))


def test_inputs_are_left_as_they_were_and_the_tail_is_apart_from_them():
    x, weight, bias, tail = inputs(4)
    kept = [y.clone() for y in (x, weight, bias, tail)]
    _, last = short_convolution(x.mT.contiguous().mT, weight, bias, tail)
    assert all(torch.equal(a, b) for a, b in zip((x, weight, bias, tail), kept, strict=True))
    before = last.clone()
    x.zero_()
    assert torch.equal(last, before)
    assert last.untyped_storage().nbytes() == last.nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_one_rounding_of_float32(dtype: torch.dtype):
    x, weight, bias, tail = (y.to(dtype) for y in inputs(4))
    for bounds in (None, torch.tensor([0, 3, 11])):
        row, past = (x, tail) if bounds is None else (x[:1], tail)
        out, last = short_convolution(row, weight, bias, past, bounds)
        wide, _ = short_convolution(row.float(), weight.float(), bias.float(), past.float(), bounds)
        assert out.dtype == last.dtype == dtype
        assert torch.equal(out, wide.to(dtype))


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
    convolution = ShortConvolution(D)
    with pytest.raises(ValueError, match="x must be"):
        convolution.step(torch.randn(B, D + 1), torch.randn(B, 3, D))
    with pytest.raises(ValueError, match="tail must be"):
        convolution.step(torch.randn(B, D), torch.randn(B, 4, D))
    with pytest.raises(ValueError, match="width"):
        ShortConvolution(D, 0)
    with pytest.raises(ValueError, match="activation"):
        ShortConvolution(D, 4, "relu")  # pyright: ignore[reportArgumentType]
