"""The model as a native program, in each format of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
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
            yield f"program {running.weights}", nullcontext(Preparing(model, running))


@final
class Preparing:
    """Packs the weights once, for all works of a format."""

    def __init__(self, model: LanguageModel, running: Running) -> None:
        self.model, self.running = model, running
        self.program: ModelProgram | None = None

    def __call__(self, work: Work) -> Prepared:
        rooms = max(START + AGAIN, work.tokens // work.texts)
        self.program = ModelProgram.prepare(self.model, self.running, texts=work.texts, tokens=work.texts * rooms)
        run = Reading(self.program.program, self.model, work) if work.tokens else Stepping(self.program, work.texts)
        return Prepared(run, FORMATS[self.running] * products(self.model), logits=self.logits)

    def logits(self, tokens: Tensor) -> Tensor:
        """Those after each token."""
        program = ModelProgram.prepare(self.model, self.running, tokens=len(tokens)).program
        (outcome,) = program.run([Segment(program.open(), tokens.tolist(), logits="all")])
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

    def __init__(self, program: ModelProgram, texts: int) -> None:
        self.program, self.count = program.program, 0
        tokens = tokens_of(program.model, texts).tolist()
        slots = [self.program.open() for _ in range(texts)]
        for slot, text in zip(slots, tokens_of(program.model, texts, START).tolist(), strict=True):
            self.program.run([Segment(slot, text)])
        self.begun = [self.program.snapshot(slot) for slot in slots]
        self.segments = [Segment(slot, [token], logits="last") for slot, token in zip(slots, tokens, strict=True)]

    def __call__(self) -> None:
        if self.count % AGAIN == 0:
            for slot, snapshot in enumerate(self.begun):
                self.program.restore(slot, snapshot)
        self.count += 1
        self.program.run(self.segments)
