"""The kernels refuse a call that does not fit, whatever made it, and write not a byte of it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.backends.cpu import library
from rebracket.backends.cpu.convolution import ConvolutionCall
from rebracket.backends.cpu.recurrence import Backward, Call, Gradients

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")

GUARD = 64
"""Numbers before and after each result that no kernel may touch."""
B, T, Hq, H, K, V = 1, 300, 2, 4, 5, 20
OFFSETS = (0, 150, 150, 290)
N = len(OFFSETS) - 1
SEGMENTS = (0, 2, 2, 4)
HUGE = 1 << 62


@final
@dataclass
class Memory:
    """Tensors that live as long as a call; those that are written stand between guards."""

    held: list[Tensor] = field(default_factory=list)
    written: list[Tensor] = field(default_factory=list)

    def random(self, *shape: int) -> Tensor:
        self.held.append(torch.rand(*shape, generator=torch.Generator().manual_seed(len(self.held))))
        return self.held[-1]

    def numbers(self, *values: int) -> Tensor:
        self.held.append(torch.tensor(values))
        return self.held[-1]

    def result(self, *shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        self.written.append(torch.full((size + 2 * GUARD,), 7.0))
        return self.written[-1][GUARD : GUARD + size].view(shape)

    def bits(self) -> list[bytes]:
        return [x.numpy().tobytes() for x in self.written]

    def guards(self) -> list[float]:
        return [float(x) for y in self.written for x in (*y[:GUARD], *y[-GUARD:])]


def run(name: str, call: ctypes.Structure) -> None:
    library.kernel(name, type(call))(ctypes.byref(call))


@final
@dataclass
class Trial:
    """A call of a kernel that fits, to be spoiled."""

    run: Callable[[], None]
    call: Call
    memory: Memory
    gradients: Gradients = field(default_factory=Gradients)
    convolution: ConvolutionCall = field(default_factory=ConvolutionCall)
    offsets: Tensor = field(default_factory=lambda: torch.zeros(0))
    starts: Tensor = field(default_factory=lambda: torch.zeros(0))


def inputs(memory: Memory, tokens: int, sequences: int) -> Call:
    """A delta rule with one decay a channel and grouped heads; r is k."""
    rows = B if tokens > 1 else sequences
    q, k, v = (memory.random(rows, tokens, *sizes) for sizes in ((Hq, K), (Hq, K), (H, V)))
    beta, log_decay = memory.random(rows, tokens, H), memory.random(rows, tokens, H, K).neg_()
    call = Call(rows, tokens, H, K, V, sequences, 1, 1)
    call.decay, call.scale, call.wrong = 3, 1.0, memory.numbers(0).data_ptr()
    for name, x in {"q": q, "k": k, "v": v, "r": k, "beta": beta, "log_decay": log_decay}.items():
        setattr(call, name, library.rows(x))
    call.memory_in = memory.random(sequences, H, K, V).data_ptr()
    return call


def forward() -> Trial:
    """Packed sequences, of which one is empty, whose states are kept for the backward pass."""
    memory = Memory()
    call = inputs(memory, T, N)
    offsets, starts = memory.numbers(*OFFSETS), memory.numbers(*SEGMENTS)
    call.out = library.rows(memory.result(B, T, H, V))
    call.offsets, call.first_segment = offsets.data_ptr(), starts.data_ptr()
    call.memory_out = memory.result(N, H, K, V).data_ptr()
    call.entries, call.segments = memory.result(SEGMENTS[-1], H, K * V).data_ptr(), SEGMENTS[-1]
    return Trial(lambda: run("forward", call), call, memory, offsets=offsets, starts=starts)


def backward() -> Trial:
    done = forward()
    done.run()
    memory, call, gradients = done.memory, done.call, Gradients()
    memory.held.extend(memory.written)
    memory.written.clear()
    gradients.out = library.rows(memory.random(B, T, H, V))
    shapes = {"q": (H, K), "k": (H, K), "v": (H, V), "beta": (H,), "log_decay": (H, K)}
    for name, sizes in shapes.items():
        setattr(gradients, name, library.rows(memory.result(B, T, *sizes)))
    gradients.memory_in = memory.result(N, H, K, V).data_ptr()
    both = Backward(ctypes.pointer(call), ctypes.pointer(gradients))
    return Trial(lambda: run("backward", both), call, memory, gradients, offsets=done.offsets, starts=done.starts)


def step() -> Trial:
    memory = Memory()
    call = inputs(memory, 1, 3)
    call.out, call.memory_out = library.rows(memory.result(3, 1, H, V)), memory.result(3, H, K, V).data_ptr()
    return Trial(lambda: run("step", call), call, memory)


def convolution() -> Trial:
    """Forward or, where a gradient is given, both ways."""
    memory, D, width, block = Memory(), 20, 4, 64
    x, weight = memory.random(1, T, D), memory.random(D, width)
    offsets, starts = memory.numbers(*OFFSETS), memory.numbers(0, 3, 4, 7)
    c = ConvolutionCall(T, D, N, width, block, 7, 1)
    c.x, c.x_row, c.x_token, c.weight = x.data_ptr(), T * D, D, weight.data_ptr()
    c.y, c.tail_out = memory.result(1, T, D).data_ptr(), memory.result(N, width - 1, D).data_ptr()
    c.offsets, c.first_block = offsets.data_ptr(), starts.data_ptr()
    c.grad_y, c.grad_y_row, c.grad_y_token = memory.random(1, T, D).data_ptr(), T * D, D
    c.grad_x, c.sums = memory.result(1, T, D).data_ptr(), memory.result(7, width + 1, D).data_ptr()
    c.grad_weight, c.grad_bias = memory.result(D, width).data_ptr(), memory.result(D).data_ptr()
    both = lambda: (run("convolution_forward", c), run("convolution_backward", c))[0]  # noqa: E731
    return Trial(both, Call(), memory, convolution=c, offsets=offsets, starts=starts)


MADE: dict[str, Callable[[], Trial]] = {
    "forward": forward,
    "backward": backward,
    "step": step,
    "convolution": convolution,
}


def change(path: str, value: object) -> Callable[[Trial], None]:
    """Sets one field of a structure, such as "call.q.time"."""

    def apply(trial: Trial) -> None:
        *owners, name = path.split(".")
        owner: object = trial
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)

    return apply


def numbers(name: str, place: int, value: int) -> Callable[[Trial], None]:
    """Changes one of the offsets, or of the starts of segments or blocks, as numpy would: unseen by torch."""

    def apply(trial: Trial) -> None:
        getattr(trial, name).numpy()[place] = value

    return apply


Spoiled = dict[str, tuple[Callable[[Trial], None], str]]

OFFSETS_SPOILED: Spoiled = {
    "offsets that begin late": (numbers("offsets", 0, 1), "cu_seqlens must start at 0, got 1"),
    "negative offsets": (numbers("offsets", 0, -8), "cu_seqlens must start at 0, got -8"),
    "offsets that decrease": (numbers("offsets", 2, 149), "cu_seqlens must not decrease, got 150 before 149"),
    "offsets beyond T": (numbers("offsets", 3, 301), "cu_seqlens must not pass T = 300, got 301"),
    "offsets far beyond T": (numbers("offsets", 3, HUGE), f"cu_seqlens must not pass T = 300, got {HUGE}"),
}
SIZES_SPOILED: Spoiled = {
    "a negative T": (change("call.T", -1), "B, T and N must be >= 0"),
    "a negative N": (change("call.N", -1), "B, T and N must be >= 0"),
    "no heads": (change("call.H", 0), "H, K and V must be >= 1, got 0"),
    "no channels": (change("call.K", 0), "H, K and V must be >= 1"),
    "more channels than an int counts": (change("call.K", 1 << 31), "K and V must be at most 2^30"),
    "more numbers than can be counted": (change("call.H", HUGE), "too many numbers to count"),
    "another K": (change("call.K", K + 1), "q must be [B,T,heads,D] = ["),
    "another V": (change("call.V", V - 1), "v must be [B,T,heads,D] = ["),
    "heads that do not divide": (change("call.k.heads", 3), "k must have a divisor of the H = 4 heads, got 3"),
    "no heads of k": (change("call.k.heads", 0), "k must have a divisor of the H = 4 heads, got 0"),
    "no writes a token": (change("call.per_token", 0), "per_token must be >= 1, got 0"),
    "an unknown decay": (change("call.decay", 4), "decay must be from 0 to 3, got 4"),
    "a decay of other columns": (change("call.decay", 2), "log_decay must be [B,T,heads,D] = ["),
    "an unknown dtype": (change("call.v.dtype", 3), "v has the unknown dtype 3"),
    "q that is missing": (change("call.q.data", None), "q is missing"),
    "a decay that is missing": (change("call.log_decay.data", None), "log_decay is missing"),
    "a negative stride": (change("call.q.head", -K), "q must have strides >= 0"),
    "a stride beyond all memory": (change("call.k.head", HUGE), "k must have strides >= 0 whose reach can be counted"),
    "a normalizer beside r": (change("call.normalize", 1), "bonus and normalize are for calls without r"),
}
OUTPUTS_SPOILED: Spoiled = {
    "out of fewer heads": (change("call.out.heads", 2), "out must have the H = 4 heads, got 2"),
    "out whose heads overlap": (change("call.out.head", V - 1), "out must have strides that reach no place twice"),
    "out that is expanded": (change("call.out.head", 0), "out must have strides that reach no place twice"),
    "out that is missing": (change("call.out.data", None), "out is missing"),
    "no new memory": (change("call.memory_out", None), "memory_out is missing"),
    "no flag": (change("call.wrong", None), "wrong is missing"),
}
PACKED_SPOILED: Spoiled = {
    "fewer tokens than q has": (change("call.T", T - 1), "q must be [B,T,heads,D] = [1,299,heads,5], got [1,300,2,5]"),
    "two writes a token": (change("call.per_token", 2), "k must be [B,T,heads,D] = [1,600,heads,5], got [1,300,2,5]"),
    "packed rows": (change("call.B", 2), "cu_seqlens needs B = 1, got 2"),
    "as many sequences as rows": (change("call.offsets", None), "N must be B = 1 without cu_seqlens, got 3"),
    "segments elsewhere": (numbers("starts", 1, 3), "first_segment[1] must be 2 for these sequences, got 3"),
    "segments that are missing": (change("call.first_segment", None), "first_segment is missing"),
    "sequences that grew": (numbers("offsets", 1, 100), "first_segment[1] must be 1 for these sequences, got 2"),
    "room for fewer segments": (change("call.segments", 3), "are 3 segments, and these sequences have 4"),
    "no slices": (change("call.slices", 0), "slices must be from 1 to V / 16 = 2, got 0"),
    "empty slices": (change("call.slices", 3), "slices must be from 1 to V / 16 = 2, got 3"),
}
BACKWARD_SPOILED: Spoiled = {
    "a gradient of other tokens": (change("gradients.out.T", 9), "the gradient of out must be [B,T,heads,D] = ["),
    "a gradient of grouped heads": (
        change("gradients.q.heads", 2),
        "the gradient of q must have the H = 4 heads, got 2",
    ),
    "a gradient that overlaps": (change("gradients.k.time", K), "the gradient of k must have strides that reach no"),
    "no gradient of v": (change("gradients.v.data", None), "the gradient of v is missing"),
    "no gradient of the state": (change("gradients.memory_in", None), "the gradient of memory is missing"),
    "slices without carries": (change("call.slices", 2), "slices must be 1 without carries, got 2"),
    "no kept states": (change("call.entries", None), "are 0 segments, and these sequences have 4"),
    "carries and an empty sequence": (change("call.carries", 64), "carries need sequences of a token or more, and 1"),
}
STEP_SPOILED: Spoiled = {
    "two tokens": (change("call.T", 2), "q must be [B,T,heads,D] = [3,2,heads,5]"),
    "other rows": (change("call.B", 2), "N must be B = 2 without cu_seqlens, got 3"),
    "more rows": (lambda t: (change("call.B", 4)(t), change("call.N", 4)(t))[0], "q must be [B,T,heads,D] = [4,1,"),
    "no memory": (change("call.memory_in", None), "memory_in is missing"),
}
CONVOLUTION_SPOILED: Spoiled = {
    "a negative T": (change("convolution.T", -1), "T, N and blocks must be >= 0"),
    "no channels": (change("convolution.D", 0), "D, width and block must be >= 1"),
    "no block": (change("convolution.block", 0), "D, width and block must be >= 1"),
    "no taps": (change("convolution.width", 0), "D, width and block must be >= 1"),
    "more numbers than can be counted": (change("convolution.D", HUGE), "too many numbers to count"),
    "an unknown dtype": (change("convolution.dtype", -1), "has an unknown dtype: -1"),
    "other blocks": (change("convolution.blocks", 6), "blocks must be 7 for these sequences, got 6"),
    "blocks elsewhere": (numbers("starts", 2, 5), "first_block[2] must be 4 for these sequences, got 5"),
    "blocks without sequences": (change("convolution.offsets", None), "first_block is for packed sequences"),
    "a negative stride": (change("convolution.x_token", -1), "x must have strides >= 0"),
    "x that is missing": (change("convolution.x", None), "x is missing"),
    "y that is missing": (change("convolution.y", None), "y is missing"),
}
SPOILED = {
    "forward": OFFSETS_SPOILED | SIZES_SPOILED | OUTPUTS_SPOILED | PACKED_SPOILED,
    "backward": OFFSETS_SPOILED | SIZES_SPOILED | PACKED_SPOILED | BACKWARD_SPOILED,
    "step": SIZES_SPOILED | OUTPUTS_SPOILED | STEP_SPOILED,
    "convolution": OFFSETS_SPOILED | CONVOLUTION_SPOILED,
}


@pytest.mark.parametrize("kernel", MADE)
def test_a_call_that_fits_runs_and_stays_between_its_guards(kernel: str):
    trial = MADE[kernel]()
    before = trial.memory.bits()
    trial.run()
    assert all(a != b for a, b in zip(trial.memory.bits(), before, strict=True))
    assert set(trial.memory.guards()) == {7.0}


@pytest.mark.parametrize(
    ("kernel", "fault"), [(kernel, fault) for kernel, faults in SPOILED.items() for fault in faults]
)
def test_a_call_that_does_not_fit_is_refused_and_nothing_is_written(kernel: str, fault: str):
    trial, (spoil, message) = MADE[kernel](), SPOILED[kernel][fault]
    spoil(trial)
    before = trial.memory.bits()
    with pytest.raises(ValueError, match=re.escape(message)):
        trial.run()
    assert trial.memory.bits() == before


@pytest.mark.parametrize("kernel", ["backward", "convolution"])
def test_what_only_the_way_back_needs_is_checked_there(kernel: str):
    trial = MADE[kernel]()
    name = "gradients.q" if kernel == "backward" else "convolution"
    change(f"{name}.{'data' if kernel == 'backward' else 'grad_x'}", None)(trial)
    with pytest.raises(ValueError, match="is missing"):
        trial.run()


def test_empty_calls_fit_without_any_memory():
    call = Call(0, 0, 1, 1, 1, 0, 1, 1)
    call.wrong = ctypes.addressof(ctypes.c_int32())
    run("forward", call)


def test_a_message_is_of_the_call_that_was_refused():
    first, second = forward(), forward()
    change("call.H", 0)(first)
    change("call.per_token", 0)(second)
    with pytest.raises(ValueError, match="H, K and V"):
        first.run()
    with pytest.raises(ValueError, match="per_token"):
        second.run()


def some() -> Tensor:
    return torch.randn(1, T, 2, 8, generator=torch.Generator().manual_seed(0))


def test_offsets_changed_between_forward_and_backward_are_refused():
    x, offsets = some().requires_grad_(), torch.tensor([0, 100, T])
    out, _ = rb.linear_attention(x, x, x, cu_seqlens=offsets, backend="cpu")
    offsets.numpy()[1:] = (10, 20)
    with pytest.raises(ValueError, match="these sequences have 2; cu_seqlens must not change in between"):
        out.sum().backward()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("offsets", [(0, 200, 100), (0, 10, T + 1), (-128, 0, 10), (0, 5, 1 << 20)])
def test_offsets_are_checked_in_a_compiled_graph(offsets: tuple[int, ...], grad: bool):
    def attend(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return rb.linear_attention(x, x, x, cu_seqlens=cu_seqlens, backend="cpu").out

    torch.compiler.reset()
    x, fitting = some().requires_grad_(grad), torch.tensor([0, 100, T])
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, fitting), attend(x, fitting))
    with pytest.raises(ValueError, match="cu_seqlens must"):
        compiled(x, torch.tensor(offsets))
    torch.compiler.reset()
