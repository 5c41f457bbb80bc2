"""The race of the short convolution: width 4, SiLU and no bias, as linear-attention layers have it before attention.

Beside the installed backends stands torch, the way that models written in plain torch do it. It is a peer that always
is there, so it takes part whether or not peers were asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from rebracket.bench.cases import Mode
from rebracket.bench.clock import Pace, threads
from rebracket.bench.entrant import Attempt, require
from rebracket.bench.form import too_long
from rebracket.bench.limits import Limits
from rebracket.bench.race import Entry, checked, run, settled, timing
from rebracket.bench.torch_call import trained
from rebracket.bench.truth import Results, distance
from rebracket.ops.backend import INSTALLED
from rebracket.ops.call import Convolution
from rebracket.ops.convolution import short_convolution

NAME, TITLE = "convolution", "short convolution"
WIDTH = 4


@final
@dataclass(frozen=True)
class Shape:
    """B sequences of T tokens, D channels."""

    B: int
    T: int
    D: int

    def __str__(self) -> str:
        return f"{self.B}x{self.T}x{self.D}"

    @property
    def numbers(self) -> int:
        """Of x, and as many of y."""
        return self.B * self.T * self.D


SHAPES = (Shape(1, 4096, 1024), Shape(4, 2048, 2048), Shape(1, 4096, 8192), Shape(1, 1, 8192))
"""8192 channels are those of a Qwen3-Next layer; smaller shapes first, from which the time of larger ones follows."""
QUICK_SHAPES = (Shape(1, 256, 64), Shape(2, 512, 64), Shape(1, 1, 64))


@final
@dataclass(frozen=True)
class Case:
    """One call to be raced; a decode case is one token from a given tail."""

    shape: Shape
    mode: Mode
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{TITLE} {self.mode} {self.shape}"

    @property
    def nbytes(self) -> int:
        """What must be moved, the filters aside: x and y; backward x again, the gradient of y, and that of x."""
        return self.shape.numbers * self.dtype.itemsize * (5 if self.mode == "train" else 2)

    def least(self, limits: Limits) -> float | None:
        """The seconds that moving it takes at the rate of a copy; None in decode, whose few bytes stay in a cache."""
        return None if self.mode == "decode" else self.nbytes / limits.copy


Row = Entry[Case]


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of a case.

    Args:
        x: [B,T,D].
        filters: [D,W], the newest token's weight last.
        tail: [B,W-1,D] in decode; None in the other modes.
        weight: [B,T,D]; training differentiates sum(out * weight).
    """

    x: Tensor
    filters: Tensor
    tail: Tensor | None
    weight: Tensor

    @classmethod
    def of(cls, case: Case) -> Inputs:
        draw = torch.Generator().manual_seed(0)
        B, T, D = case.shape.B, case.shape.T, case.shape.D

        def randn(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=draw).to(case.dtype)

        tail = randn(B, WIDTH - 1, D) if case.mode == "decode" else None
        return cls(randn(B, T, D), randn(D, WIDTH), tail, randn(B, T, D))

    def double(self) -> Inputs:
        tail = None if self.tail is None else self.tail.double()
        return Inputs(self.x.double(), self.filters.double(), tail, self.weight.double())

    def leaves(self) -> Inputs:
        """The same numbers in tensors that collect gradients."""
        x, filters = (x.detach().requires_grad_() for x in (self.x, self.filters))
        return replace(self, x=x, filters=filters)


