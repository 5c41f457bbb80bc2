"""Generation: prompts are read in pieces, then every text gains a token a step, from a cache of fixed size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import torch

from rebracket.base.files import read_tensors, write_tensors
from rebracket.base.random import uniform
from rebracket.lm.cache import ModelCache
from rebracket.lm.checkpoints import model_id
from rebracket.lm.model import LanguageModel
from rebracket.lm.prefill import PIECE, prefill, silent
from rebracket.lm.sampling import Sampler
from rebracket.lm.stopping import cut
from rebracket.lm.tokenizer import Tokenizer

KIND, VERSION = "rebracket.texts", 1


@final
@dataclass(frozen=True)
class Settings:
    """How texts are continued.

    Args:
        sampler: how tokens are chosen.
        stop: strings that end a text and are not part of it; one string is one of them, not its letters.
        endless: never sample the end of the document.

    Raises:
        ValueError: If a stop string is empty.

    Example:
        >>> Settings(stop=("END",)).sampler.temperature
        0.8
    """

    sampler: Sampler = field(default_factory=Sampler)
    stop: tuple[str, ...] = ()
    endless: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if not all(self.stop):
            raise ValueError("stop must hold strings of at least one character, got an empty one")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings of which `asdict` made the table."""
        return cls(Sampler(**values["sampler"]), tuple(values["stop"]), values["endless"])


@final
@dataclass(frozen=True)
class Row:
    """The state of one text between two tokens, its cache aside.

    Args:
        seed: of its random numbers.
        last: the newest token, given or sampled; the next step reads it.
        drawn: random numbers used.
        read: tokens that the cache has read.
        unfinished: bytes of an incomplete character.
        held: text not shown yet, because it may be the beginning of a stop string.
        ended: whether the text has ended.

    Example:
        >>> row = Row(seed=3, last=256, unfinished=bytes([195]))
        >>> Row.from_dict(row.to_dict()) == row
        True
    """

    seed: int
    last: int
    drawn: int = 0
    read: int = 0
    unfinished: bytes = b""
    held: str = ""
    ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types."""
        return {**asdict(self), "unfinished": self.unfinished.hex()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The row of which `to_dict` made the table."""
        return cls(**{**values, "unfinished": bytes.fromhex(values["unfinished"])})


@final
class Piece(NamedTuple):
    """What one token adds to one text.

    Args:
        row: which text.
        token: its id.
        text: the characters that can now be shown; often none, sometimes more than the token's own.
        ended: whether the text ends with it.

    Example:
        >>> Piece(row=0, token=104, text="h", ended=False).text
        'h'
    """

    row: int
    token: int
    text: str
    ended: bool


