"""The model's own modules: `LanguageModel.step`, and the chunked form for a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar, final

import torch

from rebracket.bench.models.base import AGAIN, START, Prepared, Runner, Work, tokens_of
from rebracket.lm import LanguageModel


@final
class Modules(Runner):
    """float32 modules, one after another."""

    is_peer: ClassVar[bool] = False

    def ways(self, model: LanguageModel) -> Iterator[tuple[str, AbstractContextManager[Callable[[Work], Prepared]]]]:
        yield "modules", nullcontext(partial(prepared, model))


def prepared(model: LanguageModel, work: Work) -> Prepared:
    nbytes = 4 * model.parameter_count()
    if work.tokens:
        text = tokens_of(model, 1, work.tokens)
        return Prepared(torch.inference_mode()(lambda: model(text, last=1)), nbytes)
    return Prepared(Stepping(model, work.texts), nbytes)


@final
class Stepping:
    """One more token of each text at every call."""

    def __init__(self, model: LanguageModel, texts: int) -> None:
        self.model, self.count = model, 0
        self.tokens = tokens_of(model, texts)
        with torch.inference_mode():
            self.begun = model(tokens_of(model, texts, START), last=0).cache
        self.cache = self.begun

    @torch.inference_mode()
    def __call__(self) -> None:
        if self.count % AGAIN == 0:
            self.cache = self.begun.fork()
        self.count += 1
        _, self.cache = self.model.step(self.tokens, self.cache, inplace=True)
