"""Random numbers that no library version can change: a hash of a seed and a place, the same on every machine."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
Words = TypeVar("Words", int, np.ndarray)


def splitmix(words: Words) -> Words:
    """A 64-bit number that depends on every bit of the given one; for a whole number, or for each of uint64 [n].

    Source: SplitMix64, Steele et al. 2014.

    Example:
        >>> splitmix(7) == int(splitmix(np.array([7], np.uint64))[0])
        True
    """
    words = (words + GOLDEN) & WORD
    words = ((words ^ (words >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    words = ((words ^ (words >> 27)) * 0x94D049BB133111EB) & WORD
    return words ^ (words >> 31)


def uniform(seed: int, place: int) -> float:
    """The `place`-th number of the stream of a seed, in [0, 1).

    Example:
        >>> uniform(0, 0) == uniform(0, 0), uniform(0, 0) == uniform(0, 1), uniform(0, 0) == uniform(1, 0)
        (True, False, False)
    """
    return (splitmix(splitmix(seed) + place * GOLDEN) >> 12) / (1 << 52)
