"""The recurrence over a sequence on the kernels: forward and backward."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.covers import uncovered
from rebracket.backends.cpu.library import DTYPES, Rows, empty, rows
from rebracket.ops.call import Recurrence
from rebracket.ops.checks import check_numbers
from rebracket.ops.native import NativeOperator, Results, register
from rebracket.ops.state import Output, State

TIMED = ("q", "k", "v", "r", "beta", "log_decay")
"""The tensors of a call that the kernels read by strides; their gradients are in the same order."""


@final
class Call(ctypes.Structure):
    """One call of the recurrence; `segments` is how many states `entries` has room for in each head."""

    CHUNK_WRITES = 16
    """Writes that the kernels compute at once."""
    SEGMENT_WRITES = 128
    """Writes between two states that the forward pass keeps for the backward pass."""
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "V", "N", "per_token", "slices", "segments")),
        *((name, ctypes.c_int32) for name in ("decay", "normalize")),
        ("scale", ctypes.c_float),
        *((name, Rows) for name in ("q", "k", "v", "r", "beta", "log_decay", "out")),
        *(
            (name, ctypes.c_void_p)
            for name in ("bonus", "offsets", "memory_in", "key_sum_in", "memory_out", "key_sum_out")
        ),
        *((name, ctypes.c_void_p) for name in ("entries", "first_segment", "carries", "wrong")),
    )


@final
class Gradients(ctypes.Structure):
    """The gradients of one call: of its outputs in, of its inputs out."""

    _fields_ = (
        *((name, Rows) for name in ("out", "q", "k", "v", "r", "beta", "log_decay")),
        *((name, ctypes.c_void_p) for name in ("memory_out", "key_sum_out", "memory_in", "key_sum_in", "bonus")),
    )


@final
class Backward(ctypes.Structure):
    """The backward pass of a call."""

    _fields_ = (("call", ctypes.POINTER(Call)), ("gradients", ctypes.POINTER(Gradients)))


@final
class RecurrenceKernels(NativeOperator[Recurrence]):
    """Chunks of 16 writes; keeps the state before every 128th write for the backward pass."""

    name: ClassVar[str] = "cpu"
    call: ClassVar[type[Recurrence]] = Recurrence
    results: ClassVar[int] = 3
    kept: ClassVar[int] = 1

    def covers(self, call: Recurrence) -> str | None:
        if call.chunk is not None and call.chunk * call.per_token != Call.CHUNK_WRITES:
            writes = "" if call.per_token == 1 else f" of {call.per_token} writes"
            return f"its chunks are {Call.CHUNK_WRITES} writes, and {call.chunk} tokens{writes} were asked for"
        return uncovered(call, "q", call.q)

    def settled(self, call: Recurrence) -> Recurrence:
        return call if call.chunk is not None else replace(call, chunk=-(-Call.CHUNK_WRITES // call.per_token))

    def run(self, call: Recurrence) -> Output:
        out, memory, key_sum = self.compute(call)
        return Output(out, State(memory, key_sum if call.normalize else None))

    def flat(self, found: Output) -> Results:
        key_sum = found.state.key_sum
        return found.out, found.state.memory, found.state.memory.new_empty(0) if key_sum is None else key_sum

    def forward(self, call: Recurrence, keep: bool) -> Results:
        """Output, memory, sum of keys and the states kept for the backward pass; what is not wanted is empty."""
        call = readable(call)
        (B, T, _, K), (H, V), N = call.q.shape, call.v.shape[2:], call.sequences
        out = zero_padded(call, (B, T, H, V), call.q.dtype)
        memory, key_sum = empty(N, H, K, V), empty(N, H, K) if call.normalize else empty(0)
        wrong = torch.zeros(1, dtype=torch.int32, device="cpu")
        native = describe(call, out, memory, key_sum, wrong)
        native.slices = slices(N * H, V)
        first = first_segments(call) if keep else None
        segments = 0 if first is None else int(first[-1])
        # In one axis: a size of 1 in another would be taken for the only one when a program is traced.
        entries = empty(segments * H * K * (V + call.normalize))
        if first is not None:
            native.entries, native.first_segment, native.segments = pointer(entries), pointer(first), segments
        library.kernel("forward", Call)(ctypes.byref(native))
        check_wrong(call, wrong)
        return out, memory, key_sum, entries

    def outline(self, call: Recurrence, keep: bool) -> Results:
        (B, T, _, K), (H, V), N = call.q.shape, call.v.shape[2:], call.sequences
        memory = call.q.new_empty(N, H, K, V, dtype=torch.float32)
        key_sum = memory.new_empty((N, H, K) if call.normalize else (0,))
        entries = memory.new_empty((fake_segments(call) if keep else 0) * H * K * (V + call.normalize))
        return call.q.new_empty(B, T, H, V), memory, key_sum, entries

    def backward(self, call: Recurrence, kept: Results, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients in the shapes of their tensors; that of a key that is read back is one with that of the key."""
        given, call, entries = call, readable(call), kept[0]
        (B, T, _, K), (H, V), N = call.q.shape, call.v.shape[2:], call.sequences
        grad_out = contiguous_rows(call.q.new_zeros(B, T, H, V) if grads[0] is None else grads[0])
        first, wrong = first_segments(call), torch.zeros(1, dtype=torch.int32, device="cpu")
        segments = len(entries) // (H * K * (V + call.normalize))  # of the forward pass, whatever cu_seqlens says now
        made = {name: x for name in TIMED if (x := room(call, name)) is not None}
        made["memory"] = empty(N, H, K, V)
        if call.normalize:
            made["key_sum"] = empty(N, H, K)
        if call.bonus is not None:
            made["bonus"] = empty(N, H, K)
        native = describe(call, grad_out, made["memory"], made.get("key_sum"), wrong)
        native.entries, native.first_segment, native.segments = pointer(entries), pointer(first), segments
        carries = empty(segments, H, K, V) if in_pieces(call, first) else None
        native.carries, native.slices = pointer(carries), 1 if carries is None else slices(N * H, V)
        grad_memory = None if grads[1] is None else grads[1].float().contiguous()
        grad_key_sum = None if grads[2] is None or not call.normalize else grads[2].float().contiguous()
        gradients = Gradients(rows(grad_out), *(rows(made.get(name)) for name in TIMED))
        gradients.memory_out, gradients.key_sum_out = pointer(grad_memory), pointer(grad_key_sum)
        for field, name in (("memory_in", "memory"), ("key_sum_in", "key_sum"), ("bonus", "bonus")):
            setattr(gradients, field, pointer(made.get(name)))
        both = Backward(ctypes.pointer(native), ctypes.pointer(gradients))
        library.kernel("backward", Backward)(ctypes.byref(both))
        if "bonus" in made:
            made["bonus"] = made["bonus"].sum(0)
        return {name: shaped(made[name], x) for name, x in given.tensors().items() if name in made}


