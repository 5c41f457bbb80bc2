"""The native kernels as a backend."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rebracket.backends.cpu import calls, convolution, convolution_operators, library, operators
from rebracket.backends.cpu.autograd import Kernels
from rebracket.backends.cpu.calls import Terms
from rebracket.backends.cpu.library import DTYPES
from rebracket.backends.cpu.repeated import repeated
from rebracket.ops.backend import Backend
from rebracket.ops.convolution import Convolution
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.repetition import Repeat, Tensors
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
        return no_tangent(*present(call)) or missing()

    def run(self, call: Recurrence, chunk: int) -> Output:
        out, memory, key_sum = attend(described(call), needs_gradient(call))
        return Output(out, State(memory, key_sum if call.normalize else None))

    def step(self, call: Recurrence, inplace: bool) -> Output:
        if needs_gradient(call) or call.writes.per_token > 1 or torch.compiler.is_compiling() or call.q.is_meta:
            out, state = self.run(call, self.chunk)
            return Output(out, call.state.overwrite(state) if inplace and call.state is not None else state)
        assert call.state is not None
        given = call.state
        target = given if inplace and writable(given) else blank(call)
        out = calls.step(described(call), library.load(), target.memory, target.key_sum)
        return Output(out, given.overwrite(target) if inplace and target is not given else target)

    def repeat(self, call: Recurrence, inplace: bool, tensors: Tensors) -> Repeat | None:
        assert call.state is not None
        if needs_gradient(call) or call.writes.per_token > 1 or (inplace and not writable(call.state)):
            return None
        return repeated(described(call), inplace, tensors)

    def convolution_refusal(self, call: Convolution) -> str | None:
        if call.x.device.type != "cpu":
            return f"it runs on the CPU, and x is on {call.x.device}"
        if call.x.dtype not in DTYPES:
            return f"it computes in float32, and x is {call.x.dtype}"
        return no_tangent(*(x for x in (call.x, call.weight, call.bias, call.tail) if x is not None)) or missing()

    def convolve(self, call: Convolution) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return convolution_operators.forward(*vars(call).values())
        if convolution.needs_gradient(call):
            return convolution.Kernels.apply(*vars(call).values())
        return convolution.forward(call)


def writable(state: State) -> bool:
    """Whether the kernels can write a state where it lies."""
    return all(x.dtype == torch.float32 and x.is_contiguous() for x in state.tensors().values())


def blank(call: Recurrence) -> State:
    """Room for the state after a call."""
    sizes = call.sizes
    memory = library.empty(call.sequences, sizes.H, sizes.K, sizes.V)
    return State(memory, library.empty(call.sequences, sizes.H, sizes.K) if call.normalize else None)


def no_tangent(*tensors: Tensor) -> str | None:
    """Why tensors with a forward-mode derivative are not covered, or None."""
    if torch.compiler.is_compiling() or all(forward_ad.unpack_dual(x).tangent is None for x in tensors):
        return None
    return "it has no forward-mode derivative"


def missing() -> str | None:
    """Why nothing can run here at all, or None."""
    if library.PATH is not None:
        return None
    if not torch.compiler.is_compiling():
        library.say_missing()
    return "its kernels were not built, because no C++ compiler was there at installation"


def attend(terms: Terms, keep: bool) -> tuple[Tensor, ...]:
    """The kernels' results: as one operator while traced, under autograd if wanted, else straight."""
    if torch.compiler.is_compiling() or terms.q.is_meta:
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
    return torch.is_grad_enabled() and any(x.requires_grad for x in present(call))


def present(call: Recurrence) -> list[Tensor]:
    return [x for x in described(call).tensors if x is not None]


BACKEND = Cpu()
