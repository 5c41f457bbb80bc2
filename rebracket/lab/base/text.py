"""Small language models of real text: built with equal parameters, trained, and read over texts of any length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.data import Batches, Corpus, cache_folder, load_corpus, ordered
from rebracket.lab.base.experiment import Result
from rebracket.lm.cache import ModelCache
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.ops.state import State
from rebracket.train.config import TrainConfig
from rebracket.train.trainer import Trainer
from rebracket.train.validation import Precision, validate

TEXT, VOCABULARY = "stdlib", 512
CONTEXT, BATCH = 256, 2048
"""Tokens of a training sequence and of a training step."""
HELD_OUT = 65536
"""Held-out tokens, of which one half is for choices such as a learning rate and the other for results."""
CHOICE, RESULT = 0, 1
DIVERGED = 8.0
"""Bits per byte counted for a model whose training broke: that of a uniform guess of bytes."""


@lru_cache(maxsize=1)
def corpus(text: str, vocabulary: int) -> Corpus:
    """A text and its tokenizer, which is trained once and then cached on disk."""
    return load_corpus([text], vocab_size=vocabulary, cache=cache_folder())


def language_model(
    layers: Sequence[Mapping[str, object]],
    *,
    d_model: int,
    parameters: int,
    seed: int,
    change: Callable[[LanguageModel], None] = lambda model: None,
) -> LanguageModel:
    """A model of about so many parameters: its MLPs are as wide as that takes, with one unit at least.

    Args:
        layers: one table a layer.
        d_model: width of the residual stream.
        parameters: how many, as nearly as whole units of the MLPs allow.
        seed: of the first weights.
        change: exchanges parts of the model before it is counted and its weights are drawn.

    Example:
        >>> layers = [{"mixer": "gla", "heads": 2}]
        >>> language_model(layers, d_model=16, parameters=20000, seed=0).parameter_count()
        19992
    """

    def build(mlp_dim: int) -> LanguageModel:
        sizes = {"vocab_size": VOCABULARY, "d_model": d_model, "mlp_dim": mlp_dim, "context": CONTEXT}
        model = LanguageModel(Config.from_dict({**sizes, "layers": list(layers)}))
        change(model)
        return model

    missing = parameters - build(1).parameter_count()
    model = build(1 + max(0, round(missing / (3 * d_model * len(layers)))))
    model.init_weights(seed)
    return model


def train(model: LanguageModel, steps: int, rate: float, seed: int) -> bool:
    """Trains a model in place, with a warm-up of a tenth of the steps; False if its loss stopped being a number."""
    text = corpus(TEXT, VOCABULARY)
    tables = {
        "model": {},
        "optimizer": {"learning_rate": rate, "warmup": steps // 10},
        "train": {"steps": steps, "batch_tokens": BATCH},
    }
    batches = Batches(text.train, CONTEXT, BATCH, seed)
    config, lengths = TrainConfig.from_dict(tables), text.tokenizer.byte_lengths()
    trainer = Trainer(model, batches, lengths, config, torch.device("cpu"))
    return trained(trainer, steps)


def trained(trainer: Trainer, step: int) -> bool:
    """Trains up to a step; False if the loss stopped being a number."""
    try:
        while trainer.step < step:
            trainer.advance()
    except FloatingPointError:
        return False
    return True


def held_out_bits(model: LanguageModel, half: int) -> float:
    """Bits per byte of one half of the held-out text, `CHOICE` or `RESULT`, read as in training."""
    text = corpus(TEXT, VOCABULARY)
    rows = islice(ordered(text.held_out, CONTEXT, BATCH, HELD_OUT), half, None, 2)
    return validate(model, rows, text.tokenizer.byte_lengths(), torch.device("cpu"), Precision("float32")).value


def long_texts(rows: int, tokens: int) -> Tensor:
    """Held-out text without document marks [rows,tokens + 1], read as a ring from places evenly apart."""
    stream = corpus(TEXT, VOCABULARY).held_out
    text = stream.tokens[stream.tokens != stream.mark].astype(np.int64)
    places = np.arange(rows)[:, None] * (len(text) // rows) + np.arange(tokens + 1)
    return torch.from_numpy(text[places % len(text)])


def longest_document() -> Tensor:
    """The tokens of the longest held-out document after its mark [T]."""
    stream = corpus(TEXT, VOCABULARY).held_out
    documents = np.split(stream.tokens, np.flatnonzero(stream.tokens == stream.mark))
    return torch.from_numpy(max(documents, key=len).astype(np.int64))


def unchanged(cache: ModelCache) -> ModelCache:
    """The same cache."""
    return cache


@torch.no_grad()
def read_on(
    model: LanguageModel, text: Tensor, piece: int, change: Callable[[ModelCache], ModelCache] = unchanged
) -> Iterator[tuple[Tensor, ModelCache]]:
    """Reads texts piece by piece, each from the cache that the one before left.

    Args:
        model: the reader.
        text: tokens [R,T + 1].
        piece: tokens of a piece, >= 1.
        change: what becomes of the cache after each piece.

    Yields:
        The code lengths of the piece's next tokens [R,piece] in nats, and the changed cache after it.
    """
    cache = model.empty_cache(len(text))
    for start in range(0, text.shape[1] - 1, piece):
        tokens, targets = text[:, start:-1][:, :piece], text[:, start + 1 :][:, :piece]
        logits, after = model(tokens, cache=cache)
        cache = change(after)
        yield code_lengths(logits, targets), cache


@torch.no_grad()
def read_afresh(model: LanguageModel, text: Tensor) -> Tensor:
    """The code lengths [R,T] of texts [R,T + 1], T a multiple of the context, each context read from nothing."""
    tokens, targets = text[:, :-1].reshape(-1, CONTEXT), text[:, 1:].reshape(-1, CONTEXT)
    pairs = zip(tokens.split(16), targets.split(16), strict=True)
    return torch.cat([code_lengths(model(x).logits, y) for x, y in pairs]).view(len(text), -1)


def state_norm(cache: ModelCache) -> float:
    """The mean norm of the states of linear layers, over layers, rows and heads; 0 where there are none."""
    norms = [layer.state.memory.flatten(-2).norm(dim=-1) for layer in cache.layers if isinstance(layer.state, State)]
    return float(torch.stack(norms).mean()) if norms else 0.0


def slope(norms: Sequence[float]) -> float:
    """The slope of log norm over log tokens in the last three doublings: 1 for a sum, 0 for what has settled.

    Args:
        norms: at least four, each after twice as many tokens as the one before.

    Example:
        >>> slope([9.0, 1.0, 2.0, 4.0, 8.0])
        1.0
    """
    return math.log2(norms[-1] / norms[-4]) / 3


def code_lengths(logits: Tensor, targets: Tensor) -> Tensor:
    """-ln p of targets [R,T] under logits [R,T,vocab]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def bits_per_byte(nats: Tensor, targets: Tensor) -> float:
    """Code lengths in nats over the bytes that the target tokens, of the same shape, stand for."""
    nbytes = corpus(TEXT, VOCABULARY).tokenizer.byte_lengths()[targets].sum()
    return float(nats.double().sum() / math.log(2) / nbytes)


def by_position(nats: Tensor, targets: Tensor, ends: Sequence[int]) -> list[float]:
    """Bits per byte of the tokens up to each end, from the end before it."""
    starts = (0, *ends)
    return [bits_per_byte(nats[:, a:b], targets[:, a:b]) for a, b in zip(starts, ends, strict=False)]


def along(result: Result, name: str) -> tuple[list[int], list[float]]:
    """The places that follow a name among a result's numbers, and the numbers there.

    Example:
        >>> along(Result({}, {"norm at 8": 0.5, "norm at 16": 0.7, "norm at rest 8": 2.0}, 0.1), "norm at")
        ([8, 16], [0.5, 0.7])
    """
    found = {x.removeprefix(f"{name} "): value for x, value in result.numbers.items()}
    places = [place for place in found if place.isdecimal()]
    return [int(place) for place in places], [found[place] for place in places]


def doubled(first: int, last: int) -> tuple[int, ...]:
    """first, 2 first, 4 first, ... up to last.

    Example:
        >>> doubled(3, 12)
        (3, 6, 12)
    """
    return tuple(first << i for i in range((last // first).bit_length()))
