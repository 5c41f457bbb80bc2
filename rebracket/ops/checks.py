"""Checks on the arguments of the public functions, made once; what passes here is well formed everywhere behind it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from rebracket.base.checks import truth, whole
from rebracket.ops.state import State
from rebracket.ops.tensors import check_tensor
from rebracket.ops.write import Sizes, WriteRule, check_shape

Mode = Literal["auto", "parallel", "chunk", "recurrent"]
MODES = ("parallel", "chunk", "recurrent")
ROUNDED = 1e-3
"""Below this a positive log-decay is taken for a 0 that was rounded."""
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    write: WriteRule,
    bonus: Tensor | None,
    normalize: bool,
    state: State | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raises what is wrong with the arguments of `linear_attention`, in the order of its signature."""
    check_write(write)
    truth("normalize", normalize)
    sizes = measure(q, k, v, write.entries)
    write.check(sizes)
    check_axes(log_decay, write, bonus, normalize, sizes)
    check_packing(cu_seqlens, sizes.B, sizes.T)
    check_state(state, sizes, sizes.B if cu_seqlens is None else cu_seqlens.shape[0] - 1, normalize)
    held = {} if state is None else {"state.memory": state.memory, "state.key_sum": state.key_sum}
    others = {"k": k, "v": v, "log_decay": log_decay, "bonus": bonus, "cu_seqlens": cu_seqlens}
    check_devices(q, others | write.tensors() | held)


def readable(x: Tensor) -> bool:
    """Whether the numbers of x can be looked at: not while a program is traced, and not where there are none."""
    return not (torch.compiler.is_compiling() or x.is_meta)


def check_write(write: object) -> None:
    if isinstance(write, type) and issubclass(write, WriteRule):
        raise TypeError(f"write must be an instance: {write.__name__}(...), not the class {write.__name__}")
    if not isinstance(write, WriteRule):
        raise TypeError(f"write must be a write rule such as Additive() or Delta(beta), got {type(write).__name__}")


def check_devices(first: Tensor, others: Mapping[str, object]) -> None:
    """Raises unless every tensor is on the device of the first one; what is no tensor is refused elsewhere."""
    device = first.device
    for name, x in others.items():
        if isinstance(x, Tensor) and x.device != device:
            raise ValueError(
                f"{name} must be on {device} like the rest of the call, got {x.device}; pass {name}.to({str(device)!r})"
            )