@final
class Generation:
    """N texts that a model continues as a batch.

    Between two tokens the whole state of a text is its cache and a `Row`, and `save` writes both. A text that is saved
    and resumed in another process is bit for bit the same as one that was never interrupted.

    Args:
        model: the writer; its weights must not change meanwhile.
        tokenizer: its tokenizer.
        settings: how texts are continued.
        rows: the state of each text.
        cache: of all texts, N rows; it is written over.

    Cost: memory of the cache, whatever the length of the texts; one step of the model a token.

    Example:
        >>> from rebracket.lm.config import Config
        >>> layers = [{"mixer": "gated_deltanet", "heads": 2}]
        >>> model = LanguageModel(Config.from_dict({"vocab_size": 257, "d_model": 8, "context": 6, "layers": layers}))
        >>> texts = Generation.begin(model, Tokenizer.bytes(), 2)
        >>> _ = texts.read(["def ", "class Tree"])
        >>> [len(pieces) for pieces in texts.grow(3)]
        [2, 2, 2]
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, settings: Settings, rows: Sequence[Row], cache: ModelCache
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self._rows = list(rows)
        self._set_cache(cache)

    @classmethod
    def begin(
        cls, model: LanguageModel, tokenizer: Tokenizer, rows: int = 1, settings: Settings = Settings()
    ) -> Generation:
        """New texts, which begin with the document mark; row n has seed + n."""
        fresh = [Row(settings.sampler.seed + n, tokenizer.document) for n in range(rows)]
        return cls(model, tokenizer, settings, fresh, model.empty_cache(rows))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The state of each text."""
        return tuple(self._rows)

    @property
    def cache(self) -> ModelCache:
        """The cache of all texts, N rows; the next step may write over it."""
        if not self._resting:
            return self._cache
        growing = {n: self._cache.select([place]) for place, n in enumerate(self._growing)}
        each = growing | self._resting
        return ModelCache.join([each[n] for n in range(len(self._rows))])

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return self._cache.nbytes + sum(cache.nbytes for cache in self._resting.values())

    def fork(self, rows: int) -> Generation:
        """Copies of the only text here, to be continued apart; row n has its seed + n."""
        if len(self._rows) != 1:
            raise ValueError(f"only a single text can be forked, got {len(self._rows)}")
        (row,) = self._rows
        forked = [replace(row, seed=row.seed + n) for n in range(rows)]
        return Generation(self.model, self.tokenizer, self.settings, forked, self.cache.select([0] * rows))

    def with_settings(self, settings: Settings) -> Generation:
        """The same texts with other settings; a new seed restarts the random numbers."""
        rows, seed = self._rows, settings.sampler.seed
        if seed != self.settings.sampler.seed:
            rows = [replace(row, seed=seed + n, drawn=0) for n, row in enumerate(rows)]
        return Generation(self.model, self.tokenizer, settings, rows, self.cache.fork())

    def read(
        self, prompts: Sequence[str], *, piece: int = PIECE, report: Callable[[int, int], None] = silent
    ) -> list[str]:
        """Appends a prompt to each text and reads it. A text that had ended continues.

        Args:
            prompts: N texts; "" leaves a text as it is.
            piece: most tokens read at a time, >= 1.
            report: called after each piece with the number of tokens read and of all.

        Returns:
            For each text, the generated characters that were still held back before the prompt.

        Raises:
            ValueError: If there is not one prompt a text.
        """
        if len(prompts) != len(self._rows):
            raise ValueError(f"prompts must be one a text, {len(self._rows)}, got {len(prompts)}")
        held = [self._release(n) if prompt else "" for n, prompt in enumerate(prompts)]
        coded = self.tokenizer.encode_all(prompts)
        texts = [[row.last, *ids][: len(ids)] for row, ids in zip(self._rows, coded, strict=True)]
        cache = prefill(self.model, texts, self.cache, piece=piece, report=report)
        self._rows = [
            replace(row, last=ids[-1], read=row.read + len(ids), ended=False) if ids else row
            for row, ids in zip(self._rows, coded, strict=True)
        ]
        self._set_cache(cache)
        return held

    def grow(self, tokens: int) -> Iterator[list[Piece]]:
        """Continues every text that has not ended.

        Args:
            tokens: most tokens for each.

        Yields:
            For each step, what it adds to each text that had not ended.
        """
        for _ in range(tokens):
            if not self._growing:
                return
            pieces = [self._append(n, token) for n, token in zip(self._growing, self._step(), strict=True)]
            self._set_ended_aside()
            yield pieces

    def rest(self) -> list[str]:
        """What is still held back of each text, to show it when the text is not continued."""
        return [self._release(n) for n in range(len(self._rows))]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes all that is needed to resume to one file, whole or not at all.

        Raises:
            FileNotFoundError: If the folder does not exist.
        """
        about = {
            "model": model_id(self.model),
            "tokenizer": self.tokenizer.digest,
            "settings": json.dumps(asdict(self.settings)),
            "rows": json.dumps([row.to_dict() for row in self._rows]),
        }
        write_tensors(path, self.cache.tensors(), KIND, VERSION, about)

    @classmethod
    def load(cls, path: str | PathLike[str], model: LanguageModel, tokenizer: Tokenizer) -> Generation:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged or foreign, or was made with another model or tokenizer.
        """
        tensors, about = read_tensors(path, KIND, VERSION)
        refuse_other(path, about, {"model": model_id(model), "tokenizer": tokenizer.digest})
        try:
            settings = Settings.from_dict(json.loads(about["settings"]))
            rows = [Row.from_dict(row) for row in json.loads(about["rows"])]
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: damaged: {error}") from error
        # Copies, because tensors in the memory of a file may not be aligned as torch's own are, and the alignment may
        # change how sums are rounded.
        copies = {name: x.clone() for name, x in tensors.items()}
        return cls(model, tokenizer, settings, rows, ModelCache.from_tensors(copies).to(model.embed.weight.device))

    def _set_cache(self, cache: ModelCache) -> None:
        """Starts from a cache of all rows."""
        self._cache = cache
        self._growing = list(range(len(self._rows)))
        self._resting: dict[int, ModelCache] = {}
        self._set_ended_aside()

    def _set_ended_aside(self) -> None:
        """Takes the texts that have ended out of the batch."""
        ended = [place for place, n in enumerate(self._growing) if self._rows[n].ended]
        if not ended:
            return
        self._resting |= {self._growing[place]: self._cache.select([place]) for place in ended}
        stay = [place for place in range(len(self._growing)) if place not in ended]
        self._cache = self._cache.select(torch.tensor(stay, dtype=torch.int64))
        self._growing = [self._growing[place] for place in stay]

    @torch.inference_mode()
    def _step(self) -> list[int]:
        """Samples the next token of every growing text."""
        rows = [self._rows[n] for n in self._growing]
        tokens = torch.tensor([row.last for row in rows], device=self.model.embed.weight.device)
        logits, self._cache = self.model.step(tokens, self._cache, inplace=True)
        # The document mark is the tokenizer's last id; a model may have more ids, which mean nothing.
        count = self.tokenizer.document if self.settings.endless else self.tokenizer.vocab_size
        sampler = self.settings.sampler
        numbers = [uniform(row.seed, row.drawn) for row in rows] if sampler.draws else []
        return sampler.choose(logits[:, :count], numbers)

    def _append(self, n: int, token: int) -> Piece:
        """Appends a token to a text."""
        row = self._rows[n]
        row = replace(row, last=token, read=row.read + 1, drawn=row.drawn + self.settings.sampler.draws)
        if token == self.tokenizer.document:
            self._rows[n] = replace(row, ended=True)
            return Piece(n, token, self._release(n), True)
        data = row.unfinished + self.tokenizer.decode_bytes([token])
        text, used = codecs.utf_8_decode(data, "replace", False)
        shown, held, stopped = cut(row.held + text, self.settings.stop)
        self._rows[n] = replace(row, unfinished=b"" if stopped else data[used:], held=held, ended=stopped)
        return Piece(n, token, shown, stopped)

    def _release(self, n: int) -> str:
        """What was held back of a text, an incomplete character as a replacement character."""
        row = self._rows[n]
        self._rows[n] = replace(row, unfinished=b"", held="")
        return row.held + row.unfinished.decode("utf-8", "replace")


def refuse_replacing(path: str | PathLike[str]) -> None:
    """Raises if the folder of a file does not exist, or there is a file that is not one of saved texts."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: its folder does not exist; make it first")
    if path.exists():
        try:
            read_tensors(path, KIND, VERSION)
        except ValueError as error:
            raise ValueError(f"{error}; it is not replaced, give another name") from error


def refuse_other(path: str | PathLike[str], about: Mapping[str, str], here: Mapping[str, str]) -> None:
    for name, mine in here.items():
        if about.get(name) != mine:
            raise ValueError(f"{path}: state from another {name}: it was made by {about.get(name)}, this is {mine}")
