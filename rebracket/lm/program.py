"""A language model as one native program: which models can be one, whose weights it has, and its slots as caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from rebracket.backends.cpu import covers
from rebracket.backends.cpu.program import Choice, Outcome, Program, Segment
from rebracket.backends.cpu.program.layout import ProgramCall
from rebracket.lm.cache import ModelCache
from rebracket.lm.checkpoints import model_id
from rebracket.lm.model import LanguageModel
from rebracket.lm.past import Choosing, Past, Report
from rebracket.lm.prefill import calls
from rebracket.lm.texts import Row, Running
from rebracket.ops.program import Graph, NotLoweredError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = 256
"""Most rows of a call: enough for products at the rate of arithmetic, and few enough to stop in between."""
SPARE = 4096
"""Tokens of each text that softmax layers have room for at first; twice what there is whenever that is used up."""


@final
class Identity:
    """The weights of a model at one moment, and the model's name, which is hashed once.

    It is told by torch's counts of writes, which writes through `.data` pass by.

    Example:
        >>> from rebracket.lm.config import Config
        >>> config = Config.from_dict(
        ...     {"vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
        >>> model = LanguageModel(config)
        >>> identity = Identity(model)
        >>> model.init_weights(seed=1)
        >>> identity.check()
        Traceback (most recent call last):
        ...
        ValueError: model has other weights than it had when its program was prepared; prepare it again
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._written = model, written(model)

    @property
    def changed(self) -> bool:
        """Whether a weight was written to or replaced."""
        return written(self._model) != self._written

    def check(self) -> None:
        """Raises where a weight was written to or replaced."""
        if self.changed:
            raise ValueError("model has other weights than it had when its program was prepared; prepare it again")

    @property
    def model_id(self) -> str:
        """`model_id` of the model, hashed again only where its weights changed."""
        if self.changed:
            self.__dict__.pop("_hashed", None)
            self._written = written(self._model)
        return self._hashed

    @cached_property
    def _hashed(self) -> str:
        return model_id(self._model)


def written(model: object) -> tuple[tuple[int, int], ...]:
    """Of every weight its place in memory and how often it was written to."""
    return tuple((x.data_ptr(), -1 if x.is_inference() else x._version) for x in weights_of(model))


def weights_of(model: object) -> Iterator[Tensor]:
    """All weights and buffers; what stands in for a model, such as a script of its answers, has none."""
    return chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else iter(())


def lowered(model: LanguageModel) -> Graph:
    """The operations of a model that computes what they say, and no more.

    Raises:
        NotLoweredError: If a part has no operations, was replaced or has hooks, or a weight is not on the CPU or longer
            than float32; the message names it.

    Example:
        >>> from rebracket.lm.config import Config
        >>> config = Config.from_dict(
        ...     {"vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
        >>> lowered(LanguageModel(config).double())
        Traceback (most recent call last):
        ...
        rebracket.ops.program.NotLoweredError: embed.weight is torch.float64 on cpu; programs compute in float32 on CPUs
    """
    if not isinstance(model, LanguageModel):
        raise NotLoweredError(f"a {type(model).__name__} is no LanguageModel")
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        raise NotLoweredError("torch has forward hooks for all modules")
    for name, part in model.named_modules():
        if why := objection(part):
            raise NotLoweredError(f"{name or 'model'} ({type(part).__name__}) {why}")
    for name, x in chain(model.named_parameters(), model.named_buffers()):
        if x.device.type != "cpu" or x.dtype not in DTYPES:
            raise NotLoweredError(f"{name} is {x.dtype} on {x.device}; programs compute in float32 on CPUs")
    try:
        return model.lower()
    except AttributeError as error:  # a part of another make in the place of one that has `lower`
        raise NotLoweredError(f"a part was replaced by one without operations: {error}") from error


def objection(part: nn.Module) -> str | None:
    """Why a module computes something else than its operations, or None."""
    if part._forward_hooks or part._forward_pre_hooks:
        return "has forward hooks"
    if "forward" in vars(part):
        return "has a forward of its own"
    kinds = type(part).__mro__
    lowers, forwards = ([i for i, kind in enumerate(kinds) if name in vars(kind)] for name in ("lower", "forward"))
    if lowers and forwards and min(forwards) < min(lowers):
        return "has a forward of its own and no `lower`"
    return None


def why_not(model: LanguageModel) -> str | None:
    """Why a model runs through its modules; None where it can be a program."""
    try:
        lowered(model)
    except NotLoweredError as error:
        return str(error)
    return covers.missing()


@final
class ModelProgram:
    """A model prepared: its weights packed once, and slots for the past of so many texts.

    Args:
        model: whose weights it has.
        identity: of the weights.
        program: they, packed, and the slots.
        drafts: most drafted tokens of a text.

    Example:
        >>> from rebracket.lm.config import Config
        >>> config = Config.from_dict(
        ...     {"vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
        >>> program = ModelProgram.prepare(LanguageModel(config))
        >>> program.write(program.model.empty_cache(1), 0)
        0
        >>> [outcome] = program.program.run([Segment(0, [1, 2, 3], logits="all")])
        >>> outcome.logits.shape
        torch.Size([3, 7])
    """

    def __init__(self, model: LanguageModel, identity: Identity, program: Program) -> None:
        self.model, self.identity, self.program = model, identity, program

    @classmethod
    def prepare(cls, model: LanguageModel, running: Running = Running(), *, texts: int = 1, tokens: int = 0) -> Self:
        """Packs the weights of a model.

        Args:
            model: of which every part has operations.
            running: the format of the weights, and most drafts of a text.
            texts: slots.
            tokens: that softmax layers have room for, of all texts together.

        Raises:
            ValueError: If the model cannot be a program, or the machine cannot run the format.

        Cost: one pass over the weights, and a copy of them in that format.
        """
        graph, identity = lowered(model), Identity(model)
        if reason := covers.missing():
            raise NotLoweredError(reason)
        pages = texts + -(-tokens // ProgramCall.PAGE_TOKENS) if graph.paged else 0
        program = Program.prepare(
            graph, weights=running.weights, slots=texts, rows=ROWS, pages=pages, drafts=texts * running.drafts
        )
        return cls(model, identity, program)

    @property
    def paged(self) -> bool:
        """Whether there are softmax layers."""
        return bool(self.program.slots.graph.paged)

    def write(self, cache: ModelCache, position: int) -> int:
        """Puts a text into a new slot, whose number is returned.

        Args:
            cache: of the text, one row.
            position: tokens that it has read.
        """
        slot = self.program.open()
        self.program.write(slot, cache.tensors(), position)
        return slot

    def read(self, slot: int) -> ModelCache:
        """The cache of the text in a slot, one row."""
        held, position = self.program.read(slot), torch.tensor([self.program.position(slot)])
        names = self.model.empty_cache(1, device="meta").tensors()
        return ModelCache.from_tensors({name: held[name] if name in held else position.clone() for name in names})


@final
class Slots(Past):
    """Texts in the slots of a program: text n in slot n."""

    def __init__(self, model: LanguageModel, running: Running, cache: ModelCache, positions: Sequence[int]) -> None:
        self.model, self.running, self.texts = model, running, range(len(positions))
        self._fill([cache.select([n]) for n in self.texts], positions)

    def _fill(self, caches: Sequence[ModelCache], positions: Sequence[int]) -> None:
        """Prepares a program with room for twice what the texts hold, and puts them into its slots."""
        self.room = 2 * sum(positions) + len(positions) * SPARE
        self.program = ModelProgram.prepare(self.model, self.running, texts=len(positions), tokens=self.room)
        for cache, position in zip(caches, positions, strict=True):
            self.program.write(cache, position)

    def check(self) -> None:
        self.program.identity.check()

    @property
    def cache(self) -> ModelCache:
        return ModelCache.join([self.program.read(n) for n in self.texts])

    @property
    def nbytes(self) -> int:
        return sum(self.model.state_nbytes(self.program.program.position(n)) for n in self.texts)

    def read(self, texts: Sequence[Sequence[int]], piece: int, report: Report) -> None:
        done, told, total = 0, 0, sum(map(len, texts))
        for group in calls([len(text) for text in texts], min(piece, ROWS)):
            self._run([Segment(n, texts[n][begin:end]) for n, begin, end in group])
            done += sum(end - begin for _, begin, end in group)
            if done == total or done - told >= piece:
                report(done, total)
                told = done

    def step(
        self, rows: Mapping[int, Row], drafts: Mapping[int, Sequence[int]], choosing: Choosing
    ) -> dict[int, list[int]]:
        segments = [segment(n, row, drafts.get(n, ()), choosing) for n, row in rows.items()]
        each = ROWS // max(len(one.tokens) for one in segments)
        outcomes = [one for begin in range(0, len(segments), each) for one in self._run(segments[begin : begin + each])]
        if any(outcome.damaged for outcome in outcomes):
            raise FloatingPointError("logits hold NaN or infinity: the model's weights or the state are damaged")
        return {n: outcome.tokens for n, outcome in zip(rows, outcomes, strict=True)}

    def _run(self, segments: Sequence[Segment]) -> list[Outcome]:
        """One call, after the room of softmax layers was doubled if its tokens would not fit."""
        if self.program.paged:
            positions = [self.program.program.position(n) for n in self.texts]
            if sum(positions) + ROWS > self.room:
                self.check()
                self._fill([self.program.read(n) for n in self.texts], positions)
        return self.program.program.run(segments)


def segment(n: int, row: Row, draft: Sequence[int], choosing: Choosing) -> Segment:
    """The last token of a text and what may follow it."""
    sampler = choosing.sampler
    choice = Choice(
        sampler.temperature, sampler.top_k or 0, sampler.top_p, row.seed, row.drawn, choosing.count, choosing.stop
    )
    return Segment(n, [row.last, *draft], choice=choice, drafted=len(draft))
