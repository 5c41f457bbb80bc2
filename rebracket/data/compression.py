"""What a general compressor, xz, makes of the same text."""

import lzma
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np

from rebracket.data.corpus import Corpus

STRONGEST = 9 | lzma.PRESET_EXTREME
SMALLEST, WINDOW = 4 << 10, 64 << 20  # the least that lzma takes, and what preset 9 takes
# Tokens decoded at a time: as Python numbers they take many times their size.
BLOCK = 1 << 20


@final
@dataclass(frozen=True)
class Compressed:
    """The held-out text through xz, alone and after training text.

    Args:
        alone: bits per byte of the held-out text by itself.
        after: bits per byte that the held-out text adds to the training text before it.
        before_nbytes: bytes of that training text.
    """

    alone: float
    after: float
    before_nbytes: int


def xz(corpus: Corpus, most: int) -> Compressed:
    """Bits per byte of the held-out documents, one after the other, in `xz -9e`.

    alone = 8 * len(xz(held_out)) / len(held_out)
    after = 8 * (len(xz(train + held_out)) - len(xz(train))) / len(held_out)

    Takes about 1 s and 12 MB of memory per MB of training text, twice, on two cores at once.

    Args:
        corpus: both texts.
        most: bytes of training text, from its end, to put before the held-out text.
    """
    before = text_of(corpus, corpus.train.tokens, most)
    held_out = text_of(corpus, corpus.held_out.tokens, corpus.held_out.nbytes)
    with ThreadPoolExecutor() as pool:  # lzma lets other threads run
        alone, first, both = pool.map(xz_nbytes, (held_out, before, before + held_out))
    return Compressed(8 * alone / len(held_out), 8 * (both - first) / len(held_out), len(before))


def text_of(corpus: Corpus, tokens: np.ndarray, most: int) -> bytes:
    """The last `most` bytes of the text of a stream, without the marks."""
    pieces: list[bytes] = []
    for end in range(len(tokens), 0, -BLOCK):
        if sum(map(len, pieces)) >= most:
            break
        pieces.append(corpus.tokenizer.decode_bytes(tokens[max(0, end - BLOCK) : end].tolist()))
    text = b"".join(reversed(pieces))
    return text[max(0, len(text) - most) :]


def xz_nbytes(text: bytes) -> int:
    """The size of a text in `xz -9e`; a window no longer than the text saves memory and changes nothing."""
    window = min(max(len(text), SMALLEST), WINDOW)
    return len(lzma.compress(text, filters=[{"id": lzma.FILTER_LZMA2, "preset": STRONGEST, "dict_size": window}]))
