"""One token on the kernels, and many of one kind: the first call's structure is copied, and only pointers change."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.covers import uncovered
from rebracket.backends.cpu.library import Kernel, Rows, empty
from rebracket.backends.cpu.recurrence import KERNELS, Call, check_wrong, describe, readable
from rebracket.ops.backend import Implementation, PreparedStep, Tensors
from rebracket.ops.call import Recurrence, Step
from rebracket.ops.native import check_memory, learns, plain
from rebracket.ops.state import Output, State

FLAG = ctypes.sizeof(Call) // 8
Words = ctypes.c_int64 * (FLAG + 1)
"""A call seen as words, each pointer being one, and the flag of wrong numbers behind them."""


def word(name: str) -> int:
    """Which word the pointer of a field is."""
    field = getattr(Call, name)
    inside = Rows.data.offset if field.size == ctypes.sizeof(Rows) else 0
    return (field.offset + inside) // 8


SOURCES = {name: word(name) for name in ("q", "k", "v", "r", "beta", "log_decay", "bonus")}
SOURCES |= {name: word(f"{name}_in") for name in ("memory", "key_sum")}
OUT, WRONG, MEMORY_OUT, KEY_SUM_OUT = map(word, ("out", "wrong", "memory_out", "key_sum_out"))


@final
class StepKernels(Implementation[Step]):
    """One write a token; several, and steps with gradients, go as a sequence of one token."""

    call: ClassVar[type[Step]] = Step

    def covers(self, call: Step) -> str | None:
        return uncovered(call, "q", call.token.q)

    def run(self, call: Step) -> Output:
        token, held = call.token, call.token.state
        assert held is not None
        if not kernel_runs(token):
            out, state = KERNELS.run(token)
            return Output(out, held.overwrite(state) if call.inplace else state)
        check_memory(token.tensors())
        target = held if call.inplace and writable(held) else room(held, token.normalize)
        token = readable(token)
        B, _, H, V = token.v.shape
        out, wrong = empty(B, 1, H, V, dtype=token.q.dtype), torch.zeros(1, dtype=torch.int32, device="cpu")
        native = describe(token, out, target.memory, target.key_sum, wrong)
        library.kernel("step", Call)(ctypes.byref(native))
        check_wrong(token, wrong)
        return Output(out, held.overwrite(target) if call.inplace and target is not held else target)

    def prepare(self, step: Step, given: Tensors) -> PreparedStep | None:
        held = step.token.state
        if held is None or not kernel_runs(step.token) or (step.inplace and not writable(held)):
            return None
        token = readable(step.token)
        places = {name: place(getattr(token, name), given) for name in SOURCES if name != "r"}
        places["r"] = places["k"] if token.r_is_k else place(token.r, given)
        if None in places.values():
            return None
        out, wrong = empty(*token.v.shape, dtype=token.q.dtype), torch.zeros(1, dtype=torch.int32, device="cpu")
        template = Words()
        ctypes.memmove(template, ctypes.byref(describe(token, out, held.memory, token.key_sum, wrong)), 8 * FLAG)
        pointers = tuple((SOURCES[name], i) for name, i in places.items() if i is not None and i >= 0)
        return PreparedKernel(
            template, pointers, library.kernel("step", Call), step.inplace, token.normalize, out[:, 0]
        )


def kernel_runs(token: Recurrence) -> bool:
    """Whether the step's own kernel can run: one write, no gradients, nothing traced."""
    tensors = token.tensors().values()
    return token.per_token == 1 and plain(tensors) and not learns(tensors)


def writable(state: State) -> bool:
    """Whether the kernels can write into a state's own tensors."""
    return all(x.dtype == torch.float32 and x.is_contiguous() for x in state.tensors().values())


def room(state: State, normalize: bool) -> State:
    """Memory for the state after a step."""
    key_sum = empty(*state.key_sum.shape) if normalize and state.key_sum is not None else None
    return State(empty(*state.memory.shape), key_sum)


def place(x: Tensor | None, given: Tensors) -> int | None:
    """The place of the one given tensor at whose address x begins, -1 for no tensor; None if there is not just one."""
    if x is None:
        return -1
    same = [i for i, y in enumerate(given) if y is not None and y.dtype == x.dtype and y.data_ptr() == x.data_ptr()]
    return same[0] if len(same) == 1 and x.numel() else None


@final
@dataclass(frozen=True)
class PreparedKernel:
    """Steps of one kind.

    Args:
        template: the structure of the first of them.
        pointers: pairs of a word and the place, among the step's tensors, of the one whose address it is.
        kernel: that of a step.
        inplace: whether the new state is written into the old one.
        normalize: whether there is a sum of keys.
        like: a tensor of the output's shape [B,H,V] and dtype.
    """

    template: ctypes.Array[ctypes.c_int64]
    pointers: tuple[tuple[int, int], ...]
    kernel: Kernel
    inplace: bool
    normalize: bool
    like: Tensor

    def __call__(self, tensors: Tensors, state: State) -> Output | None:
        words = Words.from_buffer_copy(self.template)
        address = ctypes.addressof(words)
        for place, index in self.pointers:
            words[place] = pointer = tensors[index].data_ptr()  # type: ignore[union-attr]  (there when the first was)
            if not pointer:  # freed, or zeros without memory: `step` knows which
                return None
        after = state if self.inplace else room(state, self.normalize)
        out = torch.empty_like(self.like)
        words[OUT], words[MEMORY_OUT] = out.data_ptr(), after.memory.data_ptr()
        words[WRONG], words[FLAG] = address + 8 * FLAG, 0
        if self.normalize:
            words[KEY_SUM_OUT] = after.key_sum.data_ptr()  # type: ignore[union-attr]
        self.kernel(address)
        return None if words[FLAG] else Output(out, after)  # `step` says which decay or strength is wrong
