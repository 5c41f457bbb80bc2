"""Reading prompts: many of unlike lengths in one row, long ones in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, final

import torch

from rebracket.lm.cache import ModelCache
from rebracket.lm.model import LanguageModel

PIECE = 4096


@final
class Stretch(NamedTuple):
    """Tokens `begin` to `end` of one row's text."""

    row: int
    begin: int
    end: int


def silent(read: int, of: int) -> None:
    """Says nothing."""


@torch.inference_mode()
def absorb(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    cache: ModelCache,
    *,
    piece: int = PIECE,
    report: Callable[[int, int], None] = silent,
) -> ModelCache:
    """Reads texts of unlike lengths, without logits: only what the model keeps of them is wanted.

    Each text is cut at multiples of `piece` of its own, so how it is cut does not depend on the others; short ones
    share a call, packed with cu_seqlens.

    Args:
        model: the reader.
        texts: N texts of tokens; they may be empty.
        cache: what came before them, N rows; not changed.
        piece: most tokens of one call, >= 1.
        report: told after each call how many tokens of how many are read.

    Returns:
        The cache after the texts, N rows.

    Cost: memory of the activations of `piece` tokens, however long the texts are.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gla", "heads": 2}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 7, "d_model": 8, "context": 6, "layers": layers}))
        >>> absorb(model, [[1, 2, 3], []], model.empty_cache(2)).rows
        2
    """
    device = model.embed.weight.device
    done, total = 0, sum(map(len, texts))
    for group in calls([len(text) for text in texts], piece):
        tokens, bounds = pack(texts, group)
        _, cache = model.read(
            torch.tensor([tokens], device=device), cache=cache, cu_seqlens=torch.tensor(bounds, device=device)
        )
        done += len(tokens)
        report(done, total)
    return cache


def calls(lengths: Sequence[int], piece: int) -> Iterator[list[Stretch]]:
    """The stretches of all rows in order, grouped so that no group has more than `piece` tokens or a row twice."""
    group: list[Stretch] = []
    for stretch in stretches(lengths, piece):
        if group and sum(end - begin for _, begin, end in (*group, stretch)) > piece:
            yield group
            group = []
        group.append(stretch)
    if group:
        yield group


def stretches(lengths: Sequence[int], piece: int) -> Iterator[Stretch]:
    for row, length in enumerate(lengths):
        for begin in range(0, length, piece):
            yield Stretch(row, begin, min(begin + piece, length))


def pack(texts: Sequence[Sequence[int]], group: Sequence[Stretch]) -> tuple[list[int], list[int]]:
    """The tokens of a group in one row, and the bounds of every text's share, the empty ones too."""
    counts = [0] * len(texts)
    tokens: list[int] = []
    for row, begin, end in group:
        counts[row] = end - begin
        tokens += texts[row][begin:end]
    return tokens, [0, *accumulate(counts)]
