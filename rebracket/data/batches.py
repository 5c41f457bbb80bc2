"""Packed rows of tokens, in an order that depends only on the seed and the batch number."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from rebracket.base.random import WORD, splitmix
from rebracket.data.tokens import TokenStream


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """One packed row: every token is to be predicted from those before it in its own sequence.

    Args:
        tokens: [1, T] int64, what the model reads; a document begins with the document mark.
        targets: [1, T] int64, the token after each; after a document's last token that is the next mark, its end.
        cu_seqlens: [N+1] int64, where sequences begin: at document marks and at each new context; the last is T.

    Example:
        >>> row = np.array([9, 1, 2, 9, 3, 4], np.uint16)
        >>> batch = next(ordered(TokenStream(row, 9, 2, 4, ""), 6, 6))
        >>> batch.targets.tolist(), batch.cu_seqlens.tolist()
        ([[1, 2, 9, 3, 4, 9]], [0, 3, 6])
    """

    tokens: Tensor
    targets: Tensor
    cu_seqlens: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(self.tokens.to(device), self.targets.to(device), self.cu_seqlens.to(device))


@final
@dataclass(frozen=True)
class Batches:
    """The training batches, numbered 0, 1, 2, ... without end.

    A stream of N tokens gives N // context contexts per epoch, cut from a start that moves each epoch and visited in a
    shuffled order. Both are computed from (seed, epoch) with integers only, so batch n is the same on every machine and
    does not depend on the batches before it.

    Args:
        stream: the documents' tokens, read as a ring.
        context: tokens per context, C >= 1.
        batch_tokens: tokens per batch, T, a multiple of context.
        seed: any integer >= 0.

    Raises:
        ValueError: the stream is not longer than a context, or batch_tokens is no multiple of context.

    Example:
        >>> row = np.array([9, 1, 2, 9, 3, 4], np.uint16)
        >>> batches = Batches(TokenStream(row, 9, 2, 4, ""), context=3, batch_tokens=6, seed=0)
        >>> batches[0].tokens.tolist()
        [[9, 3, 4, 9, 1, 2]]
        >>> batches[0].cu_seqlens.tolist()
        [0, 3, 6]
    """

    stream: TokenStream
    context: int
    batch_tokens: int
    seed: int

    def __post_init__(self) -> None:
        whole_contexts(self.batch_tokens, self.context)
        if len(self.stream) <= self.context:
            raise ValueError(
                f"text must be longer than one context of {self.context} tokens, got {len(self.stream)}; "
                f"give more text or a shorter context"
            )

    @property
    def contexts(self) -> int:
        """Contexts per epoch."""
        return len(self.stream) // self.context

    def __getitem__(self, number: int) -> Batch:
        per_batch = whole_contexts(self.batch_tokens, self.context)
        first = number * per_batch
        starts = [self._start(context) for context in range(first, first + per_batch)]
        return gather(self.stream, np.array(starts), self.context)

    def _start(self, number: int) -> int:
        """Where in the stream the `number`-th context of all epochs begins."""
        epoch, place = divmod(number, self.contexts)
        offset = int(hashes(self.seed, epoch, 1)[0]) % len(self.stream)
        return offset + int(order(self.seed, epoch, self.contexts)[place]) * self.context


def whole_contexts(batch_tokens: int, context: int) -> int:
    """Contexts in a batch; a ValueError if the last would be cut."""
    if batch_tokens % context:
        raise ValueError(f"batch_tokens must be a multiple of the context {context}, got {batch_tokens}")
    return batch_tokens // context


def ordered(stream: TokenStream, context: int, batch_tokens: int, limit: int = 0) -> Iterator[Batch]:
    """Batches whose targets are every token of a stream exactly once, in order, cut into contexts as for training.

    Args:
        stream: the documents' tokens.
        context: tokens per context, >= 1.
        batch_tokens: tokens per batch, a multiple of context; the last batch is shorter.
        limit: about how many tokens to give at most, in batches evenly spread over the stream; 0 gives all.

    Example:
        >>> row = np.array([9, 1, 2, 9, 3, 4], np.uint16)
        >>> [batch.targets.tolist() for batch in ordered(TokenStream(row, 9, 2, 4, ""), 2, 4)]
        [[[1, 2, 9, 3]], [[4, 9]]]
    """
    starts = range(0, len(stream), batch_tokens)
    wanted = min(max(limit // batch_tokens, 1), len(starts)) if limit else len(starts)
    for place in range(wanted):
        start = starts[place * len(starts) // wanted]
        read = stream.tokens[np.arange(start, min(start + batch_tokens, len(stream)) + 1) % len(stream)].astype(
            np.int64
        )
        yield packed(read[:-1], read[1:], context, stream.mark)


def gather(stream: TokenStream, starts: np.ndarray, context: int) -> Batch:
    """One row of as many contexts as there are starts."""
    places = (starts[:, None] + np.arange(context + 1)) % len(stream)
    read = stream.tokens[places].astype(np.int64)
    return packed(read[:, :-1].reshape(-1), read[:, 1:].reshape(-1), context, stream.mark)


def packed(tokens: np.ndarray, targets: np.ndarray, context: int, mark: int) -> Batch:
    begins = tokens == mark
    begins[::context] = True
    cu_seqlens = np.append(np.flatnonzero(begins), len(tokens))
    return Batch(torch.from_numpy(tokens)[None], torch.from_numpy(targets)[None], torch.from_numpy(cu_seqlens))


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """A shuffle of range(count): sorted by a hash of (seed, epoch, number)."""
    return np.argsort(hashes(seed, epoch, count), kind="stable")


def hashes(seed: int, epoch: int, count: int) -> np.ndarray:
    """[count] uint64 hashes."""
    return splitmix(splitmix((splitmix(seed) + epoch) & WORD) + np.arange(count, dtype=np.uint64))
