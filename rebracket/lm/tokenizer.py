"""Text to ids and back: byte-level byte-pair encoding, exact for any text and any bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rebracket.base.files import parse_json, replacing

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine
    from torch import Tensor

MARK = "<|document|>"
SMALLEST = 256 + 1
NOT_TEXT = re.compile("([\udc80-\udcff]+)")
# The words of GPT-2: letters, digits or signs with a blank before them, blanks, and a few English endings.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Merges are learned from words of at most so many characters, for each merge costs a pass over its words.
LONGEST = 128


@cache
def byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte, as in GPT-2's vocabulary: itself, or one above 255."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = ByteLevel.alphabet()
    spare = iter(sorted(symbol for symbol in alphabet if ord(symbol) > 255))
    return tuple(chr(byte) if chr(byte) in alphabet else next(spare) for byte in range(256))


@final
class Tokenizer:
    """Byte-level byte-pair encoding: ids 0 to 255 are the bytes, then one id per merge, last the document mark.

    The document mark begins every document and stands for no bytes. `encode` never returns it, whatever the text: data
    and generation put it there. `decode_bytes(encode_bytes(x)) == x` for any bytes.

    Args:
        merges: pairs of symbols (GPT-2's printable byte alphabet), in the order of merging; none gives plain bytes.

    Raises:
        ValueError: a merge of symbols that are no byte and no earlier merge.

    Cost: encoding is linear in the text for documents of ordinary words.

    Source: Sennrich et al. 2016 (byte-pair encoding); Radford et al. 2019 (over bytes).

    Example:
        >>> tokenizer = Tokenizer.bytes()
        >>> tokenizer.encode("hé")
        [104, 195, 169]
        >>> tokenizer.decode([tokenizer.document, 104, 195, 169])
        'hé'
    """

    def __init__(self, merges: Sequence[tuple[str, str]] = ()) -> None:
        self._merges = tuple((left, right) for left, right in merges)
        self._vocabulary = _vocabulary(self._merges)

    @classmethod
    def bytes(cls) -> Tokenizer:
        """The tokenizer without merges: one id per byte and the document mark, 257 ids.

        Example:
            >>> Tokenizer.bytes().vocab_size
            257
        """
        return cls()

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, progress: bool = False) -> Tokenizer:
        """Learns merges from texts: the most frequent pair inside words first, ties broken the same way every time.

        A word longer than 128 characters, as in text without blanks, is learned from in pieces of that length.

        Args:
            texts: documents; words never cross from one to the next.
            vocab_size: ids in all, 257 or more: 256 bytes, the merges, the document mark. Little text gives fewer.
            progress: draw the trainer's progress bar on the terminal.

        Raises:
            ValueError: vocab_size below 257.

        Cost: O(text) to count words, then O(words) per merge at worst; about a second per 10 MB and core.

        Example:
            >>> Tokenizer.train(["low lower lowest"], vocab_size=259).encode("low")
            [257]
        """
        if vocab_size < SMALLEST:
            raise ValueError(f"vocab_size must be >= {SMALLEST} (256 bytes and the document mark), got {vocab_size}")
        return cls(_learn(texts, vocab_size - 1, progress))

    @property
    def vocab_size(self) -> int:
        """Number of ids, the document mark included."""
        return len(self._vocabulary) + 1

    @property
    def document(self) -> int:
        """The id of the document mark: the last one; it begins every document and stands for no bytes."""
        return len(self._vocabulary)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the merges, in hex: equal for equal tokenizers."""
        return hashlib.sha256(json.dumps(self._merges).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never the document mark.

        Args:
            text: any text; bytes that are not UTF-8 may be in it in the form of Python's `surrogateescape`.

        Returns:
            One id per byte or merged group of bytes.

        Raises:
            ValueError: a lone surrogate that stands for no byte.

        Example:
            >>> Tokenizer.bytes().encode("<|doc")
            [60, 124, 100, 111, 99]
        """
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all cores.

        Args:
            texts: any texts, each as for `encode`.

        Example:
            >>> Tokenizer.bytes().encode_all(["a", ""])
            [[97], []]
        """
        coded = [_utf8(text) for text in texts]
        if not self._merges:
            return [list(data) for data in coded]
        pieces = [NOT_TEXT.split(data.decode("utf-8", "surrogateescape")) for data in coded]
        encodings = iter(self._engine.encode_batch_fast([text for parts in pieces for text in parts[::2]]))
        return [self._join(parts, encodings) for parts in pieces]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids of any bytes, UTF-8 or not.

        Example:
            >>> Tokenizer.bytes().encode_bytes(bytes([255, 0]))
            [255, 0]
        """
        return self.encode(data.decode("utf-8", "surrogateescape"))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are not UTF-8 become the replacement character.

        Args:
            ids: numbers in [0, vocab_size); document marks add nothing.

        Raises:
            ValueError: an id outside the vocabulary.

        Example:
            >>> Tokenizer.bytes().decode([104, 105])
            'hi'
        """
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        r"""The exact bytes of ids.

        Example:
            >>> Tokenizer.bytes().decode_bytes([255, 0])
            b'\xff\x00'
        """
        return b"".join(map(self._bytes_of, ids))

    def byte_lengths(self) -> Tensor:
        """How many bytes of text each id stands for, [vocab_size] int64; 0 for the document mark.

        Example:
            >>> Tokenizer.bytes().byte_lengths().sum().item()
            256
        """
        import torch

        return torch.tensor([len(piece) for piece in self._pieces], dtype=torch.int64)

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json`, the format of the `tokenizers` library, whole or not at all.

        Args:
            path: the file; replaced if it exists.
        """
        with replacing(Path(path)) as beside:
            beside.write_text(self._engine.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Reads a `tokenizer.json` that `save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged, or holds another kind of tokenizer.

        Example:
            >>> Tokenizer.load("no/such/tokenizer.json")
            Traceback (most recent call last):
            FileNotFoundError: no tokenizer at no/such/tokenizer.json
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"no tokenizer at {path}")
        vocabulary, merges = _read(Path(path))
        tokenizer = cls(merges)
        if vocabulary != tokenizer._vocabulary:
            raise ValueError(f"{path} is no byte-level tokenizer of rebracket: its ids are not bytes then merges")
        return tokenizer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._merges == other._merges

    def __hash__(self) -> int:
        return hash(self._merges)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} ids)"

    @cached_property
    def _pieces(self) -> list[bytes]:
        byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        return [bytes(byte_of[symbol] for symbol in word) for word in self._vocabulary] + [b""]

    @cached_property
    def _engine(self) -> Engine:
        return _engine(self._vocabulary, self._merges)

    def _bytes_of(self, id: int) -> bytes:
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"ids must be in [0, {self.vocab_size}), got {id}; was another tokenizer used to encode?")
        return self._pieces[id]

    def _join(self, parts: list[str], encodings: Iterator[Any]) -> list[int]:
        """The ids of parts: text at even places, bytes that are not UTF-8 at odd ones."""
        ids: list[int] = []
        for place, part in enumerate(parts):
            ids += _utf8(part) if place % 2 else next(encodings).ids
        return ids


