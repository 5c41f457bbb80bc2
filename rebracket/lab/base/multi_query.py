"""Multi-query associative recall: pairs of tokens, after which the value of each key is asked for, the newest one."""

from __future__ import annotations

import torch
from torch import Tensor

from rebracket.lab.base.learning import UNLABELLED, Examples


def multi_query_recall(
    draw: torch.Generator,
    rows: int,
    tokens: int,
    pairs: int,
    vocabulary: int,
    power: float = 0.01,
    writes: int = 1,
) -> Examples:
    """Sequences of key/value pairs after which every key comes once more, at some distance, and its value is asked.

    The first 2 n m tokens are n keys, each m times with another value, in any order; each is followed by its value. The
    others are slots of two tokens, of which n are drawn without replacement, the i-th with probability in proportion to
    a i^(a - 1); the j-th to be drawn holds the j-th key in its first place, where its newest value is the label. All
    places left hold any token of the vocabulary.

    Args:
        draw: the random generator.
        rows: sequences, B >= 1.
        tokens: of a sequence, T, even, >= 2 pairs (writes + 1).
        pairs: keys, n >= 1.
        vocabulary: its size V; keys are in [1, V // 2), values in [V // 2, V), none twice in a sequence.
        power: a in (0, 1]: 1 draws every slot alike, near 0 the i-th in proportion to 1 / i.
        writes: m >= 1, how often a key comes with a value before it is asked for.

    Returns:
        B sequences with n labels each.

    Raises:
        ValueError: If tokens is odd or too few, or the vocabulary has too few keys or values.

    Source: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models"; with m > 1 as
    its code's `forgetting_mqar`.

    Example:
        >>> found = multi_query_recall(torch.Generator().manual_seed(0), 3, 16, 2, 11)
        >>> found.tokens.shape, int((found.labels != UNLABELLED).sum())
        (torch.Size([3, 16]), 6)
    """
    half, written = vocabulary // 2, 2 * pairs * writes
    if tokens % 2 or tokens < written + 2 * pairs:
        raise ValueError(f"tokens must be even and at least 2 pairs (writes + 1) = {written + 2 * pairs}, got {tokens}")
    if not 1 <= pairs < half or pairs * writes > vocabulary - half:
        raise ValueError(
            f"pairs must be in [1, vocabulary // 2 = {half}), with values for {writes} writes of each; got {pairs}"
        )
    keys = 1 + distinct(draw, torch.ones(rows, half - 1), pairs)
    values = half + distinct(draw, torch.ones(rows, vocabulary - half), pairs * writes)
    which = torch.arange(pairs * writes).expand(rows, -1) if writes == 1 else shuffled(draw, rows, pairs * writes)
    slots = torch.arange(1, (tokens - written) // 2 + 1, dtype=torch.float32)
    asked = written + 2 * distinct(draw, (power * slots ** (power - 1)).expand(rows, -1), pairs)
    text = torch.randint(vocabulary, (rows, tokens), generator=draw)
    text[:, :written] = torch.stack([keys.gather(1, which % pairs), values], -1).flatten(1)
    labels = torch.full_like(text, UNLABELLED).scatter(1, asked, newest(which % pairs, values, pairs))
    return Examples(text.scatter(1, asked, keys), labels)


def newest(which: Tensor, values: Tensor, pairs: int) -> Tensor:
    """The value [B,pairs] that came last with each key, from the keys [B,n] by number and the values beside them."""
    place = torch.arange(which.shape[1]).expand_as(which)
    last = torch.zeros(which.shape[0], pairs, dtype=torch.int64).scatter_reduce(1, which, place, "amax")
    return values.gather(1, last)


def shuffled(draw: torch.Generator, rows: int, count: int) -> Tensor:
    """The numbers below count in an order of its own for each row [B,count]."""
    return torch.rand(rows, count, generator=draw).argsort(1)


def distinct(draw: torch.Generator, weights: Tensor, count: int) -> Tensor:
    """Indices [B,count] drawn one after the other by their weights [B,n], none twice in a row."""
    return torch.multinomial(weights, count, generator=draw)
