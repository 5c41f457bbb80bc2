"""Text made ready for training: a tokenizer, a stream to train on, a stream to validate with."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rebracket.base.files import replacing
from rebracket.data.text import Document, hold_out, read
from rebracket.data.tokens import TokenStream, token_stream
from rebracket.lm.tokenizer import Tokenizer

BYTES = "bytes"
BPE = "bpe"


def silent(line: str) -> None:
    """Says nothing."""


@final
@dataclass(frozen=True)
class Corpus:
    """A text as a model meets it.

    Args:
        tokenizer: the one the streams were made with.
        train: documents to learn from.
        held_out: documents never learned from, the tokenizer included.

    Example:
        >>> import numpy as np
        >>> streams = (TokenStream(np.array([256, 104], np.uint16), 256, 1, 1, digest) for digest in ("a", "b"))
        >>> Corpus(Tokenizer.bytes(), *streams).digest[:8]
        'c8687a08'
    """

    tokenizer: Tokenizer
    train: TokenStream
    held_out: TokenStream

    @property
    def digest(self) -> str:
        """Changes with any text, with what is held out and with the tokenizer."""
        return hashlib.sha256(f"{self.train.digest} {self.held_out.digest}".encode()).hexdigest()


def load_corpus(
    sources: Sequence[str],
    *,
    separator: str = "",
    held_out: float = 0.03,
    tokenizer: str = BPE,
    vocab_size: int = 4096,
    cache: Path,
    say: Callable[[str], None] = silent,
) -> Corpus:
    r"""Reads text, holds documents out, learns or loads the tokenizer, and gives both sides as token streams.

    Args:
        sources: as `rebracket.data.read` takes them.
        separator: as `rebracket.data.read` takes it.
        held_out: expected share of documents to validate with, in (0, 0.5].
        tokenizer: "bpe" (learned from the documents to train on), "bytes", or the path of a saved tokenizer.
        vocab_size: ids of a learned tokenizer, >= 257.
        cache: folder for tokenizers and tokens.
        say: is told, in a line, what takes long.

    Returns:
        The corpus.

    Raises:
        FileNotFoundError: a source or the tokenizer is not there.
        ValueError: no text, or an argument outside its range.

    Cost: the text is held in memory; learning a tokenizer takes about a second per 10 MB and core, and is done once.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "novel.txt").write_text("one line of it\n" * 50)
        ...     corpus = load_corpus([folder], tokenizer="bytes", held_out=0.1, cache=Path(folder))
        ...     corpus.train.nbytes + corpus.held_out.nbytes
        750
    """
    train, held = hold_out(read(sources, separator), held_out)
    made = make_tokenizer(tokenizer, vocab_size, train, cache, say)
    return Corpus(made, token_stream(train, made, cache), token_stream(held, made, cache))


def make_tokenizer(
    kind: str, vocab_size: int, documents: Sequence[Document], cache: Path, say: Callable[[str], None]
) -> Tokenizer:
    if kind == BYTES:
        return Tokenizer.bytes()
    if kind != BPE:
        return Tokenizer.load(kind)
    path = cache / f"tokenizer-{vocab_size}-{digest_of(documents)[:32]}.json"
    return remembered(path) or learned(path, vocab_size, documents, say)


def remembered(path: Path) -> Tokenizer | None:
    """The tokenizer in a cache file; none where there is no file or a damaged one."""
    try:
        return Tokenizer.load(path)
    except (FileNotFoundError, ValueError):
        return None


def learned(path: Path, vocab_size: int, documents: Sequence[Document], say: Callable[[str], None]) -> Tokenizer:
    megabytes = sum(document.nbytes for document in documents) / 1e6
    say(f"learning {vocab_size:,} tokens from {len(documents):,} documents, {megabytes:.1f} MB")
    tokenizer = Tokenizer.train((document.text for document in documents), vocab_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        tokenizer.save(beside)
    return tokenizer


def digest_of(documents: Sequence[Document]) -> str:
    return hashlib.sha256(b"".join(document.digest for document in documents)).hexdigest()
