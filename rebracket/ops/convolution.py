"""The short causal convolution over time, one filter a channel, with the few inputs it must remember."""

from __future__ import annotations

from torch import Tensor

from rebracket.base.checks import one_of
from rebracket.ops.backend import choose
from rebracket.ops.call import Activation, Convolution
from rebracket.ops.checks import FLOATS, check_packing
from rebracket.ops.tensors import check_tensor


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tail: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    activation: Activation = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Causal convolution of every channel with its own filter; any cutting of the sequence gives the same.

    y_t = act(b + sum_j w_j * x_(t - W + 1 + j)),  j = 0..W-1

    Args:
        x: inputs [B,T,D], any T; float32, bfloat16, float16 (float32 inside) or float64.
        weight: w, [D,W], the newest token's weight last.
        bias: b, [D].
        tail: the W - 1 inputs before x, [N,W-1,D], oldest first; zeros by default.
        cu_seqlens: offsets [N+1] of N sequences packed in one row (B = 1), from 0; tokens beyond the last are
            padding, whose outputs are 0.
        activation: "silu", act(z) = z / (1 + exp(-z)), or None for none.
        backend: "reference", any other installed one, or "auto". An explicit one is obeyed or refused.

    Returns:
        y [B,T,D], and the last W - 1 inputs of each of the B or N sequences, [N,W-1,D]; both in the dtype of x.

    Raises:
        ValueError: If a shape or name does not fit, by the name of its argument.
        TypeError: If an argument is of the wrong kind.

    Cost: W multiply-adds a token and channel and, on the cpu backend, x read once and y written once; packed sequences
    shorter than W take W - 1 reads more each.

    Source: Fu et al. 2023 (H3); Gu and Dao 2023 (Mamba).

    Example:
        >>> import torch
        >>> y, tail = short_convolution(torch.ones(1, 3, 1), torch.ones(1, 2))
        >>> y.flatten().tolist(), tail.flatten().tolist()
        ([1.0, 2.0, 2.0], [1.0])
    """
    call = Convolution(x, weight, bias, tail, cu_seqlens, activation)
    check(call)
    return choose(call, backend).run(call)


def check(call: Convolution) -> None:
    """Raises what is wrong with a call."""
    x, weight, bias, tail = call.x, call.weight, call.bias, call.tail
    check_input(x)
    check_like("weight", weight, x)
    D = x.shape[2]
    if weight.ndim != 2 or weight.shape[0] != D or weight.shape[1] < 1:
        raise ValueError(f"weight must be [D,W] = [{D}, W >= 1], got {list(weight.shape)}")
    if bias is not None:
        check_like("bias", bias, x)
        if bias.ndim != 1 or bias.shape[0] != D:
            raise ValueError(f"bias must be [D] = [{D}], got {list(bias.shape)}")
    check_packing(call.cu_seqlens, x.shape[0], x.shape[1])
    if tail is not None:
        check_tail(tail, call)
    one_of("activation", call.activation, ("silu", None))


def check_input(x: Tensor) -> None:
    check_tensor("x", x)
    if x.ndim != 3:
        raise ValueError(f"x must be [B,T,D], got {list(x.shape)}")
    if x.dtype not in FLOATS:
        raise TypeError(f"x must be float32, float64, bfloat16 or float16, got {x.dtype}; convert it")


def check_like(name: str, tensor: Tensor, x: Tensor) -> None:
    """A float tensor where x is."""
    check_tensor(name, tensor)
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {tensor.dtype}; convert it")
    if tensor.device != x.device:
        raise ValueError(f"{name} must be where x is, {x.device}, got {tensor.device}; move it")


def check_tail(tail: Tensor, call: Convolution) -> None:
    check_like("tail", tail, call.x)
    expected = (call.sequences, call.weight.shape[1] - 1, call.x.shape[2])
    if tail.shape != expected:
        raise ValueError(f"tail must be [N,W-1,D] = {list(expected)}, got {list(tail.shape)}")
