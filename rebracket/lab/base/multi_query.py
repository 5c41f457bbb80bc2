"""Multi-query associative recall: pairs of tokens, after which the value of each key is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from rebracket.lab.base.learning import UNLABELLED, Examples


def multi_query_recall(
    draw: torch.Generator, rows: int, tokens: int, pairs: int, vocabulary: int, power: float = 0.01
) -> Examples:
    """Sequences of key/value pairs after which every key comes once more, at some distance, and its value is asked.

    The first 2 n tokens are n keys, each followed by its value. The others are slots of two tokens, of which n are
    drawn without replacement, the i-th with probability in proportion to a i^(a - 1); the j-th to be drawn holds the
    j-th key in its first place, where its value is the label. All places left hold any token of the vocabulary.

    Args:
        draw: the random generator.
        rows: sequences, B >= 1.
        tokens: of a sequence, T, even, >= 4 pairs.
        pairs: n >= 1.
        vocabulary: its size V; keys are in [1, V // 2), values in [V // 2, V), none twice in a sequence.
        power: a in (0, 1]: 1 draws every slot alike, near 0 the i-th in proportion to 1 / i.

    Returns:
        B sequences with n labels each.

    Raises:
        ValueError: If tokens is odd or below 4 pairs, or the vocabulary has fewer keys than pairs.

    Source: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models".

    Example:
        >>> found = multi_query_recall(torch.Generator().manual_seed(0), 3, 16, 2, 11)
        >>> found.tokens.shape, int((found.labels != UNLABELLED).sum())
        (torch.Size([3, 16]), 6)
    """
    half = vocabulary // 2
    if tokens % 2 or tokens < 4 * pairs:
        raise ValueError(f"tokens must be even and at least 4 pairs = {4 * pairs}, got {tokens}")
    if not 1 <= pairs < half:
        raise ValueError(f"pairs must be in [1, vocabulary // 2 = {half}), got {pairs}")
    keys = 1 + distinct(draw, torch.ones(rows, half - 1), pairs)
    values = half + distinct(draw, torch.ones(rows, vocabulary - half), pairs)
    slots = torch.arange(1, (tokens - 2 * pairs) // 2 + 1, dtype=torch.float32)
    asked = 2 * pairs + 2 * distinct(draw, (power * slots ** (power - 1)).expand(rows, -1), pairs)
    text = torch.randint(vocabulary, (rows, tokens), generator=draw)
    text[:, : 2 * pairs] = torch.stack([keys, values], -1).flatten(1)
    labels = torch.full_like(text, UNLABELLED).scatter(1, asked, values)
    return Examples(text.scatter(1, asked, keys), labels)


def distinct(draw: torch.Generator, weights: Tensor, count: int) -> Tensor:
    """Indices [B,count] drawn one after the other by their weights [B,n], none twice in a row."""
    return torch.multinomial(weights, count, generator=draw)
