"""Bytes as text: UTF-8 unless they say otherwise, with what could not be read counted."""

import codecs
import re
import unicodedata
from dataclasses import dataclass
from typing import final

AUTO = "auto"
LOST = "\ufffd"
"""What stands in a text for bytes that are none of its encoding."""
# Longest first: the mark of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
# Characters that no text holds: control, private, unassigned; so many others in a row are no accident.
UNWRITTEN, SURE = frozenset({"Cc", "Cn", "Co", "Cs"}), 64
# How files begin that are often taken for text.
KINDS = (
    (rb"PK[\x01-\x08]{2}", "a zip archive"),
    (rb"\x1f\x8b", "compressed by gzip"),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2"),
    (rb"\xfd7zXZ\0", "compressed by xz"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (rb"Rar!\x1a\x07", "a rar archive"),
    (rb"%PDF-", "a PDF"),
)
SAMPLE = 1 << 16
# More lost characters than these are no damage: the text is in another encoding.
FEW, ONE_IN = 8, 100


@final
class NotTextError(ValueError):
    """Bytes that are no text, or text in an encoding that must be named.

    Args:
        reason: what they are, after "files that".
        advice: what to do about it.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason.removeprefix('are ')}; {advice}")
        self.reason = reason


@final
@dataclass(frozen=True)
class Decoded:
    r"""A text and how it was read.

    Args:
        text: without its byte-order mark; bytes that are none of the encoding are U+FFFD.
        encoding: that was used.
        lost: how many of these characters were put in.

    Example:
        >>> decode(b"caf\xc3\xa9 \xff")
        Decoded(text='café \ufffd', encoding='utf-8', lost=1)
    """

    text: str
    encoding: str
    lost: int


def decode(data: bytes, encoding: str = AUTO, *, zeros: bool = True) -> Decoded:
    """The text in bytes.

    Args:
        data: all of a file.
        encoding: one that Python knows. With "auto", that of the byte-order mark; UTF-16 or UTF-32 if the zeros lie as
            they do there; else UTF-8.
        zeros: whether to look for such zeros; without that, a text with a zero byte and no mark is binary.

    Raises:
        NotTextError: archives, binary data, and with "auto" more than 8 bad places that are also more than 1 in 100
            characters.
        ValueError: an encoding that Python does not know.
    """
    if encoding != AUTO:
        return replacing_lost(data, codec(encoding))
    refuse_kinds(data)
    marked = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    wide = wide_encoding(data) if zeros and b"\0" in data and marked is None else None
    found = replacing_lost(data, marked or wide or "utf-8")
    if marked is None and wide is None and b"\0" in data:
        raise NotTextError("are binary", "if it is text, name its encoding, such as utf-16-le")
    if found.lost > max(FEW, len(found.text) // ONE_IN):
        raise NotTextError(f"are not {shown(found.encoding)}", "name its encoding, such as latin-1")
    return found


def codec(encoding: str) -> str:
    """The name of an encoding that is known and whose mark, if there is one, is no text."""
    try:
        name = codecs.lookup(encoding).name
        b"a".decode(name, "ignore")  # raises for codecs that give no text
    except LookupError as error:
        raise ValueError(
            f"encoding must be auto or one that Python knows, such as latin-1, got {encoding!r}"
        ) from error
    return "utf-8-sig" if name == "utf-8" else name


def shown(encoding: str) -> str:
    """The name of an encoding as people write it."""
    return encoding.removesuffix("-sig").upper()


def replacing_lost(data: bytes, encoding: str) -> Decoded:
    name = encoding.removesuffix("-sig")
    try:
        return Decoded(data.decode(encoding), name, 0)
    except UnicodeDecodeError:
        text = data.decode(encoding, "replace")
        return Decoded(text, name, text.count(LOST) - data.decode(encoding, "ignore").count(LOST))


def refuse_kinds(data: bytes) -> None:
    for pattern, kind in KINDS:
        if re.match(pattern, data):
            raise NotTextError(f"are {kind}", "unpack it first")


def wide_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: the one in which the bytes are clean text, and most of it Latin."""
    shares = {name: latin_share(data, name) for name in WIDE}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= 0 else None


def latin_share(data: bytes, encoding: str) -> float:
    """The share of Latin characters at the beginning of a text; -1 if it is no text, or too short to be sure."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data[:SAMPLE])
    except UnicodeDecodeError:
        return -1
    clean = all(char in "\t\n\r\f" or unicodedata.category(char) not in UNWRITTEN for char in text)
    share = sum(char < "\u0100" for char in text) / max(len(text), 1)
    return share if clean and text and (share >= 0.5 or len(text) >= SURE) else -1
