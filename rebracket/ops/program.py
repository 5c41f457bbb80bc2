"""A model as a list of operations over rows: what layers lower themselves to, and what a backend prepares.

A row is one token of one text. Every value is [rows, width] in float32; a row depends on its own token and on what its
text's slot holds of the tokens before, and on nothing else. A slot is one block of numbers: the states of all layers.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NoReturn, final

import torch
from torch import Tensor

Function = Literal[
    "silu", "sigmoid", "softplus", "logsigmoid", "exp", "expm1", "relu", "elu1", "square", "sin", "cos", "negative"
]
Pairing = Literal["add", "subtract", "multiply", "maximum", "minimum", "logaddexp"]
Norm = Literal["rms", "centered", "unit"]


@final
@dataclass(frozen=True)
class Value:
    """A part of a buffer: `width` numbers of every row, from the `begin`-th of the buffer.

    Example:
        >>> Value(buffer=3, width=10).part(4, 6)
        Value(buffer=3, width=6, begin=4)
    """

    buffer: int
    width: int
    begin: int = 0

    def part(self, begin: int, width: int) -> Value:
        """A part of this part."""
        assert 0 <= begin <= begin + width <= self.width
        return Value(self.buffer, width, self.begin + begin)

    def split(self, *widths: int) -> tuple[Value, ...]:
        """Parts of these widths, one after another."""
        assert sum(widths) == self.width
        return tuple(self.part(sum(widths[:i]), width) for i, width in enumerate(widths))


@final
@dataclass(frozen=True)
class Held:
    """Numbers that a slot keeps from token to token, zeros before the first.

    Args:
        name: of the tensor in a `ModelCache`, such as "0.state.memory".
        shape: of one text.
        offset: of the first number in the slot.
    """

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return math.prod(self.shape)


@final
@dataclass(frozen=True)
class Paged:
    """Keys and values of a softmax layer, which grow with the text and are kept in pages.

    Args:
        prefix: of their names in a `ModelCache`, such as "3.state.".
        index: which paged layer of the model this is, from 0.
        heads: heads of keys and values.
        key_dim, value_dim: widths of a head.
        window: tokens that are read back, the present one included, or None for all.
    """

    prefix: str
    index: int
    heads: int
    key_dim: int
    value_dim: int
    window: int | None


@final
class NotLoweredError(ValueError):
    """A part has no operations of its own; a model with such a part runs through its modules."""


def not_lowered(part: object, why: str = "its class has no `lower`") -> NoReturn:
    """What every base class does in place of `lower`, so that a part without one still works as a module.

    Example:
        >>> not_lowered(3.5)
        Traceback (most recent call last):
        rebracket.ops.program.NotLoweredError: float: its class has no `lower`
    """
    raise NotLoweredError(f"{type(part).__name__}: {why}")


class Operation(ABC):  # noqa: B024 - it holds what all operations share
    """One operation over all rows of a call: a frozen dataclass of values, weights and plain numbers."""


@final
@dataclass(frozen=True, eq=False)
class Embed(Operation):
    """out = table[token], table [vocab, width]."""

    out: Value
    table: Tensor


@final
@dataclass(frozen=True, eq=False)
class Product(Operation):
    """out = x W^T + b + plus, in each of `groups` equal parts of x and out with the same W [out/groups, x/groups].

    `exact` weights stay float32 in every weight format.
    """

    x: Value
    out: Value
    weight: Tensor
    bias: Tensor | None
    plus: Value | None
    groups: int
    exact: bool


@final
@dataclass(frozen=True, eq=False)
class Select(Operation):
    """out_i = factor_i x_{index_i}; index [out] int64, factor [out] float32 or None for 1."""

    x: Value
    out: Value
    index: Tensor
    factor: Tensor | None


@final
@dataclass(frozen=True, eq=False)
class Map(Operation):
    """out = after * f(before * x), entry by entry."""

    x: Value
    out: Value
    function: Function
    before: float
    after: float


@final
@dataclass(frozen=True, eq=False)
class Pair(Operation):
    """out = f(x, y), entry by entry; an entry of a narrower y serves x.width / y.width neighbours.

    y is a value or a weight [width]; x likewise has the width of out.
    """

    x: Value
    y: Value | Tensor
    out: Value
    function: Pairing


@final
@dataclass(frozen=True, eq=False)
class Normalize(Operation):
    """Each of `groups` equal parts of x normed.

    rms: x / sqrt(mean(x^2) + eps);  centered: (x - mean) / sqrt(var + eps);  unit: x / sqrt(sum(x^2) + eps);
    then times weight, plus bias: of the width of x or of one part, or None.
    """

    x: Value
    out: Value
    norm: Norm
    groups: int
    eps: float
    weight: Tensor | None
    bias: Tensor | None


@final
@dataclass(frozen=True, eq=False)
class Sum(Operation):
    """out_g = the sum of the g-th of `out.width` equal parts of x."""

    x: Value
    out: Value


@final
@dataclass(frozen=True, eq=False)
class Exponentials(Operation):
    """exp(x - max(x)) in each of `groups` equal parts, divided by their sum where `divided`."""

    x: Value
    out: Value
    groups: int
    divided: bool


@final
@dataclass(frozen=True, eq=False)
class Convolve(Operation):
    """The short convolution: weight [D,W], bias [D] or None; the tail holds the W - 1 rows before, oldest first."""

    x: Value
    out: Value
    weight: Tensor
    bias: Tensor | None
    silu: bool
    tail: Held


@final
@dataclass(frozen=True, eq=False)
class Rotate(Operation):
    """Rotary positions on each of `heads` equal parts, as `nn.Rotary`; the position is the row's in its text."""

    x: Value
    out: Value
    heads: int
    base: float


