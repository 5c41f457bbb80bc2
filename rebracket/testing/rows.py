"""What a law is asked about: a row names sample, mode, chunk and backend; an operator is what answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import final

import torch

from rebracket.ops.attention import linear_attention, step
from rebracket.ops.backend import INSTALLED
from rebracket.ops.call import Recurrence
from rebracket.ops.checks import Mode
from rebracket.ops.lowering import make_call
from rebracket.ops.plan import in_mode
from rebracket.ops.state import Output
from rebracket.testing.samples import DECAYS, SHAPES, Case, Sample, draw, prototype, write_names


@final
@dataclass(frozen=True)
class Row:
    """One setting of every axis."""

    case: Case
    mode: Mode = "chunk"
    chunk: int | None = 16
    backend: str = "reference"

    def __str__(self) -> str:
        chunk = "" if self.chunk is None else str(self.chunk)
        return f"{self.backend}-{self.mode}{chunk}-{self.case}"

    @property
    def dtype(self) -> torch.dtype:
        return self.case.dtype


MODES: tuple[tuple[Mode, int | None], ...] = (("parallel", None), ("chunk", 16), ("recurrent", None))
"""The ways to compute the same: C = T, C, C = 1."""
LOW: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True)
class Operator:
    """The two entries of the operator as laws call them; a planted fault is another pair."""

    attend: Callable[[Sample, Row], Output]
    step: Callable[[Sample, Row, bool], Output]


def attend(sample: Sample, row: Row) -> Output:
    """`linear_attention` on a sample, in the row's mode, chunk and backend."""
    return linear_attention(**vars(sample), mode=row.mode, chunk=row.chunk, backend=row.backend)


def step_once(sample: Sample, row: Row, inplace: bool) -> Output:
    """`step` on a sample of one token."""
    assert sample.state is not None
    one = sample.timed(lambda x, entries: x.squeeze(1) if entries == 1 else x)
    out, state = step(
        one.q,
        one.k,
        one.v,
        state=sample.state,
        log_decay=one.log_decay,
        write=one.write,
        bonus=one.bonus,
        normalize=one.normalize,
        scale=one.scale,
        inplace=inplace,
        backend=row.backend,
    )
    return Output(out.unsqueeze(1), state)


SOUND = Operator(attend, step_once)
"""The operator itself."""


@final
@dataclass(frozen=True)
class Law:
    """A statement about the operator: a check that raises an AssertionError with numbers, and its rows."""

    check: Callable[[Operator, Row], None]
    rows: Callable[[], Iterable[Row]]
    adapts: bool = True
    """Whether a backend may be asked in float32 where it has no float64, and in its own chunk where it has no other."""

    @property
    def name(self) -> str:
        return self.check.__name__

    def over(self, backend: str, write: str | None = None) -> Iterator[Row]:
        """The rows of this law that a backend covers: all, or those of one write rule."""
        seen: set[Row] = set()
        for row in self.rows():
            if write in (None, row.case.write):
                asked = replace(row, backend=backend)
                found = next((x for x in (adapted(asked) if self.adapts else [asked]) if covered(x)), None)
                if found is not None and found not in seen:
                    seen.add(found)
                    yield found


def adapted(row: Row) -> Iterator[Row]:
    """A row, and what comes nearest to it on a backend that does less."""
    short = replace(row, case=replace(row.case, dtype=torch.float32)) if row.dtype == torch.float64 else row
    for x in (row, short):
        yield from (x, replace(x, chunk=None))


def covered(row: Row) -> bool:
    """Whether the row's backend computes it."""
    call = in_mode(recurrence(draw(row.case)), row.mode, row.chunk)
    return INSTALLED[row.backend].covers(call) is None


def recurrence(sample: Sample) -> Recurrence:
    """A sample as the call of the recurrence."""
    return make_call(**vars(sample))


def cases(dtype: torch.dtype = torch.float64, shapes: Iterable[str] = SHAPES) -> Iterator[Case]:
    """Every write rule with every decay in every shape; additive rules also with a normalizer and with a bonus."""
    for write in write_names():
        for decay in DECAYS:
            for shape in shapes:
                plain = Case(write, decay, shape, dtype)
                yield plain
                if not prototype(write).reads_back:
                    yield replace(plain, normalize=True)
                    yield replace(plain, bonus=True)


def in_every_mode(found: Iterable[Case], chunk: int = 16) -> Iterator[Row]:
    """Rows for cases, in each of the modes; in chunks of this many tokens."""
    for case in found:
        yield from (Row(case, mode, size and chunk) for mode, size in MODES)


def few(dtype: torch.dtype = torch.float64, shape: str = "plain") -> list[Case]:
    """Every write rule once and every decay once, for laws that need no more."""
    rules = [Case(write, "token", shape, dtype) for write in write_names()]
    decays = [Case("delta", decay, shape, dtype) for decay in DECAYS if decay != "token"]
    bonus = Case("additive", "channel", shape, dtype, bonus=True)
    return [*rules, *decays, bonus, Case("additive", "head", shape, dtype, normalize=True)]
