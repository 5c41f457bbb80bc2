"""Programs: a whole model as one native call over rows of many texts."""

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.program import layout
from rebracket.backends.cpu.program.compile import Compiler, Weights
from rebracket.backends.cpu.program.layout import ProgramCall
from rebracket.backends.cpu.program.slots import Slots, Snapshot
from rebracket.base.checks import one_of, whole
from rebracket.base.random import WORD
from rebracket.ops.program import Graph

__all__ = ["Choice", "Outcome", "Program", "Segment", "Snapshot"]

Logits = Literal["none", "last", "all"]
WANTED: dict[Logits, int] = {"none": 0, "last": 1, "all": 2}
SEGMENT = struct.Struct("=4q2i2d3q2Qq2i")
OUTCOME = struct.Struct(f"={SEGMENT.size - 16}xq2i")
NO_CHOICE = (0, 0.0, 1.0, 0, 0, -1, 0, 0, 0, 0, 0)


@final
class Choice(NamedTuple):
    """How the next token of a text is chosen, as `lm.sampling.Sampler` does.

    Args:
        temperature: >= 0; 0 takes the likeliest token.
        top_k: tokens to choose among, >= 1; 0 for all.
        top_p: share of the probability to choose among, in (0, 1].
        seed: of the text's random numbers.
        drawn: random numbers that it has used.
        limit: only ids below it are chosen; None for all.
        stop: an id that ends the text; None for none.

    Example:
        >>> Choice(temperature=0).top_p
        1.0
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    drawn: int = 0
    limit: int | None = None
    stop: int | None = None


@final
class Segment(NamedTuple):
    """The next tokens of one text.

    Args:
        slot: the text's.
        tokens: ids, at least one.
        logits: of which rows they are returned; "last" are those after the last token that is not drafted, and after
            every drafted one.
        choice: how a token is chosen after the last one; None chooses none.
        drafted: how many of the last tokens are guesses. They are read as if they had been chosen; where one is not
            the token that is chosen in its place, it and those after it are as if they had never been read.

    Example:
        >>> Segment(0, [5, 3]).logits
        'none'
    """

    slot: int
    tokens: Sequence[int]
    logits: Logits = "none"
    choice: Choice | None = None
    drafted: int = 0


@final
class Outcome(NamedTuple):
    """What became of a segment.

    Args:
        tokens: those chosen, one more than drafts were accepted; empty without a choice.
        accepted: how many of the segment's tokens its slot has read.
        ended: whether the last token chosen is the one that ends the text.
        damaged: whether there was no token to choose because a logit is NaN or infinite.
        logits: those asked for, [rows,vocab].

    Example:
        >>> Outcome([3], 1, False, False, None).tokens
        [3]
    """

    tokens: list[int]
    accepted: int
    ended: bool
    damaged: bool
    logits: Tensor | None


@final
class Program:
    """A model prepared for calls, with the slots of its texts.

    A token's logits, and what its slot holds after it, are a pure function of weights, format and the text's tokens:
    the same bits whatever else a call holds, however a text is cut into calls, on any number of threads, in any slot,
    with drafts or without.

    Args:
        compiled: the model's operations.
        slots: what texts keep.
        drafts: most drafted tokens of a call.
        threads: that a call uses.

    Example:
        >>> import torch
        >>> from rebracket.ops.program import Builder
        >>> build = Builder()
        >>> x = build.embed(torch.eye(5))
        >>> graph = Graph(tuple(build.operations), (), x, tuple(build.widths), (), ())
        >>> program = Program.prepare(graph)
        >>> slot = program.open()
        >>> [outcome] = program.run([Segment(slot, [2, 4], choice=Choice(temperature=0))])
        >>> outcome.tokens, program.position(slot)
        ([4], 2)
    """

    def __init__(self, compiled: Compiler, slots: Slots, drafts: int, threads: int) -> None:
        self.compiled, self.slots = compiled, slots
        self.digest = slots.program
        self.kernel = library.kernel("program_run", ProgramCall)
        self.lock = threading.Lock()
        rows = compiled.rows
        self.positions, self.wanted, self.owners = (torch.zeros(rows, dtype=torch.int64) for _ in range(3))
        self.chosen = (ctypes.c_int64 * rows)()
        self.segments = (layout.Segment * rows)()
        self.records = library.empty(max(drafts, 1), compiled.record_size)
        self.scratch_size = -(-compiled.scratch_size // 16) * 16
        self.scratch = library.empty(threads, self.scratch_size)
        self.call = self.described(drafts, threads)
        self.address = ctypes.addressof(self.call)
        begin = (compiled.logits.data - compiled.workspace.data_ptr()) // 4
        shape, strides = (rows, compiled.logits.width), (compiled.logits.stride, 1)
        self.logits = torch.as_strided(compiled.workspace, shape, strides, begin)

    @classmethod
    def prepare(
        cls,
        graph: Graph,
        *,
        weights: Weights = "float32",
        slots: int = 1,
        rows: int = 64,
        pages: int = 0,
        drafts: int = 0,
        threads: int | None = None,
    ) -> Program:
        """Packs the weights of a model and takes all memory that its calls need.

        Args:
            graph: a lowered model.
            weights: "float32"; "bfloat16", with float32 arithmetic; or "int8", one scale an output, with inputs rounded
                to int8 and exact sums.
            slots: most texts at a time, >= 1.
            rows: most rows of a call, >= 1.
            pages: of 64 tokens each, for all texts together; needed by softmax layers alone.
            drafts: most drafted tokens of a call.
            threads: of a call; those of torch by default.

        Raises:
            ValueError: If a number is out of range, or this machine cannot run the format.

        Cost: the weights are copied once.
        """
        one_of("weights", weights, ("float32", "bfloat16", "int8"))
        for name, value, least in (("slots", slots, 1), ("rows", rows, 1), ("drafts", drafts, 0)):
            whole(name, value, least)
        whole("pages", pages, 1 if graph.paged else 0)
        threads = torch.get_num_threads() if threads is None else threads
        whole("threads", threads, 1, ProgramCall.MOST_THREADS)
        if weights == "int8" and library.load().isa == "baseline":
            raise ValueError("weights='int8' needs AVX2, which this machine lacks or REBRACKET_ISA leaves out")
        compiled = Compiler(graph, weights, rows, pages * ProgramCall.PAGE_TOKENS)
        digest = compiled.memory.digest.hexdigest()
        held = Slots(graph, slots, pages, compiled.page_size, digest, compiled.paged)
        return cls(compiled, held, drafts, threads)

    def described(self, drafts: int, threads: int) -> ProgramCall:
        """The structure of a call; `run` fills in what changes."""
        compiled, slots = self.compiled, self.slots
        paged = bool(slots.graph.paged)
        return ProgramCall(
            body=compiled.body,
            head=compiled.head,
            bodies=len(compiled.body),
            heads=len(compiled.head),
            most_rows=compiled.rows,
            drafts=drafts,
            threads=threads,
            vocab=compiled.vocab,
            logits=compiled.logits,
            segment=self.segments,
            positions=self.positions.data_ptr(),
            wanted=self.wanted.data_ptr(),
            chosen=ctypes.addressof(self.chosen),
            owner=self.owners.data_ptr(),
            slots=slots.numbers.data_ptr(),
            slot_count=len(slots.seen),
            slot_stride=slots.numbers.shape[1],
            seen=slots.seen.ctypes.data,
            pages=slots.pages.pool.data_ptr(),
            page_count=slots.pages.count,
            page_size=compiled.page_size if paged else 0,
            most_pages=slots.pages.tables.shape[1],
            window=slots.window or 0,
            tables=slots.pages.tables.ctypes.data,
            records=self.records.data_ptr(),
            record_size=compiled.record_size,
            scratch=self.scratch.data_ptr(),
            scratch_size=self.scratch_size,
        )

    def run(self, segments: Sequence[Segment]) -> list[Outcome]:
        """Reads the next tokens of texts, all in one native call.

        Args:
            segments: at most one a slot; their tokens are at most `rows` together.

        Returns:
            What became of each.

        Raises:
            ValueError: If a slot is closed, a token unknown, a prompt empty, or room is lacking; nothing has been
                read then.
            TypeError: If what should be a whole number is not.

        Cost: the model's products, once for all rows together; about 15 microseconds and one a row beside them.
        """
        with self.lock:
            tokens = self.fill(segments)
            self.kernel(self.address)
            del tokens
            return self.outcomes(segments)

    def fill(self, segments: Sequence[Segment]) -> array[int]:
        """Writes the segments where the kernel reads them; the tokens must be kept until it is done."""
        if len(segments) > self.compiled.rows:
            raise ValueError(f"a call takes at most {self.compiled.rows} segments, got {len(segments)}")
        tokens, first = array("q"), 0
        for n, (slot, ids, logits, choice, drafted) in enumerate(segments):
            tokens.extend(ids)
            count = len(tokens) - first
            try:
                how = NO_CHOICE if choice is None else self.numbers_of(choice)
                SEGMENT.pack_into(self.segments, n * SEGMENT.size, slot, first, count, drafted, WANTED[logits], *how)
            except KeyError:
                one_of("logits", logits, tuple(WANTED))
            except struct.error as error:
                raise TypeError(f"segment {n} must hold whole numbers, got {slot}, {drafted} and {choice}") from error
            first += count
        if self.slots.graph.paged:
            self.reserve(segments)
        call = self.call
        call.segments, call.rows, call.tokens = len(segments), first, tokens.buffer_info()[0]
        return tokens

    def numbers_of(self, choice: Choice) -> tuple[float, ...]:
        """A choice as the rest of a segment."""
        temperature, top_k, top_p, seed, drawn, limit, stop = choice
        limit = self.compiled.logits.width if limit is None else limit
        return 1, temperature, top_p, top_k, limit, -1 if stop is None else stop, seed & WORD, drawn, 0, 0, 0

    def reserve(self, segments: Sequence[Segment]) -> None:
        """Pages for softmax layers."""
        for segment in segments:
            self.slots.position(segment.slot)
        self.slots.reserve([(segment.slot, len(segment.tokens)) for segment in segments])

    def outcomes(self, segments: Sequence[Segment]) -> list[Outcome]:
        """What the kernel wrote."""
        wanted = any(segment.logits != "none" for segment in segments)
        logits = self.logits[: self.call.wanted_count].clone() if wanted else None
        chosen, told = self.chosen[: self.call.rows], memoryview(self.segments).cast("B")
        found, first, row = [], 0, 0
        outcomes = OUTCOME.iter_unpack(told[: len(segments) * SEGMENT.size])
        for (_, ids, asked, choice, drafted), (accepted, ended, damaged) in zip(segments, outcomes, strict=True):
            last = first + len(ids) - drafted - 1
            tokens = [] if choice is None else chosen[last : first + accepted - damaged]
            mine = None
            if logits is not None:
                kept = len(ids) if asked == "all" else 1 + drafted if asked == "last" or choice is not None else 0
                mine, row = None if asked == "none" else logits[row : row + kept], row + kept
            found.append(Outcome(tokens, accepted, bool(ended), bool(damaged), mine))
            first += len(ids)
        return found

    def open(self) -> int:
        """A new slot, of a text without tokens.

        Raises:
            ValueError: If all slots are open.
        """
        return self.slots.open()

    def close(self, slot: int) -> None:
        """Ends a text; its slot can be used again."""
        self.slots.close(slot)

    def fork(self, slot: int) -> int:
        """A new slot with all that another holds."""
        return self.slots.fork(slot)

    def snapshot(self, slot: int) -> Snapshot:
        """What a slot holds now, to `restore` it."""
        return self.slots.snapshot(slot)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Puts a slot where a snapshot was taken, its own or another's.

        Raises:
            ValueError: If the snapshot is of another program.
        """
        self.slots.restore(slot, snapshot)

    def position(self, slot: int) -> int:
        """Tokens that a slot has read."""
        return self.slots.position(slot)

    def read(self, slot: int) -> dict[str, Tensor]:
        """What a slot holds as tensors of one row, by their names in a `ModelCache`; `position` is not among them."""
        return self.slots.read(slot)

    def write(self, slot: int, tensors: Mapping[str, Tensor], position: int) -> None:
        """Puts a slot into a state that `read` gave, at its position.

        Raises:
            ValueError: If a tensor is missing or misshapen; nothing is written then.
        """
        self.slots.write(slot, tensors, position)