def measure(q: Tensor, k: Tensor, v: Tensor, entries: int) -> Sizes:
    """The letters of the call, read off q and v; k must agree."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_rank(name, x)
    B, T, Hq, K = q.shape
    H, V = v.shape[2:]
    if K == 0 or V == 0 or Hq == 0 or H == 0:
        raise ValueError(f"heads and dimensions must be at least 1, got q {list(q.shape)} and v {list(v.shape)}")
    sizes = Sizes(B, T, Hq, H, K, V)
    times = "T" if entries == 1 else f"T*{entries}"
    check_shape("k", k, sizes, f"B,{times},Hq,K")
    check_shape("v", v, sizes, f"B,{times},H,V")
    if H % Hq:
        raise ValueError(f"heads of q must divide heads of v, got Hq = {Hq} and H = {H}; shapes are [B,T,H,D]")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype}, {v.dtype}; convert them to one")
    return sizes


def check_token(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: State, write: WriteRule) -> None:
    """What `step` must know before it can give its arguments a time axis."""
    entries = write.entries
    for name, x, letters in (("q", q, "B,Hq,K"), ("k", k, "B,Hq,K"), ("v", v, "B,H,V")):
        check_tensor(name, x)
        letters = letters if name == "q" or entries == 1 else letters.replace("B", f"B,{entries}")
        if x.ndim != letters.count(",") + 1:
            raise ValueError(f"{name} must be [{letters}], one token, got {list(x.shape)}")
    for name, x in write.tensors().items():
        check_tensor(name, x)
    if log_decay is not None:
        check_tensor("log_decay", log_decay)
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, got {type(state).__name__}; State.zeros(B, H, K, V) begins one")


def check_inplace(state: State, dtype: torch.dtype, normalize: bool) -> None:
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    if state.memory.dtype != wanted:
        raise ValueError(
            f"state must be {wanted} to be updated in place, got {state.memory.dtype}; use state.to(dtype)"
        )
    if state.key_sum is not None and not normalize:
        raise ValueError("state holds a key_sum that a step without normalize cannot update; pass State(state.memory)")


def check_rank(name: str, x: Tensor) -> None:
    check_tensor(name, x)
    if x.ndim != 4:
        raise ValueError(f"{name} must be [B,T,heads,dim], got {x.ndim} dimensions {list(x.shape)}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {x.dtype}; convert it")


def check_axes(log_decay: Tensor | None, write: WriteRule, bonus: Tensor | None, normalize: bool, sizes: Sizes) -> None:
    if log_decay is not None:
        check_shape("log_decay", log_decay, sizes, "H", "B,T,H", "B,T,H,K")
    if bonus is not None:
        check_shape("bonus", bonus, sizes, "H,K")
        if write.reads_back:
            raise ValueError(
                f"bonus reads before the write, which {type(write).__name__} does not define; use Additive()"
            )
    if normalize and write.reads_back:
        raise ValueError(
            f"normalize divides by the sum of keys, which {type(write).__name__} erases; use Additive(), or "
            "normalize=False and a norm on the output"
        )


def check_packing(cu_seqlens: Tensor | None, B: int, T: int) -> None:
    if cu_seqlens is None:
        return
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1:
        raise TypeError("cu_seqlens must be an int32 or int64 tensor [N+1], such as torch.tensor([0, 5, 9])")
    check_tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens must hold N + 1 >= 1 offsets, got none")
    if B != 1:
        raise ValueError(f"cu_seqlens needs B = 1 (sequences packed in one row), got B = {B}; reshape to [1,B*T,...]")
    if readable(cu_seqlens):
        check_offsets(cu_seqlens, T)


def check_offsets(cu_seqlens: Tensor, T: int) -> None:
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {offsets[0]}")
    if offsets[-1] > T:
        raise ValueError(f"cu_seqlens must not pass T = {T}, got {offsets[-1]}")
    fall = next((i for i, (a, b) in enumerate(pairwise(offsets)) if b < a), None)
    if fall is not None:
        raise ValueError(
            f"cu_seqlens must not decrease, got {offsets[fall]} before {offsets[fall + 1]}; pass offsets, not lengths"
        )


def check_state(state: State | None, sizes: Sizes, N: int, normalize: bool) -> None:
    if state is None:
        return
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, got {type(state).__name__}; wrap a tensor as State(memory)")
    for name, x in state.tensors().items():
        check_tensor(f"state.{name}", x)
        if not x.is_floating_point():
            raise TypeError(f"state.{name} must be a floating-point tensor, got {x.dtype}; use state.to(torch.float32)")
    expected = (N, sizes.H, sizes.K, sizes.V)
    if tuple(state.memory.shape) != expected:
        raise ValueError(f"state.memory must be [N,H,K,V] = {list(expected)}, got {list(state.memory.shape)}")
    if normalize and state.key_sum is None:
        raise ValueError("state must hold key_sum when normalize is True; it comes from a call with normalize=True")
    if state.key_sum is not None and tuple(state.key_sum.shape) != expected[:3]:
        raise ValueError(f"state.key_sum must be [N,H,K] = {list(expected[:3])}, got {list(state.key_sum.shape)}")


def check_mode(mode: str, chunk: int | None) -> None:
    if mode not in ("auto", *MODES):
        raise ValueError(f"mode must be one of auto, {', '.join(MODES)}, got {mode!r}")
    if chunk is None:
        return
    whole("chunk", chunk)
    if mode in ("parallel", "recurrent"):
        raise ValueError(f"chunk is for mode 'chunk', got chunk={chunk} with mode={mode!r}; leave one of them out")


def check_numbers(log_decay: Tensor | None, beta: Tensor | None) -> None:
    """Raises on numbers that no call may have; callers make this check where it is free."""
    if log_decay is not None:
        check_decay_values(log_decay)
    if beta is not None:
        check_beta_values(beta)


def check_beta_values(beta: Tensor) -> None:
    """Raises on a strength of writing that is not in [0, 2]."""
    if beta.numel() == 0:
        return
    least, most = beta.detach().aminmax()
    if not (least >= 0 and most <= 2):
        raise ValueError(
            f"beta must lie in [0, 2], got {float(least):.3g} to {float(most):.3g}: outside it the state grows without "
            "bound; pass 2 * sigmoid of it, or beta.clamp(0, 2)"
        )


def check_decay_values(log_decay: Tensor) -> None:
    """Raises on a positive or NaN log-decay."""
    if log_decay.numel() == 0:
        return
    largest = log_decay.detach().amax()
    if largest <= 0:
        return
    if torch.isnan(largest):
        raise ValueError("log_decay holds NaN")
    if largest < ROUNDED:
        raise ValueError(
            f"log_decay must be <= 0, got up to {float(largest):.3g}: this looks like a rounded 0; "
            "pass log_decay.clamp(max=0)"
        )
    if bool((log_decay > 0).all()) and largest <= 1:
        raise ValueError(
            "log_decay must be <= 0, got only values in (0, 1]: these look like factors; pass their logarithm"
        )
    raise ValueError(f"log_decay must be <= 0, got up to {float(largest):.3g}: the sign looks flipped; pass -log_decay")
