"""Documents: text read from its sources, and a part of it held out."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from rebracket.base.checks import number
from rebracket.data.encoding import AUTO
from rebracket.data.sources import Losses, find, warn


@final
@dataclass(frozen=True)
class Document:
    """One text; no state is carried from one document to the next.

    Args:
        name: where it came from; documents are sorted by it.
        text: all of it.

    Example:
        >>> Document("greeting", "hé").nbytes
        3
    """

    name: str
    text: str

    @property
    def nbytes(self) -> int:
        """Length in UTF-8."""
        return len(self.text.encode())

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the text, without the name."""
        return hashlib.sha256(self.text.encode()).digest()


def read(
    sources: Sequence[str], separator: str = "", encoding: str = AUTO, say: Callable[[str], None] = warn
) -> tuple[Document, ...]:
    """Reads the documents of all sources, sorted by name, without empty ones and exact repeats.

    Text is UTF-8, or UTF-16 or UTF-32 if its byte-order mark or, in a file given by name, its zeros say so. The mark is
    taken off, and a damaged character becomes U+FFFD. In folders and globs, hidden files, binary files and files in
    another encoding are left out; links to folders are followed once.

    Args:
        sources: files, pipes, folders (all files below), globs (`**` goes deep), "-" (standard input), "stdlib" (the
            .py files of the running Python's standard library without its tests) or "stdlib+tests".
        separator: text between the documents of a file; "" makes each file one document.
        encoding: of every file, such as "latin-1"; "auto" as above.
        say: is called with a line, which has a count, for each reason why a file was left out or a character replaced;
            hidden files are not counted.

    Raises:
        FileNotFoundError: a file or folder is not there, or nothing matches a glob.
        ValueError: no source given, none holds any text, or a file given by name is no text or in another encoding.

    Example:
        >>> documents = read(["stdlib"])
        >>> documents[0].name
        'stdlib/__future__.py'
    """
    if not sources:
        raise ValueError("text must name at least one source: a file, folder, glob, '-' or 'stdlib'")
    losses = Losses()
    found = sorted((one for source in sources for one in find(source, losses)), key=lambda one: one.name)
    texts = ((one.name, one.text(encoding, losses)) for one in found)
    documents = tuple(distinct(part for name, text in texts for part in parts(name, text, separator)))
    for line in losses.lines():
        say(line)
    if not documents:
        raise ValueError(f"text must not be empty, got no text in {', '.join(sources)}")
    return documents


def hold_out(documents: Sequence[Document], fraction: float) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    r"""Divides documents into those to train on and those to validate with, by the hash of each one's text.

    A document's side depends only on its text, so it does not change when other documents come or go. If that holds out
    nothing, or more than half of the text, the end of the longest document is held out instead.

    Args:
        documents: at least one, all with text.
        fraction: expected share of held-out documents, in (0, 0.5].

    Returns:
        Documents to train on and held-out documents, both in the given order.

    Raises:
        ValueError: a fraction outside (0, 0.5], or text too short to cut.

    Example:
        >>> train, held_out = hold_out([Document("novel", "one line\n" * 100)], 0.1)
        >>> len(train[0].text), held_out[0].name
        (810, 'novel (end)')
    """
    number("held_out", fraction, 0, 0.5)
    held = [document for document in documents if share(document) < fraction]
    if held and sum(one.nbytes for one in held) <= sum(one.nbytes for one in documents) / 2:
        chosen = {document.digest for document in held}
        return tuple(document for document in documents if document.digest not in chosen), tuple(held)
    return cut_longest(documents, fraction)


def parts(name: str, text: str, separator: str) -> Iterator[Document]:
    """The documents of a file; those that hold only blanks are none."""
    pieces = text.split(separator) if separator else [text]
    for place, piece in enumerate(pieces):
        if piece.strip():
            yield Document(f"{name}#{place}" if len(pieces) > 1 else name, piece)


def distinct(documents: Iterable[Document]) -> Iterator[Document]:
    seen: set[bytes] = set()
    for document in documents:
        if document.digest not in seen:
            seen.add(document.digest)
            yield document


def share(document: Document) -> float:
    """A number in [0, 1) that depends only on the text."""
    return int.from_bytes(document.digest[:6]) / 2**48


def cut_longest(documents: Sequence[Document], fraction: float) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    longest = max(documents, key=lambda one: one.nbytes)
    cut = line_start(longest.text, round(len(longest.text) * (1 - fraction)))
    if not (longest.text[:cut].strip() and longest.text[cut:].strip()):
        raise ValueError(f"text must be long enough to hold out its end, got {longest.nbytes} bytes in {longest.name}")
    beginning = Document(longest.name, longest.text[:cut])
    return (
        tuple(beginning if document is longest else document for document in documents),
        (Document(f"{longest.name} (end)", longest.text[cut:]),),
    )


def line_start(text: str, place: int) -> int:
    """The last line start at or before a place; the place itself in a very long line."""
    start = text.rfind("\n", 0, place) + 1
    return start if start > 0 and place - start < 1000 else place