def readable(call: Recurrence) -> Recurrence:
    """The same call in tensors that the kernels can read in place; only what they cannot is copied."""
    B, T, H = call.q.shape[0], call.q.shape[1], call.v.shape[2]
    beta, log_decay = call.beta, call.log_decay
    if beta is not None:
        beta = known(beta).expand(B, T * call.per_token, H)
    if log_decay is not None:
        log_decay = contiguous_rows(log_decay) if log_decay.ndim == 4 else known(log_decay).expand(B, T, H)
    return replace(
        call,
        q=contiguous_rows(call.q),
        k=contiguous_rows(call.k),
        v=contiguous_rows(call.v),
        r=None if call.r is None else contiguous_rows(call.r),
        beta=beta,
        log_decay=log_decay,
        bonus=None if call.bonus is None else call.bonus.float().contiguous(),
        memory=None if call.memory is None else call.memory.float().contiguous(),
        key_sum=None if call.key_sum is None else call.key_sum.float().contiguous(),
        cu_seqlens=None if call.cu_seqlens is None else call.cu_seqlens.to(torch.int64).contiguous(),
    )


def known(x: Tensor) -> Tensor:
    return x if x.dtype in DTYPES else x.float()


def contiguous_rows(x: Tensor) -> Tensor:
    """x with its last axis contiguous."""
    x = known(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def describe(call: Recurrence, out: Tensor, memory: Tensor, key_sum: Tensor | None, wrong: Tensor) -> Call:
    """The structure of a readable call; `wrong` is set where `check_numbers` has something against it."""
    B, T, _, K = call.q.shape
    H, V = call.v.shape[2:]
    native = Call(B, T, H, K, V, call.sequences, call.per_token, 1)
    native.decay = 0 if call.log_decay is None else call.log_decay.ndim - 1
    native.normalize, native.scale = call.normalize, call.scale
    native.q, native.k, native.v, native.r = rows(call.q), rows(call.k), rows(call.v), rows(call.read_back)
    native.beta, native.log_decay, native.out = rows(call.beta), rows(call.log_decay), rows(out)
    native.bonus, native.offsets = pointer(call.bonus), pointer(call.cu_seqlens)
    native.memory_in, native.key_sum_in = pointer(call.memory), pointer(call.key_sum)
    native.memory_out, native.key_sum_out, native.wrong = pointer(memory), pointer(key_sum), pointer(wrong)
    return native


def zero_padded(call: Recurrence, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a result over all tokens or writes, zero in the padding behind the last packed sequence."""
    x = empty(*shape, dtype=dtype)
    if call.cu_seqlens is not None and shape[1]:
        x[:, int(call.cu_seqlens[-1]) * shape[1] // call.q.shape[1] :].zero_()
    return x


def room(call: Recurrence, name: str) -> Tensor | None:
    """Memory for the gradient of a tensor, with a row for each head of v; None where there is no such tensor."""
    x = getattr(call, name)
    if x is None:
        return None
    B, entries, *last = x.shape if name in ("beta", "log_decay") else (*x.shape[:2], call.v.shape[2], x.shape[3])
    dtype = torch.float32 if name in ("beta", "log_decay") else x.dtype
    return zero_padded(call, (B, entries, *last), dtype)


def first_segments(call: Recurrence) -> Tensor:
    """Where the kept states of every sequence begin, and in the end how many there are."""
    if call.cu_seqlens is None:
        lengths = torch.full((call.q.shape[0],), call.q.shape[1] * call.per_token, device="cpu")
    else:
        lengths = call.cu_seqlens.diff() * call.per_token
    segments = (lengths + Call.SEGMENT_WRITES - 1) // Call.SEGMENT_WRITES
    return torch.cat((segments.new_zeros(1), segments.cumsum(0)))


def fake_segments(call: Recurrence) -> Any:
    """How many states are kept, for a traced call; unknown for packed sequences until their lengths are."""
    if call.cu_seqlens is not None:
        return torch.library.get_ctx().new_dynamic_size()
    return call.q.shape[0] * ((call.q.shape[1] * call.per_token + Call.SEGMENT_WRITES - 1) // Call.SEGMENT_WRITES)


def check_wrong(call: Recurrence, wrong: Tensor) -> None:
    """Where the kernels saw a decay or a strength that no call may have: says which."""
    if wrong.item():
        tokens = None if call.cu_seqlens is None else int(call.cu_seqlens[-1])
        writes = None if tokens is None else tokens * call.per_token
        timed = ((call.log_decay, tokens), (call.beta, writes))
        check_numbers(*(None if x is None else x[:, :last] for x, last in timed))


def slices(units: int, V: int) -> int:
    """Into how many slices of value columns a head is cut, so that every thread has work."""
    wanted = min(-(-torch.get_num_threads() // max(units, 1)), V // 16)
    width = 16 * -(-V // (16 * max(wanted, 1)))
    return -(-V // width)


def in_pieces(call: Recurrence, first: Tensor) -> bool:
    """Whether a head's segments go backward in parallel: 1.6 times the work, so with more than two threads a head."""
    heads = call.sequences * call.v.shape[2]
    summed = call.normalize or call.bonus is not None  # over all segments, one after the other
    return torch.get_num_threads() > 2 * heads and not summed and bool((first.diff() > 0).all())


def shaped(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient in the shape and dtype of its tensor: summed over grouped heads, or over batch and time for [H]."""
    if like.ndim == 1:
        grad = grad.sum((0, 1))
    elif like.ndim >= 3 and grad.ndim == like.ndim and grad.shape[2] != like.shape[2]:
        grad = grad.unflatten(2, (like.shape[2], -1)).sum(3)
    return grad.to(like.dtype)


KERNELS = register(RecurrenceKernels())
