"""The reference as a backend: it covers every call."""

from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.reference import chunked, convolution, definition, opaque
from rebracket.ops.backend import Backend
from rebracket.ops.convolution import Convolution
from rebracket.ops.recurrence import Recurrence
from rebracket.ops.state import Output
from rebracket.ops.validate import check_decay_values


@final
class Reference(Backend):
    """Differentiable torch operations, double backward included."""

    name: ClassVar[str] = "reference"
    rank: ClassVar[int] = 0
    chunk: ClassVar[int] = 64

    def refusal(self, call: Recurrence, chunk: int | None) -> str | None:
        return None

    def run(self, call: Recurrence, chunk: int) -> Output:
        check_values(call)
        routine = opaque if torch.compiler.is_compiling() else chunked
        with torch.autocast(call.q.device.type, enabled=False):
            return routine.run(call, chunk)

    def step(self, call: Recurrence, inplace: bool) -> Output:
        check_values(call)
        with torch.autocast(call.q.device.type, enabled=False):
            out, state = definition.run(call)
        return Output(out, call.state.overwrite(state) if inplace and call.state is not None else state)

    def convolution_refusal(self, call: Convolution) -> str | None:
        return None

    def convolve(self, call: Convolution) -> tuple[Tensor, Tensor]:
        return convolution.run(call)


def check_values(call: Recurrence) -> None:
    """Looks at the decays where that waits for nothing."""
    log_decay = call.log_decay
    if log_decay is None or log_decay.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if call.cu_seqlens is not None and log_decay.ndim > 1:
        log_decay = log_decay[:, : int(call.cu_seqlens[-1])]
    check_decay_values(log_decay)


BACKEND = Reference()
