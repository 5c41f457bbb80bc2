"""What laws are made of: samples of an operator, cases that draw them, rows that say how to run them, and the laws.

An operator brings one file in `rebracket.testing.operators`: its sample, its case, and laws of its own. The laws that
make sense for every operator then run over its cases.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, final

import torch
from torch import Tensor

from rebracket.base.registry import Registry
from rebracket.base.tensors import map_tensors, named_tensors
from rebracket.ops.backend import INSTALLED
from rebracket.ops.call import Call
from rebracket.testing.budgets import budget

Result = tuple[Tensor, Any]
"""Outputs [B,T,...], and what the next call continues from: a tensor [N,...], or a dataclass of such tensors."""
Run = Callable[[Any, "Row"], Result]
"""What a law is asked about: a sample run as a row says. A planted fault is another one."""
Check = TypeVar("Check", bound=Callable[[Run, "Row"], None])


class Sample(ABC):
    """The arguments of one call of an operator, to be cut, cast and changed: a frozen dataclass."""

    carries: ClassVar[str]
    """The field that one call hands on to the next."""
    free: ClassVar[tuple[str, ...]]
    """The tensors that may hold anything, also what is not a number."""
    cu_seqlens: Tensor | None
    """Offsets of packed sequences, or None."""

    @abstractmethod
    def run(self, row: Row) -> Result:
        """The operator in the row's mode, chunk and backend."""

    @abstractmethod
    def call(self, row: Row) -> Call:
        """The checked call that `run` makes, to ask a backend whether it covers it."""

    @abstractmethod
    def define(self) -> Result:
        """The operator by its definition, one token after the other."""

    @abstractmethod
    def entries(self, name: str, x: Tensor) -> int:
        """How many entries of axis 1 belong to one token; 0 if the tensor has no time axis."""

    @property
    @abstractmethod
    def T(self) -> int:
        """Tokens, those in the padding too."""

    @property
    def carried(self) -> Any:  # noqa: ANN401 - a tensor, or a dataclass of tensors
        return getattr(self, self.carries)

    def after(self, carried: Any) -> Self:  # noqa: ANN401
        """The same arguments, continuing from what another call handed on."""
        return replace(self, **{self.carries: carried})  # type: ignore[type-var]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a gradient can be asked for, by name."""
        return {name: x for name, x in named_tensors(self).items() if x.is_floating_point()}

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """A copy whose tensors went through `change`, which is told their names."""
        return map_tensors(self, lambda name, x: change(name, x) if x.is_floating_point() else x)

    def to(self, dtype: torch.dtype) -> Self:
        """The same numbers rounded to a dtype."""
        return self.map(lambda _, x: x.to(dtype))

    def leaves(self, names: frozenset[str] | None = None) -> Self:
        """Copies that collect gradients: all, or those named."""
        return self.map(lambda name, x: x.detach().clone().requires_grad_(names is None or name in names))

    def timed(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """A copy whose tensors with a time axis went through `change`, which is told how many entries a token has."""
        return self.map(lambda name, x: change(x, n) if (n := self.entries(name, x)) else x)

    def tokens(self, start: int, stop: int) -> Self:
        """The tokens from start to stop; what it continues from stays what it is."""
        return self.timed(lambda x, n: x[:, start * n : stop * n])

    def rows(self, start: int, stop: int) -> Self:
        """Some rows of the batch, with what each continues from."""
        return self.timed(lambda x, _: x[start:stop]).after(each(self.carried, lambda x: x[start:stop]))

    def sequences(self) -> Iterator[Self]:
        """Each packed sequence, or row, by itself."""
        offsets = None if self.cu_seqlens is None else self.cu_seqlens.tolist()
        for n in range(len(next(iter(self.tensors().values()))) if offsets is None else len(offsets) - 1):
            if offsets is None:
                yield self.rows(n, n + 1)
            else:
                alone = replace(self, cu_seqlens=None).tokens(offsets[n], offsets[n + 1])  # type: ignore[type-var]
                yield alone.after(each(self.carried, lambda x, n=n: x[n : n + 1]))

    def joined(self, found: Sequence[Result]) -> Result:
        """The results of all `sequences` as those of the whole; outputs in the padding are zero."""
        carried = together([x for _, x in found])
        if self.cu_seqlens is None:
            return torch.cat([out for out, _ in found]), carried
        padding = self.T - sum(out.shape[1] for out, _ in found)
        outs = [out for out, _ in found]
        return torch.cat([*outs, outs[0].new_zeros(1, padding, *outs[0].shape[2:])], 1), carried


def each(carried: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401
    """What is carried on, each of its tensors changed."""
    if carried is None or isinstance(carried, Tensor):
        return None if carried is None else change(carried)
    return map_tensors(carried, lambda _, x: change(x))


def together(parts: Sequence[Any]) -> Any:  # noqa: ANN401
    """What was carried on for single rows, as that of all rows."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return map_tensors(parts[0], lambda name, _: torch.cat([named_tensors(x)[name] for x in parts]))


class Case(ABC):
    """One point of the product of axes that an operator's samples are drawn for: a frozen dataclass."""

    dtype: torch.dtype

    @classmethod
    @abstractmethod
    def every(cls) -> Iterable[Row]:
        """The whole product of the operator's axes."""

    @classmethod
    @abstractmethod
    def few(cls, shapes: Sequence[str], dtypes: Sequence[torch.dtype]) -> Iterable[Row]:
        """Each value of each axis at least once: the first shape in every dtype, the others in the first dtype.

        Laws ask for "plain", "grouped" heads, "packed", "packings" (packed in several ways), "small", "small_packed",
        and for "smooth" (small, and with finite differences) and "smooth_product" (of all axes). An operator has those
        that mean something to it, and may answer with more than was asked for.
        """

    @property
    @abstractmethod
    def packed(self) -> bool:
        """Whether its sequences are packed in one row."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What the tests name it by: the operator, or its write rule."""

    @abstractmethod
    def draw(self) -> Sample:
        """The sample: the same numbers every time, rounded to the dtype."""

    def cuts(self, T: int) -> list[list[int]]:
        """Where a sequence is cut into pieces: once and four times at random."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))
        return [torch.randint(0, T + 1, (n,), generator=generator).sort().values.tolist() for n in (1, 4)]

    def exact(self) -> dict[str, Tensor]:
        """The results of the definition in float64 on the inputs of the case, which may be rounded ones."""
        return results(lambda x: x.define(), self.draw().to(torch.float64))

    def limit(self, name: str) -> float:
        """How far a result may lie from the exact one."""
        return budget(name, self.dtype)

    def limit_of_pieces(self, name: str, backend: str) -> float:
        """How far a result put together from pieces may lie from the whole."""
        return self.limit(name)


@final
@dataclass(frozen=True)
class Row:
    """One setting of every axis; an operator without modes has mode "" and no chunk."""

    case: Any
    mode: str = "chunk"
    chunk: int | None = 16
    backend: str = "reference"

    def __str__(self) -> str:
        way = self.mode + ("" if self.chunk is None else str(self.chunk))
        return "-".join(x for x in (self.backend, way, str(self.case)) if x)

    @property
    def dtype(self) -> torch.dtype:
        return self.case.dtype


def sound(sample: Sample, row: Row) -> Result:
    """The operator itself."""
    return sample.run(row)


SOUND: Run = sound


def results(run: Callable[[Any], Result], sample: Sample, names: frozenset[str] | None = None) -> dict[str, Tensor]:
    """Results of a run by name: "out", "state...", "grad q", ...; gradients of all inputs or of those named."""
    leaves = sample.leaves(names)
    found = values(run(leaves))
    loss(found).backward()
    wanted = {name: x for name, x in leaves.tensors().items() if x.requires_grad}
    grads = {f"grad {name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in wanted.items()}
    return {name: x.detach() for name, x in found.items()} | grads


def values(result: Result) -> dict[str, Tensor]:
    """Outputs, and what is carried on, by name."""
    out, carried = result
    held = {"": carried} if isinstance(carried, Tensor) else named_tensors(carried)
    return {"out": out} | {f"state.{name}".rstrip("."): x for name, x in held.items()}


def loss(found: dict[str, Tensor]) -> Tensor:
    """A number that depends on every output and state entry with a weight of its own."""
    nothing = torch.zeros((), dtype=torch.float64)
    total = sum(((x.double() * cotangent(name, x)).sum() for name, x in found.items()), nothing)
    if not total.requires_grad:
        raise AssertionError("no gradient: outputs and state came back detached")
    return total


def cotangent(name: str, x: Tensor) -> Tensor:
    """Fixed random weights that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).bfloat16().double()


@final
@dataclass(frozen=True)
class Law:
    """A statement about operators: a check that raises an AssertionError with numbers, and its rows."""

    check: Callable[[Run, Row], None]
    rows: Callable[[], Iterable[Row]]
    adapts: bool
    """Whether a backend may be asked in float32 where it has no float64, and in its own chunk where it has no other."""

    def over(self, backend: str, subject: str | None = None, kind: type[Case] = Case) -> Iterator[Row]:
        """The rows of this law that a backend covers: all, those of one subject, or of one kind of case."""
        seen: set[Row] = set()
        for row in self.rows():
            if subject in (None, row.case.subject) and isinstance(row.case, kind):
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
    return INSTALLED[row.backend].covers(row.case.draw().call(row)) is None


REGISTERED: dict[str, Law] = {}
"""The laws of all files imported so far; `rebracket.testing.laws` imports them all."""


def law(over: Callable[[], Iterable[Row]], *, adapts: bool = True) -> Callable[[Check], Check]:
    """Makes a law of a check: a function of a run and a row that raises an AssertionError with numbers.

    Args:
        over: the rows of the law.
        adapts: whether a backend may be asked in float32 where it has no float64, and in its own chunk where it has no
            other.

    Cost: nothing until the law is checked.

    Example:
        >>> from rebracket.testing.law import Row, Run
        >>> from rebracket.testing.general import few
        >>> def outputs_are_finite(run: Run, row: Row) -> None:
        ...     assert run(row.case.draw(), row)[0].isfinite().all()
        >>> found = Law(outputs_are_finite, few("plain"), True)
        >>> {row.case.subject for row in found.over("reference")} >= {"convolution", "delta"}
        True
    """

    def add(check: Check) -> Check:
        if check.__name__ in REGISTERED:
            raise ValueError(f"there are two laws {check.__name__}; a law that holds for every operator is one law")
        REGISTERED[check.__name__] = Law(check, over, adapts)
        return check

    return add


OPERATORS: Registry[Case] = Registry("rebracket.testing.operators", "operator", Case)
"""The operators under the laws: each file has one kind of case."""


def kinds() -> list[type[Case]]:
    """The kind of case of every operator."""
    return [OPERATORS.load(name) for name in OPERATORS.names()]  # type: ignore[misc]
