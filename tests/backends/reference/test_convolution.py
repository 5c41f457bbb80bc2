"""The short convolution is differentiable twice, and the padding of a packed row stays out of its gradients."""

import pytest
import torch
from torch import Tensor

from rebracket.ops.convolution import Activation, short_convolution

T, D = 6, 3


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("bounds", [None, [0, 1, 1, 5]])
@pytest.mark.parametrize("activation", ["silu", None])
def test_gradients_are_those_of_finite_differences(width: int, bounds: list[int] | None, activation: Activation):
    torch.manual_seed(width)
    rows, N = (2, 2) if bounds is None else (1, 3)
    shapes = ((rows, T, D), (D, width), (D,), (N, width - 1, D))
    variables = [x.requires_grad_() for s in shapes if (x := torch.randn(s, dtype=torch.float64)).numel()]
    cu_seqlens = None if bounds is None else torch.tensor(bounds)

    def function(x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None = None) -> tuple[Tensor, ...]:
        out, last = short_convolution(x, weight, bias, past, cu_seqlens, activation=activation, backend="reference")
        return (out, last) if last.numel() else (out,)

    assert torch.autograd.gradcheck(function, variables)
    assert torch.autograd.gradgradcheck(function, variables)


def test_no_gradient_comes_from_the_padding_of_a_packed_row():
    x, weight, bias = torch.randn(1, 11, D), torch.randn(D, 4), torch.randn(D)
    x[:, 9:] = float("nan")
    for y in (x, weight, bias):
        y.requires_grad_()
    y, _ = short_convolution(x, weight, bias, None, torch.tensor([0, 4, 9]), backend="reference")
    y.square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad[:, 9:] == 0).all())
    assert bool((x.grad[:, :9] != 0).all())
    assert all(bool(y.grad is not None and y.grad.isfinite().all()) for y in (x, weight, bias))
