"""What is benchmarked: cases, which are calls of an operator, and implementations, which prepare them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from rebracket.base.tensors import map_tensors, named_tensors
from rebracket.ops.backend import INSTALLED

Mode = Literal["forward", "train", "decode"]
MODES: tuple[Mode, ...] = ("forward", "train", "decode")
TITLES = {"forward": "Forward", "train": "Forward and backward", "decode": "Decode, one token"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Shape = tuple[int, ...]
"""B sequences of T tokens, and what else an operator has; T = 1 is for decode, all else for the other modes."""
Size = Literal["full", "quick"]
Results = dict[str, Tensor]
"""Tensors of one call by name: "out", in training "grad q" and so on, in decode "state.memory" and so on."""
Inputs = TypeVar("Inputs")


@final
class NotCoveredError(Exception):
    """An implementation does not cover a case; the message is the reason."""


@final
@dataclass(frozen=True)
class Prepared:
    """A case made ready.

    Args:
        run: one call, all of which is timed.
        results: what such a call returned, by name and in the layout of the case; not timed.
    """

    run: Callable[[], object]
    results: Callable[[Any], Results]


class Heading(NamedTuple):
    """Where a case stands: the title of its table, what its first column holds, and what that holds of this case."""

    table: str
    column: str
    group: str


class Work(NamedTuple):
    """What a call has to do, however it is done.

    Args:
        operations: the fewest there are, a multiply-add being 2.
        nbytes: to move: inputs read and outputs written once, in decode also the state.
        state_nbytes: bytes of what is kept from token to token.
        width: what the time of one token grows with.
    """

    operations: int
    nbytes: int
    state_nbytes: int
    width: int


@dataclass(frozen=True)
class Case(ABC):
    """One call of an operator; a decode case is one token from a given state.

    Args:
        name: one of `titles`.
        shape: by the `letters` of the operator.
        mode: forward, train or decode.
        dtype: of the inputs.
    """

    letters: ClassVar[str]
    titles: ClassVar[Mapping[str, str]]
    shapes: ClassVar[Mapping[Size, Sequence[Shape]]]
    modes: ClassVar[tuple[Mode, ...]] = MODES
    growth: ClassVar[float] = 1.0
    """The power of T that the time of this package's backends grows with."""
    note: ClassVar[str] = ""
    """What a reader of its table must know."""

    name: str
    shape: Shape
    mode: Mode
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.title}, {self.size}, {self.mode}"

    @property
    def title(self) -> str:
        return self.titles[self.name]

    @property
    def size(self) -> str:
        """The shape as text."""
        return "x".join(map(str, self.shape))

    @property
    def heading(self) -> Heading:
        return Heading(self.title[:1].upper() + self.title[1:], "mode", TITLES[self.mode].lower())

    @property
    @abstractmethod
    def work(self) -> Work:
        """What the call has to do."""

    def backends(self) -> tuple[str, ...]:
        """What of this package computes it, the best first."""
        return tuple(INSTALLED)

    @abstractmethod
    def draw(self) -> Any:  # noqa: ANN401 - a dataclass of tensors, one of them `weight`, of the shape of the output
        """The inputs that all others are made of; those of one head where there are heads."""

    def inputs(self) -> Any:  # noqa: ANN401
        """The inputs of the call."""
        return self.draw()

    @abstractmethod
    def prepare(self, backend: str, x: Any) -> Prepared:  # noqa: ANN401
        """The call to time, on a backend of this package; a `NotCoveredError` where the backend does not cover it."""

    def exact(self) -> Results:
        """The results for `draw` in float64, by the reference, which the laws hold against the token loop."""
        prepared = self.prepare("reference", map_tensors(self.draw(), lambda _, x: x.double()))
        return prepared.results(prepared.run())

    def expand(self, name: str, exact: Tensor) -> Tensor:
        """A result for `inputs`, made of that for `draw`."""
        return exact


class Implementation(ABC):
    """Prepares cases of one operator; whatever can be done once for many calls is done there."""

    name: str
    """As the tables have it."""
    operator: type[Case]
    """Whose cases it may be asked for."""
    is_peer: bool = True
    """Whether it is somebody else's, so that ours are compared with it."""
    is_optional: bool = True
    """Whether it takes part only when peers were asked for."""

    @abstractmethod
    def prepare(self, case: Any, x: Any, threads: int) -> Prepared:  # noqa: ANN401 - those of its operator
        """The call to time.

        Args:
            case: what to compute.
            x: its inputs; in decode a copy of its own, otherwise shared and not to be changed.
            threads: to use; torch is set to it.

        Raises:
            NotCoveredError: it is not installed, or does not cover the case.
        """

    def growth(self, case: Case) -> float:
        """The power of T that the time of a case grows with."""
        return case.growth


@final
class Backend(Implementation):
    """A backend of this package."""

    is_peer = False

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, case: Case, x: object, threads: int) -> Prepared:
        return case.prepare(self.name, x)


def prepare_torch(
    mode: Mode, x: Inputs, call: Callable[[Inputs], object], results: Callable[[Any], Results]
) -> Prepared:
    """Prepares a function of torch tensors, in training with the gradients of sum(out * weight) for all other inputs.

    Args:
        mode: of the case.
        x: the inputs.
        call: computes the case from them.
        results: the results of what it returned, by name.
    """
    if mode != "train":
        return Prepared(partial(torch.no_grad()(call), x), results)
    leaves = map_tensors(x, lambda name, t: t if name == "weight" else t.detach().clone().requires_grad_())
    named = named_tensors(leaves)
    weight = named.pop("weight")

    def train() -> tuple[Tensor, ...]:
        out = results(call(leaves))["out"]
        return out.detach(), *torch.autograd.grad(out, list(named.values()), weight.to(out.dtype))

    names = ["out", *(f"grad {name}" for name in named)]
    return Prepared(train, lambda made: dict(zip(names, made, strict=True)))


def require(condition: bool, reason: str) -> None:
    """Refuses unless a condition holds."""
    if not condition:
        raise NotCoveredError(reason)


def require_installed(package: str, command: str) -> None:
    """Refuses where a package is missing, and says how to get it."""
    require(find_spec(package) is not None, f"not installed: {command}")


@contextmanager
def refusals() -> Iterator[None]:
    """Turns the error of a backend that was named and does not cover a call into a refusal."""
    try:
        yield
    except ValueError as error:
        raise NotCoveredError(str(error)) from error
