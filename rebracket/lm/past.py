"""What a model keeps of several texts, and how it reads on: through its modules, or as a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from rebracket.base.random import uniform
from rebracket.lm.cache import ModelCache
from rebracket.lm.model import LanguageModel
from rebracket.lm.prefill import prefill
from rebracket.lm.sampling import Sampler
from rebracket.lm.texts import Row

Report = Callable[[int, int], None]


@final
@dataclass(frozen=True)
class Choosing:
    """How the next tokens are chosen.

    Args:
        sampler: temperature and the like.
        count: ids below it are chosen from.
        stop: the id that ends a text.
    """

    sampler: Sampler
    count: int
    stop: int


class Past(ABC):
    """The past of N texts of one model."""

    @property
    @abstractmethod
    def cache(self) -> ModelCache:
        """The cache of all texts, N rows."""

    @abstractmethod
    def check(self) -> None:
        """Raises a ValueError where the model has other weights than were prepared."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that are kept of all texts."""

    @abstractmethod
    def read(self, texts: Sequence[Sequence[int]], piece: int, report: Report) -> None:
        """Reads tokens of each text, which may be none; `report` is told after every `piece` tokens, and at the end."""

    @abstractmethod
    def step(
        self, rows: Mapping[int, Row], drafts: Mapping[int, Sequence[int]], choosing: Choosing
    ) -> dict[int, list[int]]:
        """Reads the last token of some texts, and chooses the next of each.

        Args:
            rows: the texts by their numbers.
            drafts: guesses of what follows the last token of each, where there are any.
            choosing: how tokens are chosen.

        Returns:
            The tokens of each text: the drafted ones that were chosen, and one more. All but the last are read.
        """


@final
class Batch(Past):
    """Texts that the modules of a model continue as the rows of one batch; drafts are not looked at."""

    def __init__(self, model: LanguageModel, cache: ModelCache) -> None:
        self.model = model
        self._begin(cache)

    def _begin(self, cache: ModelCache) -> None:
        """Starts from a cache of all texts."""
        self._cache = cache
        self._growing = list(range(cache.rows))
        self._resting: dict[int, ModelCache] = {}

    def check(self) -> None:
        """Nothing: modules have the weights that the model has."""

    @property
    def cache(self) -> ModelCache:
        if not self._resting:
            return self._cache
        each = {n: self._cache.select([place]) for place, n in enumerate(self._growing)} | self._resting
        return ModelCache.join([each[n] for n in sorted(each)])

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes + sum(cache.nbytes for cache in self._resting.values())

    def read(self, texts: Sequence[Sequence[int]], piece: int, report: Report) -> None:
        self._begin(prefill(self.model, texts, self.cache, piece=piece, report=report))

    @torch.inference_mode()
    def step(
        self, rows: Mapping[int, Row], drafts: Mapping[int, Sequence[int]], choosing: Choosing
    ) -> dict[int, list[int]]:
        self._keep(list(rows))
        tokens = torch.tensor([row.last for row in rows.values()], device=self.model.embed.weight.device)
        logits, self._cache = self.model.step(tokens, self._cache, inplace=True)
        sampler = choosing.sampler
        numbers = [uniform(row.seed, row.drawn) for row in rows.values()] if sampler.draws else []
        chosen = sampler.choose(logits[:, : choosing.count], numbers)
        return {n: [token] for n, token in zip(rows, chosen, strict=True)}

    def _keep(self, growing: list[int]) -> None:
        """Takes the texts that do not grow any more out of the batch."""
        if growing == self._growing:
            return
        if not set(growing) <= set(self._growing):
            self._begin(self.cache)
        places = {n: place for place, n in enumerate(self._growing)}
        self._resting |= {n: self._cache.select([places[n]]) for n in self._growing if n not in growing}
        self._cache = self._cache.select(torch.tensor([places[n] for n in growing], dtype=torch.int64))
        self._growing = growing
