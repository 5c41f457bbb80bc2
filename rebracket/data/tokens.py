"""The tokens of documents, in a memory-mapped file for each text and tokenizer."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np

from rebracket.base.files import replacing
from rebracket.data.text import Document
from rebracket.lm.tokenizer import Tokenizer

VERSION = 1
ADVICE = "set REBRACKET_CACHE to a folder that can be written"
# Bytes of text that go to the tokenizer at a time: enough for all cores, and little memory.
BLOCK = 4 << 20


@final
@dataclass(frozen=True, eq=False)
class TokenStream:
    """Documents as one row of ids, each after a document mark: mark, its tokens, mark, its tokens, ...

    The row is read as a ring: after the last token comes the first mark, which ends the last document.

    Args:
        tokens: [N] unsigned integers, memory-mapped.
        mark: the id of the document mark.
        documents: how many documents.
        nbytes: length of their text in UTF-8.
        digest: SHA-256 of texts and tokenizer, in hex.
    """

    tokens: np.ndarray
    mark: int
    documents: int
    nbytes: int
    digest: str

    def __len__(self) -> int:
        return len(self.tokens)


@final
@dataclass(frozen=True)
class About:
    """What the description beside a token file says of it."""

    version: int
    sha256: str
    documents: int
    nbytes: int


def cache_folder() -> Path:
    """The folder of token files, which need not exist: `$REBRACKET_CACHE`, or `rebracket` in the user's cache folder.

    Raises:
        ValueError: the user has no home folder, and no variable names another.

    Example:
        >>> os.environ["REBRACKET_CACHE"] = "/somewhere/else"
        >>> cache_folder().as_posix()
        '/somewhere/else'
        >>> del os.environ["REBRACKET_CACHE"]
    """
    chosen = os.environ.get("REBRACKET_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rebracket"
    except RuntimeError as error:
        raise ValueError(f"there is no home folder for the cache; {ADVICE}") from error


@contextmanager
def caching(path: Path) -> Iterator[Path]:
    """A path beside a file of the cache to write to; on success it takes the file's place.

    Raises:
        OSError: the cache folder cannot be made or written; the message says what to do.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            yield beside
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}; {ADVICE}", str(path.parent)) from error


def token_stream(documents: Sequence[Document], tokenizer: Tokenizer, cache: Path) -> TokenStream:
    """The tokens of documents, read from the cache, or encoded and written there.

    The file's name is the hash of texts and tokenizer, so a changed text or tokenizer is another file. It takes 2 bytes
    per token up to 65,536 ids, else 4. A damaged one is written again.

    Args:
        documents: at least one.
        tokenizer: turns text to tokens.
        cache: a folder; made if it is not there.

    Raises:
        OSError: the cache folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream = token_stream([Document("x", "hi")], Tokenizer.bytes(), Path(folder))
        ...     stream.tokens.tolist()
        [256, 104, 105]
    """
    digest = digest_of(documents, tokenizer)
    path = cache / f"{digest[:40]}.npy"
    about = verified(path) or build(path, documents, tokenizer)
    tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    return TokenStream(tokens, tokenizer.document, about.documents, about.nbytes, digest)


def digest_of(documents: Sequence[Document], tokenizer: Tokenizer) -> str:
    total = hashlib.sha256(f"{VERSION} {tokenizer.digest} ".encode())
    for document in documents:
        total.update(document.digest)
    return total.hexdigest()


def verified(path: Path) -> About | None:
    """The file's description, if there is one and the file agrees with it."""
    try:
        about = About(**json.loads(path.with_suffix(".json").read_text()))
        whole = about.version == VERSION and about.sha256 == file_digest(path)
    except (OSError, ValueError, TypeError):
        return None
    return about if whole else None


def build(path: Path, documents: Sequence[Document], tokenizer: Tokenizer) -> About:
    with caching(path) as beside, beside.open("wb") as file:
        np.save(file, np.concatenate(list(encoded(documents, tokenizer))), allow_pickle=False)
    about = About(VERSION, file_digest(path), len(documents), sum(document.nbytes for document in documents))
    with caching(path.with_suffix(".json")) as beside:
        beside.write_text(json.dumps(asdict(about)))
    return about


def encoded(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    for block in blocks(documents):
        for ids in tokenizer.encode_all([document.text for document in block]):
            yield np.array([tokenizer.document, *ids], dtype)


def blocks(documents: Sequence[Document]) -> Iterator[list[Document]]:
    ends = itertools.accumulate(document.nbytes for document in documents)
    numbered = zip(ends, documents, strict=True)
    for _, block in itertools.groupby(numbered, lambda pair: pair[0] // BLOCK):
        yield [document for _, document in block]


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