class Entrant(ABC):
    """Computes the convolution."""

    name: str
    is_peer: bool

    @abstractmethod
    def convolve(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """y [B,T,D] and the next tail [B,W-1,D]; all of it is timed."""

    def refusal(self, x: Inputs) -> str | None:
        """Why it does not cover a case, or None."""
        return None


@final
class Ours(Entrant):
    """One of the installed backends."""

    is_peer = False

    def __init__(self, backend: str) -> None:
        self.name = backend

    def convolve(self, x: Inputs) -> tuple[Tensor, Tensor]:
        return short_convolution(x.x, x.filters, tail=x.tail, activation="silu", backend=self.name)

    def refusal(self, x: Inputs) -> str | None:
        return INSTALLED[self.name].covers(Convolution(x.x, x.filters, None, x.tail, None, "silu"))


@final
class Torch(Entrant):
    """torch's conv1d with a group for each channel, and SiLU, as the models of transformers have it on a CPU.

    The call begins and ends with [B,T,D], views of which conv1d is given and gives. A sequence is padded on both sides
    and cut; one token is joined to its tail.
    """

    name = "torch conv1d"
    is_peer = True

    def convolve(self, x: Inputs) -> tuple[Tensor, Tensor]:
        T, D = x.x.shape[1:]
        seen = x.x.mT if x.tail is None else torch.cat([x.tail.mT, x.x.mT], -1)
        padding = WIDTH - 1 if x.tail is None else 0
        y = silu(conv1d(seen, x.filters[:, None], padding=padding, groups=D)[..., :T])
        return y.mT, seen[..., 1 - WIDTH :].mT


def entrants() -> tuple[Entrant, ...]:
    """Every installed backend, the best first, and torch."""
    return (*map(Ours, INSTALLED), Torch())


def prepare(entrant: Entrant, case: Case, x: Inputs) -> Attempt:
    """The call to time: the forward pass, in training with the gradients of x and of the filters."""
    refusal = entrant.refusal(x)
    require(refusal is None, refusal or "")
    if case.mode == "train":
        return Attempt(partial(train, entrant, x.leaves()), partial(trained, ["x", "filters"]))
    return Attempt(partial(torch.no_grad()(entrant.convolve), x), convolved)


def train(entrant: Entrant, x: Inputs) -> tuple[Tensor, ...]:
    y, _ = entrant.convolve(x)
    return y.detach(), *torch.autograd.grad(y, [x.x, x.filters], x.weight)


def convolved(made: object) -> Results:
    assert isinstance(made, tuple)
    return dict(zip(("out", "tail"), made, strict=True))


@final
class Ground:
    """The inputs of a case and its exact results, which all entrants share."""

    def __init__(self, case: Case) -> None:
        self.x = Inputs.of(case)
        attempt = prepare(Ours("reference"), case, self.x.double())
        self._exact = attempt.results(attempt.run())

    def errors(self, found: Results) -> dict[str, float]:
        """How far each result is from the reference in float64, as a fraction of the largest."""
        return {name: distance(found, name, exact) for name, exact in self._exact.items()}


@final
class Form:
    """What calls took, by which who would take too long for a larger shape does not run.

    Args:
        longest: seconds that one call may take.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._seconds: dict[tuple[object, ...], float] = {}

    def note(self, row: Row) -> None:
        """Remembers the seconds a number of x."""
        if row.timing is not None:
            self._seconds[kind(row)] = row.timing.median / row.case.shape.numbers

    def knows(self, row: Row) -> bool:
        return kind(row) in self._seconds

    def objection(self, row: Row) -> str | None:
        """Why a row had better not run."""
        return too_long(self._seconds.get(kind(row), 0.0) * row.case.shape.numbers, self._longest)


def kind(row: Row) -> tuple[object, ...]:
    """What rows share that differ in nothing but shape."""
    return row.entrant, row.case.mode, row.threads


def race(case: Case, ground: Ground, limits: Limits, pace: Pace, form: Form) -> list[Row]:
    """Runs all entrants side by side on as many threads as `limits` was measured with, each checked before it is timed.

    Returns:
        A row for each.
    """
    with threads(limits.threads):
        started = settled([start(entrant, case, ground, limits.threads, form) for entrant in entrants()])
        rows = finish(started, pace, limits)
    for row in rows:
        form.note(row)
    return rows


def start(entrant: Entrant, case: Case, ground: Ground, count: int, form: Form) -> tuple[Row, Attempt | None]:
    row = Row(entrant.name, entrant.is_peer, case, count)
    if objection := form.objection(row):
        return replace(row, status="large", reason=objection), None
    return checked(row, lambda: prepare(entrant, case, ground.x), lambda: ground, loaded=form.knows(row))


def finish(started: Sequence[tuple[Row, Attempt | None]], pace: Pace, limits: Limits) -> list[Row]:
    """The rows with what the clock said."""
    found = run(started, {}, pace)
    timed = [timing(row, found.timings.get(str(place))) for place, (row, _) in enumerate(started)]
    return [replace(row, least=row.case.least(limits), others=found.others) for row in timed]
