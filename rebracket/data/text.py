"""Documents from files, folders, globs, standard input and the Python standard library's own sources."""

import codecs
import glob
import hashlib
import itertools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from rebracket.base.checks import number

STDIN = "-"
STDLIB = "stdlib"
STDLIB_WITH_TESTS = "stdlib+tests"
INSTALLED = frozenset({"site-packages", "dist-packages"})
TESTS = frozenset({"test", "tests", "idle_test"})
# Longest first: the mark of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


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


@final
@dataclass(frozen=True)
class Found:
    """A file to read, or standard input.

    Args:
        name: of its document.
        load: reads it.
        named: whether the user named this very file; one found in a folder is left out if it is binary.
    """

    name: str
    load: Callable[[], bytes]
    named: bool


def read(sources: Sequence[str], separator: str = "") -> tuple[Document, ...]:
    """Reads the documents of all sources, sorted by name, without empty ones and exact repeats.

    The encoding is that of the byte-order mark, else UTF-8 if the bytes are valid, else Latin-1. In folders and globs,
    hidden files and files with NUL bytes are left out.

    Args:
        sources: files, folders (all files below), globs (`**` goes deep), "-" (standard input), "stdlib" (the .py
            files of the running Python's standard library without its tests) or "stdlib+tests".
        separator: text between the documents of a file; "" makes each file one document.

    Raises:
        FileNotFoundError: a file or folder is not there, or nothing matches a glob.
        ValueError: no source given, or none holds any text.

    Example:
        >>> documents = read(["stdlib"])
        >>> documents[0].name
        'stdlib/__future__.py'
    """
    if not sources:
        raise ValueError("text must name at least one source: a file, folder, glob, '-' or 'stdlib'")
    found = sorted(itertools.chain.from_iterable(map(find, sources)), key=lambda one: one.name)
    documents = tuple(distinct(part for one in found for part in parts(one, separator)))
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


def find(source: str) -> list[Found]:
    """The files that a source names."""
    if source == STDIN:
        return [Found(STDIN, sys.stdin.buffer.read, named=True)]
    if source in (STDLIB, STDLIB_WITH_TESTS):
        return stdlib(without=frozenset() if source == STDLIB_WITH_TESTS else TESTS)
    path = Path(source).expanduser()
    if path.is_dir():
        return folder(path)
    if path.is_file():
        return [Found(path.as_posix(), path.read_bytes, named=True)]
    return matching(source)


def stdlib(without: frozenset[str]) -> list[Found]:
    root = Path(sysconfig.get_path("stdlib"))
    unwanted = INSTALLED | without
    inside = [(path, path.relative_to(root)) for path in visible(root) if path.suffix == ".py"]
    return [
        Found(f"{STDLIB}/{relative.as_posix()}", path.read_bytes, named=False)
        for path, relative in inside
        if unwanted.isdisjoint(relative.parts[:-1])
    ]


def folder(root: Path) -> list[Found]:
    named = root.resolve().name
    return [
        Found(f"{named}/{path.relative_to(root).as_posix()}", path.read_bytes, named=False) for path in visible(root)
    ]


def matching(pattern: str) -> list[Found]:
    paths = [Path(path) for path in glob.glob(str(Path(pattern).expanduser()), recursive=True)]  # noqa: PTH207
    files = [path for path in paths if path.is_file()]
    if not files:
        raise FileNotFoundError(f"no text at {pattern}: no file, folder or glob match of that name")
    return [Found(path.as_posix(), path.read_bytes, named=False) for path in files]


def visible(root: Path) -> Iterator[Path]:
    """Files at any depth, none of them hidden or in a hidden folder."""
    for path in root.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def parts(found: Found, separator: str) -> Iterator[Document]:
    data = found.load()
    if not found.named and is_binary(data):
        return
    text = decode(data)
    pieces = text.split(separator) if separator else [text]
    for place, piece in enumerate(pieces):
        if piece.strip():
            yield Document(f"{found.name}#{place}" if len(pieces) > 1 else found.name, piece)


def is_binary(data: bytes) -> bool:
    return b"\0" in data and not data.startswith(tuple(mark for mark, _ in BYTE_ORDER_MARKS))


def decode(data: bytes) -> str:
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


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
