"""The short convolution under the laws."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from rebracket.ops.call import Activation, Convolution
from rebracket.ops.convolution import short_convolution
from rebracket.testing.law import Case, Result, Row, Run, Sample, law


@final
@dataclass(frozen=True)
class Shape:
    """The letters of a call, and the offsets when its sequences are packed."""

    B: int
    T: int
    D: int
    offsets: tuple[int, ...] | None = None


SMALL: dict[str, Shape] = {
    "small": Shape(B=2, T=5, D=3),
    "small_packed": Shape(B=1, T=7, D=2, offsets=(0, 0, 1, 5)),
}
LONG: dict[str, Shape] = {
    "wide": Shape(B=2, T=600, D=1100),
    "wide_packed": Shape(B=1, T=620, D=1100, offsets=(0, 1, 260, 260, 600)),
}
"""More than one block of tokens and strip of channels."""
SHAPES: dict[str, Shape] = {
    "plain": Shape(B=3, T=19, D=21),
    "packed": Shape(B=1, T=37, D=5, offsets=(0, 0, 5, 6, 6, 9, 34)),
    "empty": Shape(B=2, T=0, D=3),
    "token": Shape(B=2, T=1, D=37),
}
"""Sizes off the width of any vector."""
WIDTHS = (1, 2, 4, 11)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True, eq=False)
class ConvolutionSample(Sample):
    """The arguments of one call of `short_convolution`."""

    carries: ClassVar[str] = "tail"
    free: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    tail: Tensor | None = None
    cu_seqlens: Tensor | None = None
    activation: Activation = None

    @property
    def T(self) -> int:
        return self.x.shape[1]

    def entries(self, name: str, x: Tensor) -> int:
        return int(name == "x")

    def run(self, row: Row) -> Result:
        return short_convolution(**vars(self), backend=row.backend)

    def call(self, row: Row) -> Convolution:
        return Convolution(**vars(self))

    def define(self) -> Result:
        return self.joined([one_sequence(alone) for alone in self.sequences()])


def one_sequence(s: ConvolutionSample) -> Result:
    """The formula, token after token."""
    x, W = s.x[0], s.weight.shape[1]
    seen = list(x.new_zeros(W - 1, x.shape[1]) if s.tail is None else s.tail[0])
    out = []
    for token in x:
        seen.append(token)
        z = torch.zeros_like(token) if s.bias is None else s.bias
        for j in range(W):
            z = z + s.weight[:, j] * seen[len(seen) - W + j]
        out.append(z / (1 + torch.exp(-z)) if s.activation == "silu" else z)
    last = seen[len(seen) - W + 1 :]
    return torch.stack(out)[None] if out else s.x, torch.stack(last)[None] if last else x.new_zeros(1, 0, x.shape[1])


@final
@dataclass(frozen=True)
class ConvolutionCase(Case):
    """A shape, a width, and which of the arguments that may be left out are there."""

    shape: str = "plain"
    width: int = 4
    activation: Activation = "silu"
    bias: bool = True
    tail: bool = True
    dtype: torch.dtype = torch.float64

    def __str__(self) -> str:
        extras = ("bias" * self.bias, "" if self.tail else "fresh", str(self.dtype).removeprefix("torch."))
        return "-".join(x for x in ("convolution", self.shape, f"W{self.width}", self.activation, *extras) if x)

    @classmethod
    def every(cls) -> Iterator[Row]:
        found = [*product(SHAPES, DTYPES), *product(LONG, DTYPES)]
        yield from (row for case in found for row in (alone(case), alone(replace(case, tail=False))))

    @classmethod
    def few(cls, shapes: Sequence[str], dtypes: Sequence[torch.dtype]) -> Iterator[Row]:
        """All of its product, or the small shapes in the dtypes asked for."""
        small = any(shape.startswith(("small", "smooth")) for shape in shapes)
        return map(alone, product(SMALL, dtypes) if small else [*product(SHAPES, DTYPES), *product(LONG, DTYPES)])

    @property
    def subject(self) -> str:
        return "convolution"

    @property
    def sizes(self) -> Shape:
        return (SHAPES | LONG | SMALL)[self.shape]

    @property
    def packed(self) -> bool:
        return self.sizes.offsets is not None

    def draw(self) -> ConvolutionSample:
        shape = self.sizes
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.shape}{self.width}".encode()))
        N = shape.B if shape.offsets is None else len(shape.offsets) - 1
        sizes = ((shape.B, shape.T, shape.D), (shape.D, self.width), (shape.D,), (N, self.width - 1, shape.D))
        x, weight, bias, tail = (torch.randn(s, generator=generator, dtype=torch.float64).to(self.dtype) for s in sizes)
        offsets = None if shape.offsets is None else torch.tensor(shape.offsets)
        held = (bias if self.bias else None, tail if self.tail else None)
        return ConvolutionSample(x, weight, *held, offsets, self.activation)

    def cuts(self, T: int) -> list[list[int]]:
        """In the middle, into empty pieces, and into single tokens."""
        return [[T // 2], [0, 0, T // 3, T], list(range(1, min(T, 20)))]

    def limit(self, name: str) -> float:
        """As for every operator; the tail is copied, so it is equal."""
        return 0.0 if name == "state" else super().limit(name)

    def limit_of_pieces(self, name: str, backend: str) -> float:
        """Nothing for outputs on a native backend: it adds in the same order whatever the pieces are."""
        return self.limit(name) if backend == "reference" or name.startswith("grad") else 0.0


def alone(case: ConvolutionCase) -> Row:
    """The row of a case; there is one mode."""
    return Row(case, "", None)


def product(shapes: dict[str, Shape], dtypes: Sequence[torch.dtype]) -> Iterator[ConvolutionCase]:
    """Shapes, widths and dtypes with and without activation and bias; one width over long shapes."""
    for shape, dtype, width in itertools.product(shapes, dtypes, (4,) if shapes is LONG else WIDTHS):
        yield ConvolutionCase(shape, width, dtype=dtype)
        if shapes is not LONG:
            yield ConvolutionCase(shape, width, None, bias=False, dtype=dtype)


@law(over=lambda: map(alone, [*product(SHAPES, DTYPES), *product(LONG, DTYPES)]))
def the_tail_keeps_nothing_alive(run: Run, row: Row) -> None:
    """The tail that is handed on has memory of its own, and no more than it needs."""
    tail = run(row.case.draw(), row)[1]
    if tail.untyped_storage().nbytes() != tail.nbytes:
        raise AssertionError(f"tail holds {tail.untyped_storage().nbytes()} bytes, expected {tail.nbytes}")
