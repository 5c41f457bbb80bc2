"""The model as a native program, in each format of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar, final

from torch import Tensor

from rebracket.backends.cpu.program import Program, Segment
from rebracket.bench.models.base import AGAIN, START, Prepared, Runner, Work, products, tokens_of
from rebracket.lm import LanguageModel
from rebracket.lm.program import ROWS, ModelProgram
from rebracket.lm.texts import Running

FORMATS = {Running(weights="float32"): 4, Running(weights="bfloat16"): 2, Running(weights="int8"): 1}
"""Bytes of a weight."""


@final
class Programs(Runner):
    """One call for all texts."""

    is_peer: ClassVar[bool] = False

    def ways(self, model: LanguageModel) -> Iterator[tuple[str, AbstractContextManager[Callable[[Work], Prepared]]]]:
        for running in FORMATS:
            yield f"program {running.weights}", nullcontext(partial(prepared, model, running))


def prepared(model: LanguageModel, running: Running, work: Work) -> Prepared:
    """A program with one slot more than the work needs, for its logits."""
    texts = work.texts + 1
    room = texts * max(START + AGAIN, work.tokens)
    program = ModelProgram.prepare(model, running, texts=texts, tokens=room).program
    run = Reading(program, model, work) if work.tokens else Stepping(program, model, work.texts)
    return Prepared(run, FORMATS[running] * products(model), logits=partial(logits_of, program))


def logits_of(program: Program, tokens: Tensor) -> Tensor:
    """Those after each token."""
    slot = program.open()
    (outcome,) = program.run([Segment(slot, tokens.tolist(), logits="all")])
    program.close(slot)
    assert outcome.logits is not None
    return outcome.logits


@final
class Reading:
    """A text from its beginning at every call, in pieces as long as a call may be."""

    def __init__(self, program: Program, model: LanguageModel, work: Work) -> None:
        self.program = program
        text = tokens_of(model, work.tokens).tolist()
        self.pieces = [text[begin : begin + ROWS] for begin in range(0, work.tokens, ROWS)]

    def __call__(self) -> None:
        slot = self.program.open()
        for piece in self.pieces:
            self.program.run([Segment(slot, piece, logits="last" if piece is self.pieces[-1] else "none")])
        self.program.close(slot)


@final
class Stepping:
    """One more token of each text at every call."""

    def __init__(self, program: Program, model: LanguageModel, texts: int) -> None:
        self.program, self.count = program, 0
        tokens = tokens_of(model, texts).tolist()
        slots = [self.program.open() for _ in range(texts)]
        for slot, text in zip(slots, tokens_of(model, texts, START).tolist(), strict=True):
            self.program.run([Segment(slot, text)])
        self.begun = [self.program.snapshot(slot) for slot in slots]
        self.segments = [Segment(slot, [token], logits="last") for slot, token in zip(slots, tokens, strict=True)]

    def __call__(self) -> None:
        if self.count % AGAIN == 0:
            for slot, snapshot in enumerate(self.begun):
                self.program.restore(slot, snapshot)
        self.count += 1
        self.program.run(self.segments)