@final
@dataclass(frozen=True, eq=False)
class CosineWeight(Operation):
    """Features times sine, then cosine of their position, for each of `heads` equal parts, as `nn.CosineWeights`."""

    x: Value
    out: Value
    heads: int
    horizon: int


@final
@dataclass(frozen=True, eq=False)
class Recur(Operation):
    """One token of the recurrence of `ops.call.Recurrence`, `per_token` writes each.

    Args:
        q: [Hq K].
        k: [per_token Hk K], Hk = key_heads or heads.
        v: [per_token H V].
        r: as k, or None to read nothing back; it may be k itself.
        beta: [per_token H], or weights [H], or None for 1.
        log_decay: [H] or [H K], a value or weights, or None for 0.
        bonus: weights [H,K] or None.
        out: [H V].
        query_heads, key_heads, heads: of q, of k and r, of v.
        per_token: writes of one token.
        scale: factor of out.
        memory: [H,K,V].
        key_sum: [H,K], or None without the normalizer.
    """

    q: Value
    k: Value
    v: Value
    r: Value | None
    beta: Value | Tensor | None
    log_decay: Value | Tensor | None
    bonus: Tensor | None
    out: Value
    query_heads: int
    key_heads: int
    heads: int
    per_token: int
    scale: float
    memory: Held
    key_sum: Held | None


@final
@dataclass(frozen=True, eq=False)
class Attend(Operation):
    """Softmax attention of q [H K] over the pages and the present k [Hk K] and v [Hk V], which join them."""

    q: Value
    k: Value
    v: Value
    out: Value
    heads: int
    scale: float
    pages: Paged


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """A lowered model.

    Args:
        body: the operations of every row, in order.
        head: those from the residual stream to the logits, of the rows whose logits are wanted.
        logits: what the head gives, [vocab].
        widths: of the buffers.
        held: what a slot keeps, in order of offset.
        paged: the softmax layers.
    """

    body: tuple[Operation, ...]
    head: tuple[Operation, ...]
    logits: Value
    widths: tuple[int, ...]
    held: tuple[Held, ...]
    paged: tuple[Paged, ...]

    @property
    def slot_size(self) -> int:
        """Numbers of a slot."""
        return sum(held.size for held in self.held)


