"""Reading prompts: many of different lengths packed in one row, long ones in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, final

import torch

from rebracket.lm.cache import ModelCache
from rebracket.lm.model import LanguageModel

PIECE = 4096


@final
class Slice(NamedTuple):
    """Tokens `begin` to `end` of one row's text."""

    row: int
    begin: int
    end: int


def silent(read: int, of: int) -> None:
    """Says nothing."""


@torch.inference_mode()
def prefill(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    cache: ModelCache,
    *,
    piece: int = PIECE,
    report: Callable[[int, int], None] = silent,
) -> ModelCache:
    """Reads texts of different lengths into a cache, without computing logits.

    Each text is cut at multiples of `piece`, whatever the others are; short ones share a call, packed with cu_seqlens.

    Args:
        model: the reader.
        texts: N texts of tokens; they may be empty.
        cache: of the tokens before them, N rows; not changed.
        piece: most tokens of one call, >= 1.
        report: called after each call with the number of tokens read and of all.

    Returns:
        The cache after the texts, N rows.

    Cost: memory for the activations of `piece` tokens, however long the texts are.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gla", "heads": 2}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 7, "d_model": 8, "context": 6, "layers": layers}))
        >>> prefill(model, [[1, 2, 3], []], model.empty_cache(2)).rows
        2
    """
    device = model.embed.weight.device
    done, total = 0, sum(map(len, texts))
    for group in calls([len(text) for text in texts], piece):
        tokens, bounds = pack(texts, group)
        packed, cu_seqlens = torch.tensor([tokens], device=device), torch.tensor(bounds, device=device)
        _, cache = model(packed, cache=cache, cu_seqlens=cu_seqlens, last=0)
        done += len(tokens)
        report(done, total)
    return cache


def calls(lengths: Sequence[int], piece: int) -> Iterator[list[Slice]]:
    """The slices of all rows in order, grouped so that no group has more than `piece` tokens or a row twice."""
    group: list[Slice] = []
    for part in slices(lengths, piece):
        if group and sum(end - begin for _, begin, end in (*group, part)) > piece:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def slices(lengths: Sequence[int], piece: int) -> Iterator[Slice]:
    for row, length in enumerate(lengths):
        for begin in range(0, length, piece):
            yield Slice(row, begin, min(begin + piece, length))


def pack(texts: Sequence[Sequence[int]], group: Sequence[Slice]) -> tuple[list[int], list[int]]:
    """The tokens of a group in one row, and the bounds of every text's tokens in it, empty ones included."""
    counts = [0] * len(texts)
    tokens: list[int] = []
    for row, begin, end in group:
        counts[row] = end - begin
        tokens += texts[row][begin:end]
    return tokens, [0, *accumulate(counts)]
