"""A model small enough to reason about, and a corpus for it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from rebracket.data import Batches, Document, TokenStream, token_stream
from rebracket.lm.tokenizer import Tokenizer
from rebracket.train.config import TrainConfig
from rebracket.train.trainer import Trainer

CPU = torch.device("cpu")
PLAIN = Tokenizer.bytes()
LINES = "".join(f"line {number * number} of a text to learn\n" for number in range(200))


class Pairs(nn.Module):
    """Predicts each token from the one before it, and notes which bounds it was given."""

    def __init__(self, vocab_size: int = PLAIN.vocab_size, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)
        self.bounds: list[list[int]] = []

    def forward(self, tokens: Tensor, *, cu_seqlens: Tensor) -> SimpleNamespace:
        self.bounds.append(cu_seqlens.tolist())
        return SimpleNamespace(logits=self.head(self.embed(tokens)))


def pairs(seed: int = 0) -> Pairs:
    torch.manual_seed(seed)
    return Pairs()


def stream(tmp_path: Path, *texts: str) -> TokenStream:
    return token_stream([Document(str(place), text) for place, text in enumerate(texts)], PLAIN, tmp_path)


def config(**train: object) -> TrainConfig:
    plain = {"steps": 12, "batch_tokens": 64, "validate_every": 0, "checkpoint_every": 5}
    return TrainConfig.from_dict(
        {"model": {"context": 16}, "optimizer": {"learning_rate": 0.05, "warmup": 2}, "train": plain | train}
    )


def trainer(tmp_path: Path, of: TrainConfig, seed: int = 0) -> Trainer:
    batches = Batches(stream(tmp_path, LINES), 16, of.train.batch_tokens, of.train.seed)
    return Trainer(pairs(seed), batches, PLAIN.byte_lengths(), of, CPU)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bitwise."""
    return a.keys() == b.keys() and all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in a)


def ignore(*_: object) -> None:
    """A listener that does nothing."""