@final
@dataclass
class Builder:
    """Collects the operations of a model; each part of a layer adds its own in its `lower`.

    Example:
        >>> import torch
        >>> build = Builder()
        >>> x = build.embed(torch.zeros(7, 4))
        >>> build.apply("silu", x).width
        4
    """

    operations: list[Operation] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    paged: list[Paged] = field(default_factory=list)
    prefix: str = ""

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """What is held inside is named as that layer's."""
        self.prefix = f"{index}."
        yield
        self.prefix = ""

    def buffer(self, width: int) -> Value:
        """A new buffer."""
        self.widths.append(width)
        return Value(len(self.widths) - 1, width)

    def hold(self, name: str, *shape: int) -> Held:
        """Room in the slot."""
        offset = self.held[-1].offset + self.held[-1].size if self.held else 0
        self.held.append(Held(self.prefix + name, shape, offset))
        return self.held[-1]

    def pages(self, heads: int, key_dim: int, value_dim: int, window: int | None) -> Paged:
        """Room for keys and values."""
        self.paged.append(Paged(f"{self.prefix}state.", len(self.paged), heads, key_dim, value_dim, window))
        return self.paged[-1]

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def embed(self, table: Tensor) -> Value:
        out = self.buffer(table.shape[1])
        self.add(Embed(out, table))
        return out

    def product(
        self,
        x: Value,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        plus: Value | None = None,
        groups: int = 1,
        exact: bool = False,
    ) -> Value:
        out = self.buffer(groups * weight.shape[0])
        self.add(Product(x, out, weight, bias, plus, groups, exact))
        return out

    def together(self, *values: Value) -> Value:
        """Values side by side: a copy of each in one buffer."""
        out = self.buffer(sum(x.width for x in values))
        for x, part in zip(values, out.split(*(x.width for x in values)), strict=True):
            self.add(Select(x, part, torch.arange(x.width), None))
        return out

    def repeat(self, x: Value, heads: int, copies: int) -> Value:
        """Each of `heads` equal parts, next to its copies."""
        if copies == 1:
            return x
        return self.select(x, torch.arange(x.width).view(heads, -1).repeat_interleave(copies, 0).flatten())

    def select(self, x: Value, index: Tensor, factor: Tensor | None = None) -> Value:
        out = self.buffer(len(index))
        self.add(Select(x, out, index, factor))
        return out

    def select_each(self, x: Value, groups: int, index: Tensor, factor: Tensor | None = None) -> Value:
        """The same selection of each of `groups` equal parts."""
        begins = torch.arange(groups)[:, None] * (x.width // groups)
        return self.select(x, (begins + index).flatten(), None if factor is None else factor.repeat(groups))

    def apply(self, function: Function, x: Value, *, before: float = 1.0, after: float = 1.0) -> Value:
        out = self.buffer(x.width)
        self.add(Map(x, out, function, before, after))
        return out

    def pair(self, function: Pairing, x: Value, y: Value | Tensor) -> Value:
        out = self.buffer(x.width)
        self.add(Pair(x, y, out, function))
        return out

    def normalize(
        self,
        norm: Norm,
        x: Value,
        eps: float,
        *,
        groups: int = 1,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Value:
        out = self.buffer(x.width)
        self.add(Normalize(x, out, norm, groups, eps, weight, bias))
        return out

    def sum(self, x: Value, groups: int) -> Value:
        out = self.buffer(groups)
        self.add(Sum(x, out))
        return out

    def exponentials(self, x: Value, groups: int, *, divided: bool) -> Value:
        out = self.buffer(x.width)
        self.add(Exponentials(x, out, groups, divided))
        return out

    def convolve(self, x: Value, weight: Tensor, bias: Tensor | None, *, silu: bool) -> Value:
        out = self.buffer(x.width)
        self.add(Convolve(x, out, weight, bias, silu, self.hold("tail", weight.shape[1] - 1, x.width)))
        return out

    def rotate(self, x: Value, heads: int, base: float) -> Value:
        out = self.buffer(x.width)
        self.add(Rotate(x, out, heads, base))
        return out

    def cosine(self, x: Value, heads: int, horizon: int) -> Value:
        out = self.buffer(2 * x.width)
        self.add(CosineWeight(x, out, heads, horizon))
        return out
