"""Generation: prompts are read in pieces, then every text gains a token a step, from a cache of fixed size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import final

from rebracket.base.files import read_tensors, write_tensors
from rebracket.lm.cache import ModelCache
from rebracket.lm.drafts import Drafter
from rebracket.lm.model import LanguageModel
from rebracket.lm.past import Batch, Choosing, Past
from rebracket.lm.prefill import PIECE, silent
from rebracket.lm.program import Identity, Slots, why_not
from rebracket.lm.stopping import cut
from rebracket.lm.texts import Piece, Row, Running, Settings
from rebracket.lm.tokenizer import Tokenizer

__all__ = ["Generation", "Piece", "Row", "Running", "Settings", "refuse_replacing"]

KIND, VERSION = "rebracket.texts", 1


@final
class Generation:
    """N texts that a model continues together.

    Between two tokens the whole state of a text is its cache and a `Row`, and `save` writes both. A text that is saved
    and resumed in another process is bit for bit the same as one that was never interrupted. A model whose parts all
    have operations runs as a program; there a text does not depend on the others, on cuts or on drafts by a single bit.

    Args:
        model: the writer; its weights must not change meanwhile.
        tokenizer: its tokenizer.
        settings: how texts are continued.
        rows: the state of each text.
        cache: of all texts, N rows; it is written over.
        running: how they are computed.

    Raises:
        ValueError: If `running` asks for a program and the model cannot be one.

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
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        settings: Settings,
        rows: Sequence[Row],
        cache: ModelCache,
        running: Running = Running(),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.running = running
        self._rows = list(rows)
        self._cache = cache
        self._drafters = [Drafter(running.drafts) for _ in rows]
        self._reason = "they were asked for" if running.way == "modules" else why_not(model)
        if running.only_program and self._reason is not None:
            raise ValueError(f"a program was asked for, and the model cannot be one: {self._reason}")
        self._identity = Identity(model)
        self._past: Past | None = None

    @classmethod
    def begin(
        cls,
        model: LanguageModel,
        tokenizer: Tokenizer,
        rows: int = 1,
        settings: Settings = Settings(),
        running: Running = Running(),
    ) -> Generation:
        """New texts, which begin with the document mark; row n has seed + n."""
        fresh = [Row(settings.sampler.seed + n, tokenizer.document) for n in range(rows)]
        return cls(model, tokenizer, settings, fresh, model.empty_cache(rows), running)

    def explain(self) -> str:
        """How the texts are computed, and if not by a program, why.

        Example:
            >>> from rebracket.lm.config import Config
            >>> layers = [{"mixer": "gated_deltanet", "heads": 2}]
            >>> config = {"vocab_size": 257, "d_model": 8, "context": 6, "layers": layers}
            >>> model = LanguageModel(Config.from_dict(config)).double()
            >>> Generation.begin(model, Tokenizer.bytes()).explain()
            'the modules: embed.weight is torch.float64 on cpu; programs compute in float32 on CPUs'
        """
        if self._reason is not None:
            return f"the modules: {self._reason}"
        drafts = f", drafts of {self.running.drafts}" if self.running.drafts else ""
        return f"a program with {self.running.weights} weights{drafts}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The state of each text."""
        return tuple(self._rows)

    @property
    def cache(self) -> ModelCache:
        """The cache of all texts, N rows; the next step may write over it."""
        return self._cache if self._past is None else self._past.cache

    @property
    def nbytes(self) -> int:
        """Bytes that are kept of all texts."""
        return self._cache.nbytes if self._past is None else self._past.nbytes

    def fork(self, rows: int) -> Generation:
        """Copies of the only text here, to be continued apart; row n has its seed + n."""
        if len(self._rows) != 1:
            raise ValueError(f"only a single text can be forked, got {len(self._rows)}")
        (row,) = self._rows
        return self._copy(self.settings, [replace(row, seed=row.seed + n) for n in range(rows)], [0] * rows)

    def with_settings(self, settings: Settings) -> Generation:
        """The same texts with other settings; a new seed restarts the random numbers."""
        rows, seed = self._rows, settings.sampler.seed
        if seed != self.settings.sampler.seed:
            rows = [replace(row, seed=seed + n, drawn=0) for n, row in enumerate(rows)]
        return self._copy(settings, rows, range(len(rows)))

    def _copy(self, settings: Settings, rows: Sequence[Row], texts: Sequence[int]) -> Generation:
        """Some of the texts, to go their own way with the same weights."""
        cache = self.cache.select(list(texts))
        copy = Generation(self.model, self.tokenizer, settings, rows, cache, self.running)
        copy._identity = self._identity
        return copy

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
            ValueError: If there is not one prompt a text, or the weights of a program changed.
        """
        if len(prompts) != len(self._rows):
            raise ValueError(f"prompts must be one a text, {len(self._rows)}, got {len(prompts)}")
        held = [self._release(n) if prompt else "" for n, prompt in enumerate(prompts)]
        coded = self.tokenizer.encode_all(prompts)
        texts = [[row.last, *ids][: len(ids)] for row, ids in zip(self._rows, coded, strict=True)]
        self._opened().read(texts, piece, report)
        for drafter, ids in zip(self._drafters, coded, strict=True):
            drafter.read(ids)
        self._rows = [
            replace(row, last=ids[-1], read=row.read + len(ids), ended=False) if ids else row
            for row, ids in zip(self._rows, coded, strict=True)
        ]
        return held

    def grow(self, tokens: int) -> Iterator[list[Piece]]:
        """Continues every text that has not ended.

        Args:
            tokens: most tokens for each.

        Yields:
            For each step, what it adds to each text that had not ended: a piece, or several where drafts were right.

        Raises:
            FloatingPointError: If logits hold NaN or infinity.
            ValueError: If the weights of a program changed.
        """
        ends, past, choosing = [row.read + tokens for row in self._rows], self._opened(), self._choosing
        while growing := {n: row for n, row in enumerate(self._rows) if not row.ended and row.read < ends[n]}:
            drafts = {n: self._draft(n, ends[n] - row.read - 1, len(growing)) for n, row in growing.items()}
            found = past.step(growing, drafts, choosing)
            for n, draft in drafts.items():
                if draft:
                    self._drafters[n].learn(len(draft), len(found[n]) - 1, len(growing))
            yield [self._append(n, token) for n, ids in found.items() for token in ids]

    def _draft(self, n: int, most: int, texts: int) -> list[int]:
        """Guesses of what follows the last token of a text, one of so many, none of which ends it."""
        row, kept = self._rows[n], []
        for token in self._drafters[n].guess(texts)[:most]:
            row, _ = self._after(row, token)
            if row.ended:
                break
            kept.append(token)
        return kept

    @property
    def _choosing(self) -> Choosing:
        # The document mark is the tokenizer's last id; a model may have more ids, which mean nothing.
        document = self.tokenizer.document
        count = document if self.settings.endless else self.tokenizer.vocab_size
        return Choosing(self.settings.sampler, count, document)

    def _opened(self) -> Past:
        """The past of all texts, which is prepared when it is first needed and never used with other weights."""
        if self._past is None and self._reason is None:
            self._past = Slots(self.model, self.running, self._cache, [row.read for row in self._rows])
        elif self._past is None:
            self._past = Batch(self.model, self._cache)
        self._past.check()
        return self._past

    def rest(self) -> list[str]:
        """What is still held back of each text, to show it when the text is not continued."""
        return [self._release(n) for n in range(len(self._rows))]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes all that is needed to resume to one file, whole or not at all.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If the weights of a program changed.
        """
        if self._past is not None:
            self._past.check()
        about = {
            "model": self._identity.model_id,
            "tokenizer": self.tokenizer.digest,
            "settings": json.dumps(asdict(self.settings)),
            "rows": json.dumps([row.to_dict() for row in self._rows]),
        }
        write_tensors(path, self.cache.tensors(), KIND, VERSION, about)

    @classmethod
    def load(
        cls, path: str | PathLike[str], model: LanguageModel, tokenizer: Tokenizer, running: Running = Running()
    ) -> Generation:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged or foreign, or was made with another model or tokenizer.
        """
        tensors, about = read_tensors(path, KIND, VERSION)
        identity = Identity(model)
        refuse_other(path, about, {"model": identity.model_id, "tokenizer": tokenizer.digest})
        try:
            settings = Settings.from_dict(json.loads(about["settings"]))
            rows = [Row.from_dict(row) for row in json.loads(about["rows"])]
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: damaged: {error}") from error
        # Copies, because tensors in the memory of a file may not be aligned as torch's own are, and the alignment may
        # change how sums are rounded.
        copies = {name: x.clone() for name, x in tensors.items()}
        cache = ModelCache.from_tensors(copies).to(model.embed.weight.device)
        texts = cls(model, tokenizer, settings, rows, cache, running)
        texts._identity = identity
        return texts

    def _append(self, n: int, token: int) -> Piece:
        """Appends a token to a text."""
        self._rows[n], text = self._after(self._rows[n], token)
        self._drafters[n].read([token])
        return Piece(n, token, text, self._rows[n].ended)

    def _after(self, row: Row, token: int) -> tuple[Row, str]:
        """A text after one more token, and what can now be shown of it."""
        seed, read, drawn = row.seed, row.read + 1, row.drawn + self.settings.sampler.draws
        if token == self.tokenizer.document:
            return Row(seed, token, drawn, read, ended=True), held_back(row)
        data = row.unfinished + self.tokenizer.decode_bytes([token])
        text, used = codecs.utf_8_decode(data, "replace", False)
        shown, held, stopped = cut(row.held + text, self.settings.stop)
        return Row(seed, token, drawn, read, b"" if stopped else data[used:], held, stopped), shown

    def _release(self, n: int) -> str:
        """What was held back of a text, which is shown now."""
        row = self._rows[n]
        self._rows[n] = replace(row, unfinished=b"", held="")
        return held_back(row)


def held_back(row: Row) -> str:
    """What was held back of a text, an incomplete character as a replacement character."""
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
