"""The native kernels as a backend."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.cpu import calls, convolution, convolution_operators, library, operators
from rebracket.backends.cpu.autograd import Kernels
from rebracket.backends.cpu.calls import Terms
from rebracket.backends.cpu.library import DTYPES
from rebracket.ops.backend import Backend
from rebracket.ops.convolution import Convolution
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output, State


@final
class Cpu(Backend):
    """Chunks of 16 writes, float32 arithmetic, the state in cache, torch's threads."""

    name: ClassVar[str] = "cpu"
    rank: ClassVar[int] = 10
    chunk: ClassVar[int] = 16

    def refusal(self, call: Recurrence, chunk: int | None) -> str | None:
        if call.q.device.type not in ("cpu", "meta"):
            return f"it runs on the CPU, and q is on {call.q.device}"
        if call.q.dtype not in DTYPES:
            return f"it computes in float32, and q is {call.q.dtype}"
        if chunk not in (None, self.chunk):
            return f"its chunks are {self.chunk} writes, and {chunk} tokens were asked for"
        return missing()

    def run(self, call: Recurrence, chunk: int) -> Output:
        out, memory, key_sum = attend(described(call), needs_gradient(call))
        return Output(out, State(memory, key_sum if call.normalize else None))

    def step(self, call: Recurrence, inplace: bool) -> Output:
        if needs_gradient(call) or call.writes.per_token > 1 or torch.compiler.is_compiling():
            out, state = self.run(call, self.chunk)
            return Output(out, call.state.overwrite(state) if inplace and call.state is not None else state)
        assert call.state is not None
        target = call.state if inplace else call.state.fork()
        return Output(calls.step(described(call), library.load(), target.memory, target.key_sum), target)

    def convolution_refusal(self, call: Convolution) -> str | None:
        if call.x.device.type != "cpu":
            return f"it runs on the CPU, and x is on {call.x.device}"
        if call.x.dtype not in DTYPES:
            return f"it computes in float32, and x is {call.x.dtype}"
        return missing()

    def convolve(self, call: Convolution) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return convolution_operators.forward(*vars(call).values())
        if convolution.needs_gradient(call):
            return convolution.Kernels.apply(*vars(call).values())
        return convolution.forward(call)


def missing() -> str | None:
    """Why nothing can run here at all, or None."""
    if library.PATH is not None:
        return None
    if not torch.compiler.is_compiling():
        library.say_missing()
    return "its kernels were not built, because no C++ compiler was there at installation"


def attend(terms: Terms, keep: bool) -> tuple[Tensor, ...]:
    """The kernels' results: as one operator while traced, under autograd if wanted, else straight."""
    if torch.compiler.is_compiling():
        return operators.forward(*vars(terms).values(), keep)[:3]
    return Kernels.apply(*vars(terms).values()) if keep else calls.forward(terms, library.load(), keep=False)[:3]


def described(call: Recurrence) -> Terms:
    writes, state = call.writes, call.state
    memory, key_sum = (None, None) if state is None else (state.memory, state.key_sum)
    return Terms(
        call.q, writes.k, writes.v, writes.r, writes.beta, call.log_decay, call.bonus, memory,
        key_sum if call.normalize else None, call.cu_seqlens, writes.per_token, call.normalize, call.scale,
    )  # fmt: skip


def needs_gradient(call: Recurrence) -> bool:
    """Whether any tensor of the call takes part in autograd."""
    writes, state = call.writes, call.state
    tensors = (call.q, writes.k, writes.v, writes.r, writes.beta, call.log_decay, call.bonus)
    held = () if state is None else state.tensors().values()
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*tensors, *held))


BACKEND = Cpu()
