"""Models to run, what is done with them, and what a runner is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rebracket.lm import Config, LanguageModel

START = 64
"""Tokens that a text has before its next one is timed."""
AGAIN = 64
"""Steps after which texts begin again where they began, so that none outgrows its room."""

LARGE = {"key_dim": 64, "value_dim": 128}
WIDE = {"vocab_size": 16384, "context": 2048, "depth": 12, "pattern": ["gated_deltanet"]}
SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "demo": {
            "vocab_size": 2048,
            "d_model": 128,
            "context": 256,
            "depth": 4,
            "pattern": ["gated_deltanet"],
            "mixers": {"gated_deltanet": {"heads": 2, "key_dim": 32, "value_dim": 64}},
        },
        "46M": {**WIDE, "d_model": 512, "mixers": {"gated_deltanet": {"heads": 4, **LARGE}}},
        "97M": {**WIDE, "d_model": 768, "mixers": {"gated_deltanet": {"heads": 6, **LARGE}}},
        "hybrid": {
            **WIDE,
            "d_model": 512,
            "pattern": ["gated_deltanet"] * 3 + ["softmax"],
            "mixers": {"gated_deltanet": {"heads": 4, **LARGE}, "softmax": {"heads": 8}},
        },
    }
)
"""The models by name; the hybrid has one softmax layer to three linear ones."""


@final
@dataclass(frozen=True)
class Work:
    """What is timed: one more token of each of so many texts, or a text of so many tokens that is read.

    Args:
        texts: at once.
        tokens: read of one text; 0 for one more token of each.

    Example:
        >>> str(Work(texts=8)), str(Work(tokens=2048)), Work(tokens=2048).rows
        ('8 texts', 'read 2,048', 2048)
    """

    texts: int = 1
    tokens: int = 0

    def __str__(self) -> str:
        return f"read {self.tokens:,}" if self.tokens else "1 text" if self.texts == 1 else f"{self.texts} texts"

    @property
    def rows(self) -> int:
        """Tokens that go through the model."""
        return self.tokens or self.texts


@final
@dataclass(frozen=True)
class Prepared:
    """A way to do the work.

    Args:
        run: does it `times` times over.
        times: how often.
        nbytes: of the weights that it reads.
        logits: after each of some tokens [n,vocab], for this package's ways; None for another model.
    """

    run: Callable[[], object]
    nbytes: int
    times: int = 1
    logits: Callable[[Tensor], Tensor] | None = None


class Runner(ABC):
    """Runs a model, or one of somebody else's that has as many bytes of weights."""

    is_peer: ClassVar[bool] = True

    @abstractmethod
    def ways(self, model: LanguageModel) -> Iterator[tuple[str, AbstractContextManager[Callable[[Work], Prepared]]]]:
        """Each way of its own by name, opened for some works: what is entered prepares one after another.

        Raises:
            NotCoveredError: it is not installed; the message is the reason.
        """


def model_of(name: str) -> LanguageModel:
    """The model of that name with random weights."""
    return LanguageModel(Config.from_dict(SIZES[name])).eval()


def tokens_of(model: LanguageModel, *shape: int, seed: int = 0) -> Tensor:
    """Random tokens."""
    return torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def products(model: LanguageModel) -> int:
    """Weights that a token is multiplied by: all, but not an embedding that is only looked up."""
    return model.parameter_count() - (0 if model.head is None else model.embed.weight.numel())


def middle_of(model: LanguageModel) -> int:
    """The width of the middle of a dense model's MLPs, up to a multiple of 32, with which it has as many weights."""
    width, layers = model.config.d_model, len(model.config.layers)
    left = (products(model) - model.config.vocab_size * width) // layers - 4 * width**2
    return max(32, -(-left // (3 * width) // 32) * 32)
