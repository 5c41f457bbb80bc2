"""Programs in torch operations, row by row where a row needs the one before: what every other executor must give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import singledispatchmethod
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.backends.reference import convolution, definition, softmax
from rebracket.ops.call import Convolution, Recurrence, Softmax
from rebracket.ops.program import (
    Attend,
    Convolve,
    CosineWeight,
    Embed,
    Exponentials,
    Function,
    Graph,
    Map,
    Normalize,
    Operation,
    Pair,
    Pairing,
    Product,
    Recur,
    Rotate,
    Select,
    Sum,
    Value,
)

FUNCTIONS: Mapping[Function, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "relu": F.relu,
    "elu1": lambda x: x.clamp(max=0).exp() + F.relu(x),
    "square": torch.square,
    "sin": torch.sin,
    "cos": torch.cos,
    "negative": torch.neg,
}
PAIRINGS: Mapping[Pairing, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "logaddexp": torch.logaddexp,
}
SEEN = "seen"
Slot = dict[str, Tensor]
"""What one text keeps: held numbers by name, keys [L,Hk,K] and values [L,Hk,V] of softmax layers, tokens seen [1]."""


@final
class Segment(NamedTuple):
    """The next tokens of one text, and its slot, which is written over."""

    slot: Slot
    tokens: Sequence[int]


@final
class Program:
    """A graph, to be run on rows of any texts.

    Args:
        graph: a lowered model.
        dtype: of the arithmetic, float64 or float32.

    Cost: as that of a loop over tokens in torch.

    Example:
        >>> from rebracket.ops.program import Builder
        >>> build = Builder()
        >>> x = build.embed(torch.eye(3))
        >>> graph = Graph(tuple(build.operations), (), x, tuple(build.widths), (), ())
        >>> program = Program(graph)
        >>> program.run([Segment(program.empty(), [2, 0])])
        tensor([[0., 0., 1.],
                [1., 0., 0.]], dtype=torch.float64)
    """

    def __init__(self, graph: Graph, dtype: torch.dtype = torch.float64) -> None:
        self.graph, self.dtype = graph, dtype

    def empty(self) -> Slot:
        """The slot of a text without tokens."""
        slot = {held.name: torch.zeros(held.shape, dtype=self.dtype) for held in self.graph.held}
        for pages in self.graph.paged:
            slot[f"{pages.prefix}keys"] = torch.zeros(0, pages.heads, pages.key_dim, dtype=self.dtype)
            slot[f"{pages.prefix}values"] = torch.zeros(0, pages.heads, pages.value_dim, dtype=self.dtype)
        slot[SEEN] = torch.zeros(1, dtype=torch.int64)
        return slot

    @torch.no_grad()
    def run(self, segments: Sequence[Segment]) -> Tensor:
        """The logits of every row, [rows, vocab]."""
        rows = Rows(self.graph, self.dtype, segments)
        for operation in (*self.graph.body, *self.graph.head):
            rows.run(operation)
        for slot, tokens in segments:
            slot[SEEN] = slot[SEEN] + len(tokens)
        return rows[self.graph.logits]


@final
class Rows:
    """The buffers of one call: a row for each token, segment by segment."""

    def __init__(self, graph: Graph, dtype: torch.dtype, segments: Sequence[Segment]) -> None:
        self.dtype = dtype
        self.tokens = torch.tensor([token for segment in segments for token in segment.tokens], dtype=torch.int64)
        self.segments = segments
        places = [torch.arange(len(tokens)) + slot[SEEN] for slot, tokens in segments]
        self.positions = torch.cat(places or [self.tokens])
        self.buffers = [torch.full((len(self.tokens), width), math.nan, dtype=dtype) for width in graph.widths]

    def __getitem__(self, value: Value) -> Tensor:
        return self.buffers[value.buffer][:, value.begin : value.begin + value.width]

    def __setitem__(self, value: Value, x: Tensor) -> None:
        self[value].copy_(x)

    def weight(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def parts(self, x: Value, count: int) -> Tensor:
        """[rows, count, width / count]."""
        return self[x].unflatten(1, (count, x.width // count))

    def texts(self) -> Iterator[tuple[slice, Slot]]:
        """The rows of each text that has any, and its slot."""
        begin = 0
        for slot, tokens in self.segments:
            if tokens:
                yield slice(begin, begin + len(tokens)), slot
            begin += len(tokens)

    @singledispatchmethod
    def run(self, operation: Operation) -> None:
        raise NotImplementedError(f"{type(operation).__name__} is no operation that the reference knows")

    @run.register
    def _(self, of: Embed) -> None:
        self[of.out] = self.weight(of.table)[self.tokens]

    @run.register
    def _(self, of: Product) -> None:
        bias = None if of.bias is None else self.weight(of.bias)
        out = F.linear(self.parts(of.x, of.groups), self.weight(of.weight), bias).flatten(1)
        self[of.out] = out if of.plus is None else out + self[of.plus]

    @run.register
    def _(self, of: Select) -> None:
        x = self[of.x][:, of.index]
        self[of.out] = x if of.factor is None else x * self.weight(of.factor)

    @run.register
    def _(self, of: Map) -> None:
        self[of.out] = of.after * FUNCTIONS[of.function](of.before * self[of.x])

    @run.register
    def _(self, of: Pair) -> None:
        y = self[of.y] if isinstance(of.y, Value) else self.weight(of.y)
        self[of.out] = PAIRINGS[of.function](self[of.x], y.repeat_interleave(of.x.width // y.shape[-1], -1))

    @run.register
    def _(self, of: Normalize) -> None:
        x = self.parts(of.x, of.groups)
        x = x - x.mean(-1, keepdim=True) if of.norm == "centered" else x
        squares = x.square()
        size = squares.sum(-1, keepdim=True) if of.norm == "unit" else squares.mean(-1, keepdim=True)
        y = x / (size + of.eps).sqrt()
        y = y if of.weight is None else y * self.per_part(of.weight, y)
        self[of.out] = (y if of.bias is None else y + self.per_part(of.bias, y)).flatten(1)

    def per_part(self, weight: Tensor, y: Tensor) -> Tensor:
        """A weight of the width of all parts of y, or of one."""
        return self.weight(weight).view(-1, y.shape[-1])

    @run.register
    def _(self, of: Sum) -> None:
        self[of.out] = self.parts(of.x, of.out.width).sum(-1)

    @run.register
    def _(self, of: Exponentials) -> None:
        x = self.parts(of.x, of.groups)
        y = (x - x.amax(-1, keepdim=True)).exp()
        self[of.out] = (y / y.sum(-1, keepdim=True) if of.divided else y).flatten(1)

    @run.register
    def _(self, of: Convolve) -> None:
        bias, activation = None if of.bias is None else self.weight(of.bias), "silu" if of.silu else None
        for part, slot in self.texts():
            tail = slot[of.tail.name][None]
            call = Convolution(self[of.x][None, part], self.weight(of.weight), bias, tail, None, activation)
            (self[of.out][part],), (slot[of.tail.name],) = convolution.padded(call)

    @run.register
    def _(self, of: Rotate) -> None:
        pairs = of.x.width // of.heads // 2
        rates = of.base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = (self.positions[:, None].double() * rates)[:, None]
        cos, sin = self.weight(angles.cos()), self.weight(angles.sin())
        first, second = self.parts(of.x, of.heads).chunk(2, -1)
        self[of.out] = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).flatten(1)

    @run.register
    def _(self, of: CosineWeight) -> None:
        angles = (self.positions.double().clamp(max=of.horizon) * (math.pi / 2 / of.horizon))[:, None, None]
        x = self.parts(of.x, of.heads)
        self[of.out] = torch.cat([x * self.weight(angles.sin()), x * self.weight(angles.cos())], -1).flatten(1)

    @run.register
    def _(self, of: Recur) -> None:
        for part, slot in self.texts():
            out, state = definition.run(self.recurrence(of, part, slot))
            self[of.out][part], slot[of.memory.name] = out[0].flatten(1), state.memory[0]
            if of.key_sum is not None and state.key_sum is not None:
                slot[of.key_sum.name] = state.key_sum[0]

    def recurrence(self, of: Recur, part: slice, slot: Slot) -> Recurrence:
        """The rows of one text as a call of the operator."""
        H, K, V = of.memory.shape

        def entries(x: Value | Tensor | None, *shape: int) -> Tensor | None:
            return self.entries(x, part, shape)

        q, k, v = entries(of.q, of.query_heads, K), entries(of.k, of.key_heads, K), entries(of.v, H, V)
        assert q is not None
        assert k is not None
        assert v is not None
        per_channel = of.log_decay is not None and width(of.log_decay) > H
        return Recurrence(
            q,
            k,
            v,
            None if of.r == of.k else entries(of.r, of.key_heads, K),
            entries(of.beta, H),
            entries(of.log_decay, *((H, K) if per_channel else (H,))),
            None if of.bonus is None else self.weight(of.bonus),
            slot[of.memory.name][None],
            None if of.key_sum is None else slot[of.key_sum.name][None],
            None,
            of.per_token,
            r_is_k=of.r == of.k,
            normalize=of.key_sum is not None,
            scale=of.scale,
            causal=True,
            chunk=None,
        )

    def entries(self, x: Value | Tensor | None, part: slice, shape: tuple[int, ...]) -> Tensor | None:
        """Some rows of a value, or of a weight that is the same for all, as [1, entries of all rows, *shape]."""
        if x is None:
            return None
        rows = self[x][part] if isinstance(x, Value) else self.weight(x).expand(part.stop - part.start, -1)
        return rows.reshape(1, -1, *shape)

    @run.register
    def _(self, of: Attend) -> None:
        pages = of.pages
        names = f"{pages.prefix}keys", f"{pages.prefix}values"
        for part, slot in self.texts():
            q, k, v = (
                self[x][part].reshape(1, -1, heads, x.width // heads)
                for x, heads in ((of.q, of.heads), (of.k, pages.heads), (of.v, pages.heads))
            )
            keys, values = (slot[name][None] for name in names)
            call = Softmax(q, k, v, keys, values, slot[SEEN], None, of.scale, causal=True, window=pages.window)
            out, after = softmax.padded(call)
            self[of.out][part] = out[0].flatten(1)
            slot |= dict(zip(names, (after.keys[0], after.values[0]), strict=True))


def width(x: Value | Tensor) -> int:
    return x.width if isinstance(x, Value) else x.shape[-1]
