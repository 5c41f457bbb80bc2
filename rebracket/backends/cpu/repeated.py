"""A step whose signature is known: the structure of its call is copied, and only the pointers in it change."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rebracket.backends.cpu import calls, library
from rebracket.backends.cpu.calls import Terms
from rebracket.backends.cpu.library import Call, Library, Rows
from rebracket.ops.repetition import Tensors
from rebracket.ops.state import Output, State

Words = ctypes.c_int64 * (ctypes.sizeof(Call) // 8)
"""A call seen as words, each pointer being one."""


def word(name: str) -> int:
    """Where the pointer of a field stands."""
    field = getattr(Call, name)
    inside = Rows.data.offset if field.size == ctypes.sizeof(Rows) else 0
    return (field.offset + inside) // 8


SOURCES = {name: word(name) for name in ("q", "k", "v", "r", "beta", "log_decay", "bonus")}
STATE_IN = {name: word(f"{name}_in") for name in ("memory", "key_sum")}
STATE_OUT = tuple(word(f"{name}_out") for name in ("memory", "key_sum"))
OUT, WRONG = word("out"), word("wrong")


@final
@dataclass(frozen=True)
class Repeated:
    """Steps of one signature.

    Args:
        template: the structure of the first of them.
        pointers: pairs of a word and the place in the step's tensors whose address belongs there.
        library: the kernels.
        inplace: whether the new state goes where the old one lies.
        normalize: whether there is a sum of keys.
        like: a tensor of the output's shape [B,H,V] and dtype.
    """

    template: Call
    pointers: tuple[tuple[int, int], ...]
    library: Library
    inplace: bool
    normalize: bool
    like: Tensor

    def __call__(self, tensors: Tensors, state: State) -> Output:
        words, wrong = Words.from_buffer_copy(self.template), ctypes.c_int32()
        for place, index in self.pointers:
            words[place] = tensors[index].data_ptr()  # type: ignore[union-attr]  (there when the first step was)
        after = state if self.inplace else self.room(state)
        out = torch.empty_like(self.like)
        words[OUT], words[WRONG], words[STATE_OUT[0]] = out.data_ptr(), ctypes.addressof(wrong), after.memory.data_ptr()
        if self.normalize:
            words[STATE_OUT[1]] = after.key_sum.data_ptr()  # type: ignore[union-attr]
        self.library.step(words)
        if wrong.value:
            calls.check_decay_values(tensors[3])  # type: ignore[arg-type]
        return Output(out, after)

    def room(self, state: State) -> State:
        """Memory for the state after the step."""
        key_sum = library.empty(*state.key_sum.shape) if self.normalize and state.key_sum is not None else None
        return State(library.empty(*state.memory.shape), key_sum)


def repeated(terms: Terms, inplace: bool, tensors: Tensors) -> Repeated | None:
    """How to repeat a step; None if some tensor that the kernels read is not simply one of the step's own."""
    terms = terms.readable()
    pointers = [(place, source(getattr(terms, name), tensors)) for name, place in (SOURCES | STATE_IN).items()]
    if any(index is None for _, index in pointers):
        return None
    assert terms.memory is not None
    B, _, H, V = terms.v.shape
    out = library.empty(B, 1, H, V, dtype=terms.q.dtype)
    template = calls.describe(terms, out, terms.memory, terms.key_sum, calls.flag())
    found = tuple((place, index) for place, index in pointers if index is not None and index >= 0)
    return Repeated(template, found, library.load(), inplace, terms.normalize, out[:, 0])


def source(x: Tensor | None, tensors: Tensors) -> int | None:
    """The place of the one tensor at whose address x begins, -1 for no tensor; None if there is not just one."""
    if x is None:
        return -1
    same = [i for i, y in enumerate(tensors) if y is not None and y.dtype == x.dtype and y.data_ptr() == x.data_ptr()]
    return same[0] if len(same) == 1 and x.numel() else None
