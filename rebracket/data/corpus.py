"""Text prepared for training: a tokenizer, a stream to train on, a stream to validate with."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rebracket.data.encoding import AUTO
from rebracket.data.sources import warn
from rebracket.data.text import Document, hold_out, read
from rebracket.data.tokens import TokenStream, caching, token_stream
from rebracket.lm.tokenizer import Tokenizer

BYTES = "bytes"
BPE = "bpe"


def silent(line: str) -> None:
    """Says nothing."""


@final
@dataclass(frozen=True)
class Corpus:
    """The tokens of a text, divided in two.

    Args:
        tokenizer: of both streams.
        train: documents to learn from.
        held_out: documents that neither the model nor the tokenizer learns from.
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
    encoding: str = AUTO,
    held_out: float = 0.03,
    tokenizer: str = BPE,
    vocab_size: int = 4096,
    cache: Path,
    say: Callable[[str], None] = silent,
    note: Callable[[str], None] = warn,
) -> Corpus:
    r"""Reads text, holds documents out, learns or loads the tokenizer, and returns both sides as token streams.

    Args:
        sources: as `rebracket.data.read` takes them.
        separator: as `rebracket.data.read` takes it.
        encoding: as `rebracket.data.read` takes it.
        held_out: expected share of documents to validate with, in (0, 0.5].
        tokenizer: "bpe" (learned from the documents to train on), "bytes", or the path of a saved tokenizer.
        vocab_size: ids of a learned tokenizer, >= 257.
        cache: folder for tokenizers and tokens.
        say: is called with a line before something that takes long.
        note: is called with a line for what was left out or replaced.

    Raises:
        FileNotFoundError: a source or the tokenizer is not there.
        ValueError: no text, or an argument outside its range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "novel.txt").write_text("one line of it\n" * 50)
        ...     corpus = load_corpus([folder], tokenizer="bytes", held_out=0.1, cache=Path(folder))
        ...     corpus.train.nbytes + corpus.held_out.nbytes
        750
    """
    train, held = hold_out(read(sources, separator, encoding, note), held_out)
    made = make_tokenizer(tokenizer, vocab_size, train, cache, say)
    return Corpus(made, token_stream(train, made, cache), token_stream(held, made, cache))


def make_tokenizer(
    kind: str, vocab_size: int, documents: Sequence[Document], cache: Path, say: Callable[[str], None]
) -> Tokenizer:
    if kind == BYTES:
        return Tokenizer.bytes()
    if kind != BPE:
        return Tokenizer.load(kind)
    digest = hashlib.sha256(b"".join(document.digest for document in documents)).hexdigest()
    path = cache / f"tokenizer-{vocab_size}-{digest[:32]}.json"
    try:
        return Tokenizer.load(path)
    except (FileNotFoundError, ValueError):  # not there, or damaged
        return learn(path, vocab_size, documents, say)


def learn(path: Path, vocab_size: int, documents: Sequence[Document], say: Callable[[str], None]) -> Tokenizer:
    """Learns a tokenizer and writes it to the cache."""
    megabytes = sum(document.nbytes for document in documents) / 1e6
    say(f"learning {vocab_size:,} tokens from {len(documents):,} documents, {megabytes:.1f} MB")
    tokenizer = Tokenizer.train((document.text for document in documents), vocab_size)
    with caching(path) as beside:
        tokenizer.save(beside)
    return tokenizer
