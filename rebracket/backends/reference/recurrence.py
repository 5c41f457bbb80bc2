"""The recurrence over a sequence: the chunked routine in torch operations.

A traced program must not be unrolled over the chunks of one particular length, so there the routine is one operator
that torch does not look into: the loop stays a loop, T may be dynamic, and tracing costs nothing. Its backward pass
runs the routine again with gradients on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.reference import chunked
from rebracket.ops.call import Recurrence
from rebracket.ops.checks import check_numbers
from rebracket.ops.native import NativeOperator, Results, check_readable, floating, register, transforms
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import Output, State

CHUNK = 64


@final
class Chunked(NativeOperator[Recurrence]):
    """Chunks of any number of tokens, 64 by default."""

    name: ClassVar[str] = "reference"
    call: ClassVar[type[Recurrence]] = Recurrence
    results: ClassVar[int] = 3

    def covers(self, call: Recurrence) -> str | None:
        return None

    def settled(self, call: Recurrence) -> Recurrence:
        return call if call.chunk is not None else replace(call, chunk=CHUNK)

    def run(self, call: Recurrence) -> Output:
        check_values(call)
        with without_autocast(call.q):
            if not torch.compiler.is_compiling():
                return chunked.run(call)
            out, memory, key_sum = self.compute(call)
        return Output(out, State(memory, key_sum if call.normalize else None))

    def flat(self, found: Output) -> Results:
        key_sum = found.state.key_sum
        return found.out, found.state.memory, found.state.memory.new_empty(0) if key_sum is None else key_sum

    def forward(self, call: Recurrence, keep: bool) -> Results:
        out, memory, key_sum = self.flat(chunked.run(call))
        return out.clone(), memory.clone(), key_sum.clone()  # an operator must not return its own inputs

    def outline(self, call: Recurrence, keep: bool) -> Results:
        N, K, (H, V) = call.sequences, call.q.shape[3], call.v.shape[2:]
        memory = call.q.new_empty(N, H, K, V, dtype=call.dtype)
        key_sum = memory.new_empty((N, H, K) if call.normalize else (0,))
        return call.q.new_empty(*call.q.shape[:2], H, V), memory, key_sum

    def backward(self, call: Recurrence, kept: Results, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        leaves = call.map(lambda x: x.detach().requires_grad_(x.is_floating_point()))
        with torch.enable_grad():
            results = self.forward(leaves, keep=False)
        ends = [(x, grad) for x, grad in zip(results, grads, strict=True) if x.requires_grad and grad is not None]
        named = floating(leaves)
        found = torch.autograd.grad(
            [x for x, _ in ends], list(named.values()), [grad for _, grad in ends], allow_unused=True
        )
        return {name: x.clone() for name, x in zip(named, found, strict=True) if x is not None}


def check_values(call: Recurrence) -> None:
    """Checks that there are values, and those of decays and strengths where nothing has to wait for them."""
    check_readable(call.tensors())
    if call.q.device.type != "cpu" or torch.compiler.is_compiling() or transforms():
        return
    log_decay = call.log_decay
    if log_decay is not None and call.cu_seqlens is not None and log_decay.ndim > 1:
        log_decay = log_decay[:, : int(call.cu_seqlens[-1])]
    check_numbers(log_decay, call.beta)


CHUNKED = register(Chunked())