def _vocabulary(merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    for left, right in merges:
        if left not in vocabulary or right not in vocabulary:
            raise ValueError(f"merges must join bytes or earlier merges, got {left!r} and {right!r}")
        vocabulary.setdefault(left + right, len(vocabulary))
    return vocabulary


def _engine(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> Engine:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(MARK, special=True, normalized=False)])
    engine.encode_special_tokens = True  # a mark written out in a text is text
    return engine


def _learn(texts: Iterable[str], symbols: int, progress: bool) -> list[tuple[str, str]]:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(part), "isolated") for part in (WORDS, rf"[\s\S]{{1,{LONGEST}}}")),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=symbols, min_frequency=2, show_progress=progress, initial_alphabet=list(byte_symbols())
    )
    engine.train_from_iterator((text.encode("utf-8", "replace").decode() for text in texts), trainer=trainer)
    return [(left, right) for left, right in json.loads(engine.to_str())["model"]["merges"]]


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"text must be Unicode, got a lone surrogate at position {error.start}") from error


def _read(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges in a file."""
    try:
        found = parse_json(path.read_text(encoding="utf-8-sig"))
        vocabulary, merges = dict(found["model"]["vocab"]), list(found["model"]["merges"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or no tokenizer: {error}") from error
    try:
        return vocabulary, [(str(left), str(right)) for left, right in merges]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no tokenizer of rebracket: its merges are not pairs") from error
