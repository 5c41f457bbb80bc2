"""From a graph to the operations of csrc/program.cpp: what is merged, where buffers lie, how weights are packed."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from itertools import pairwise
from typing import Any, Literal, cast, final, get_args

import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.program import layout
from rebracket.backends.cpu.program.layout import ProgramCall, Span
from rebracket.ops.program import (
    Attend,
    Convolve,
    CosineWeight,
    Embed,
    Exponentials,
    Function,
    Graph,
    Map,
    Norm,
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

Weights = Literal["float32", "bfloat16", "int8"]
FORMATS: dict[Weights, int] = {"float32": layout.WHOLE, "bfloat16": layout.HALF, "int8": layout.BYTE}
FUNCTIONS, PAIRINGS, NORMS = ({name: i for i, name in enumerate(get_args(x))} for x in (Function, Pairing, Norm))
BLOCK = 32 << 20
"""Bytes of memory that are taken at once for weights."""


@final
@dataclass(frozen=True, eq=False)
class Gather(Operation):
    """The rows whose logits are wanted, one after another."""

    x: Value
    out: Value


@final
@dataclass(frozen=True, eq=False)
class Quantize(Operation):
    """x = factors * out in each of `groups` parts, out in bytes."""

    x: Value
    out: Value
    factors: Value
    groups: int


@final
@dataclass(frozen=True, eq=False)
class ByteProduct(Operation):
    """A product of int8 weights and what QUANTIZE made of x."""

    product: Product
    out: Value
    plus: Value | None
    x: Value
    factors: Value


KINDS: tuple[type[Operation], ...] = (
    *(Embed, Product, Quantize, Select, Map, Pair, Normalize, Sum, Exponentials, Convolve, Rotate, CosineWeight),
    *(Recur, Attend, Gather),
)
"""In the order of `Kind` in csrc/program.h."""
APART = (Product, ByteProduct, Convolve, Recur, Attend)
"""Operations that are a phase of their own."""


def values(operation: Operation) -> Iterator[Value]:
    """All values that an operation reads or writes."""
    return (x for x in vars(operation).values() if isinstance(x, Value))


def padded(size: int, unit: int = ProgramCall.LANES) -> int:
    """The size up to the next multiple of a unit."""
    return -(-size // unit) * unit


@final
class Rewriter:
    """A graph while it is changed into what is run: the body, then the head, and the widths of all buffers."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.weights: Weights = weights
        self.widths = list(graph.widths)
        self.body, moved = self.merged(list(self.decayed(graph.body)))
        self.head, further = self.merged([renamed(op, moved) for op in self.decayed(graph.head)])
        self.logits = at_new_place(at_new_place(graph.logits, moved), further)
        self.head = [*self.gathered(), *self.head]
        if weights == "int8":
            self.body, self.head = (list(self.quantized(part)) for part in (self.body, self.head))

    def buffer(self, width: int) -> Value:
        self.widths.append(width)
        return Value(len(self.widths) - 1, width)

    def decayed(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        """Recurrences that read factors in place of log-decays."""
        for op in operations:
            if not isinstance(op, Recur) or op.log_decay is None:
                yield op
            elif isinstance(op.log_decay, Tensor):
                yield replace(op, log_decay=factors(op.log_decay))
            else:
                factor = self.buffer(op.log_decay.width)
                yield Map(op.log_decay, factor, "exp", 1.0, 1.0)
                yield replace(op, log_decay=factor)

    def merged(self, operations: list[Operation]) -> tuple[list[Operation], dict[int, Value]]:
        """Products of one input as one product, whose output holds theirs side by side, and where each output went."""
        kept: dict[int, Operation] = dict(enumerate(operations))
        moved: dict[int, Value] = {}
        for places in self.joinable(operations):
            products = [op for op in map(operations.__getitem__, places) if isinstance(op, Product)]
            out = self.buffer(sum(op.out.width for op in products))
            parts = out.split(*(op.out.width for op in products))
            moved |= {op.out.buffer: part for op, part in zip(products, parts, strict=True)}
            kept[places[0]] = joined(products, out)
            for i in places[1:]:
                del kept[i]
        return [renamed(op, moved) for op in kept.values()], moved

    def joinable(self, operations: Sequence[Operation]) -> list[list[int]]:
        """Places of products that can be computed where the first of them is."""
        written = {op_out(op).buffer: i for i, op in enumerate(operations)}
        found: dict[tuple[Value, bool], list[int]] = {}
        for i, op in enumerate(operations):
            if isinstance(op, Product) and op.groups == 1 and op.plus is None:
                places = found.setdefault((op.x, op.exact and self.weights != "float32"), [i])
                if i > places[0] > written.get(op.x.buffer, -1):
                    places.append(i)
        return [places for places in found.values() if len(places) > 1]

    def gathered(self) -> list[Operation]:
        """The rows that the head reads of the body's values, gathered; the head is changed to read these."""
        own = {op_out(op).buffer for op in self.head}
        read = {x.buffer for op in self.head for x in values(op)} | {self.logits.buffer}
        gathers, moved = [], {}
        for buffer in sorted(read - own):
            x = Value(buffer, self.widths[buffer])
            moved[buffer] = self.buffer(x.width)
            gathers.append(Gather(x, moved[buffer]))
        self.head = [renamed(op, moved) for op in self.head]
        self.logits = at_new_place(self.logits, moved)
        return gathers

    def quantized(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        """Products of int8 weights, each after what makes bytes of its input."""
        for op in operations:
            if not isinstance(op, Product) or op.exact:
                yield op
                continue
            K = op.x.width // op.groups
            x, factor = self.buffer(op.groups * padded(K, 4) // 4), self.buffer(op.groups)
            yield Quantize(op.x, x, factor, op.groups)
            yield ByteProduct(op, op.out, op.plus, x, factor)


def op_out(operation: Operation) -> Value:
    """What an operation writes."""
    return vars(operation)["out"]


def factors(log_decay: Tensor) -> Tensor:
    """exp of log-decays, 0 where a float is too small, as the kernels have it."""
    factor = log_decay.detach().double().exp()
    return torch.where(factor < torch.finfo(torch.float32).tiny, 0.0, factor).float()


def joined(products: Sequence[Product], out: Value) -> Product:
    """Products of one input as one."""
    weight = torch.cat([number(op.weight) for op in products])
    bias = None
    if any(op.bias is not None for op in products):
        bias = torch.cat([torch.zeros(op.out.width) if op.bias is None else number(op.bias) for op in products])
    return replace(products[0], out=out, weight=weight, bias=bias)


def renamed(operation: Operation, moved: dict[int, Value]) -> Operation:
    """An operation whose values lie where their buffers were moved to."""
    changes = {name: at_new_place(x, moved) for name, x in vars(operation).items() if isinstance(x, Value)}
    return replace(cast("Any", operation), **changes)


def at_new_place(x: Value, moved: dict[int, Value]) -> Value:
    whole = moved.get(x.buffer)
    return x if whole is None else whole.part(x.begin, x.width)


def number(x: Tensor) -> Tensor:
    """A weight in float32 on the CPU."""
    return x.detach().to("cpu", torch.float32).contiguous()


def phases(operations: Sequence[Operation]) -> list[int]:
    """The phase of each operation: neighbours that need their own row alone take a few rows at a time together."""
    found = [0]
    for before, op in pairwise(operations):
        together = not isinstance(before, APART) and not isinstance(op, APART)
        found.append(found[-1] + (not together))
    return found


def lifetimes(operations: Sequence[Operation], last: Value) -> dict[int, tuple[int, int]]:
    """In which phase each buffer is used for the first and the last time; `last` to the end."""
    found: dict[int, tuple[int, int]] = {}
    for phase, op in zip(phases(operations), operations, strict=True):
        for x in values(op):
            found[x.buffer] = (found.get(x.buffer, (phase, phase))[0], phase)
    return found | {last.buffer: (found[last.buffer][0], len(operations))}


def arranged(sizes: dict[int, int], lives: dict[int, tuple[int, int]]) -> tuple[dict[int, int], int]:
    """Places of buffers in one block, and its size: two that live at the same time do not overlap."""
    places: dict[int, int] = {}
    for buffer in sorted(lives, key=lambda x: (lives[x][0], -sizes[x])):
        first, last = lives[buffer]
        others = sorted(
            (places[x], places[x] + sizes[x]) for x in places if lives[x][0] <= last and first <= lives[x][1]
        )
        place = 0
        for begin, end in others:
            if place + sizes[buffer] <= begin:
                break
            place = max(place, end)
        places[buffer] = place
    return places, max(places[x] + sizes[x] for x in places)


@final
class Memory:
    """Blocks of memory on large pages, from which weights take their room, and a digest of all that they hold."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.used = 0
        self.digest = hashlib.sha256()

    def take(self, nbytes: int) -> Tensor:
        """New bytes, aligned to 64."""
        if not self.blocks or self.used + nbytes > self.blocks[-1].numel():
            self.blocks.append(library.empty(max(BLOCK, nbytes), dtype=torch.uint8))
            self.used = 0
        begin, self.used = self.used, padded(self.used + nbytes, 64)
        return self.blocks[-1][begin : begin + nbytes]

    def keep(self, x: Tensor) -> int:
        """The address of a copy."""
        room = self.take(x.nbytes)
        room.view(x.dtype).copy_(x.flatten())
        self.digest.update(room.numpy().data)
        return room.data_ptr()


@final
class Compiler:
    """The operations of a rewritten graph as the kernels read them.

    Attributes:
        body, head: the operations.
        logits: where the logits of the wanted rows are.
        vocab: tokens that the embedding has.
        record_size: numbers that a drafted row leaves behind.
        page_size: numbers of a page.
        scratch_size: numbers that a thread needs.
        memory: the weights.
    """

    def __init__(self, graph: Graph, weights: Weights, rows: int, most_tokens: int) -> None:
        self.format, self.rows = FORMATS[weights], rows
        self.memory, self.vocab, self.record_size = Memory(), 0, 0
        self.memory.digest.update(repr([weights, *map(described, (*graph.body, *graph.head))]).encode())
        self.paged: dict[int, int] = {}
        self.page_size = 0
        for paged in graph.paged:
            self.paged[paged.index] = self.page_size
            self.page_size += ProgramCall.PAGE_TOKENS * paged.heads * (paged.key_dim + paged.value_dim)
        rewritten = Rewriter(graph, weights)
        self.arrange(rewritten)
        self.scratch_size = 4 * rewritten.logits.width
        self.most_tokens = most_tokens
        self.body, self.head = (self.emitted(part) for part in (rewritten.body, rewritten.head))
        self.logits = self.span(rewritten.logits)

    def arrange(self, rewritten: Rewriter) -> None:
        """Takes memory for the buffers of all rows."""
        # A stride that is a multiple of 1 KiB would put the same entry of all rows into a few sets of the cache.
        self.strides = [padded(width) + 16 * (padded(width) % 256 == 0) for width in rewritten.widths]
        lives = lifetimes([*rewritten.body, *rewritten.head], rewritten.logits)
        self.places, size = arranged({x: self.rows * self.strides[x] for x in lives}, lives)
        self.workspace = library.empty(size).zero_()

    def emitted(self, operations: Sequence[Operation]) -> ctypes.Array[layout.Operation]:
        array = (layout.Operation * len(operations))()
        for to, op in zip(array, operations, strict=True):
            to.kind = KINDS.index(Product if isinstance(op, ByteProduct) else type(op))
            to.out, to.key_sum = self.span(op_out(op)), -1
            self.emit(op, to)
        return array

    def span(self, x: Value | Tensor | None) -> Span:
        """Where the kernels find a value or a weight."""
        if x is None:
            return Span(None, 0, 0)
        if isinstance(x, Tensor):
            return Span(self.keep(x), 0, x.numel())
        begin = self.places[x.buffer] + x.begin
        return Span(self.workspace.data_ptr() + 4 * begin, self.strides[x.buffer], x.width)

    def keep(self, x: Tensor | None) -> int | None:
        return None if x is None else self.memory.keep(number(x))

    def need(self, numbers: int) -> None:
        self.scratch_size = max(self.scratch_size, numbers)

    def record(self, numbers: int) -> int:
        """The place of an operation's part in the record of a drafted row."""
        begin, self.record_size = self.record_size, self.record_size + padded(numbers)
        return begin

    @singledispatchmethod
    def emit(self, op: Operation, to: layout.Operation) -> None:
        raise NotImplementedError(f"{type(op).__name__} is no operation that the CPU programs know")

    @emit.register
    def _(self, op: Embed, to: layout.Operation) -> None:
        to.weight, self.vocab = self.keep(op.table), op.table.shape[0]

    @emit.register
    def _(self, op: Gather, to: layout.Operation) -> None:
        to.x = self.span(op.x)

    @emit.register
    def _(self, op: Product, to: layout.Operation) -> None:
        self.emit_product(op, layout.WHOLE if op.exact else self.format, to)
        to.x = self.span(op.x)

    @emit.register
    def _(self, op: ByteProduct, to: layout.Operation) -> None:
        if not bool(op.product.weight.isfinite().all()):
            raise ValueError("weights must be finite to be rounded to int8, some are NaN or infinite")
        self.emit_product(op.product, layout.BYTE, to)
        bytes_of_row = self.span(op.x)
        to.x, to.k = Span(bytes_of_row.data, bytes_of_row.stride, op.product.x.width), self.span(op.factors)

    def emit_product(self, op: Product, form: int, to: layout.Operation) -> None:
        to.format, to.groups = form, op.groups
        to.v, to.bias = self.span(op.plus), self.keep(op.bias)
        (N, K), weight = op.weight.shape, number(op.weight)
        each = {layout.WHOLE: K * 64, layout.HALF: padded(K, 2) * 32, layout.BYTE: padded(K, 4) * 16 + 128}[form]
        room = self.memory.take(padded(N) // ProgramCall.LANES * each)
        to.weight = room.data_ptr()
        packing = layout.Packing(weight.data_ptr(), to.weight, N, K, form)
        library.kernel("program_pack", layout.Packing)(ctypes.byref(packing))
        self.memory.digest.update(room.numpy().data)

    @emit.register
    def _(self, op: Quantize, to: layout.Operation) -> None:
        to.x, to.k, to.groups = self.span(op.x), self.span(op.factors), op.groups

    @emit.register
    def _(self, op: Select, to: layout.Operation) -> None:
        to.x, to.weight = self.span(op.x), self.keep(op.factor)
        to.index = self.memory.keep(op.index.to("cpu", torch.int64))

    @emit.register
    def _(self, op: Map, to: layout.Operation) -> None:
        to.x, to.function, to.before, to.after = self.span(op.x), FUNCTIONS[op.function], op.before, op.after

    @emit.register
    def _(self, op: Pair, to: layout.Operation) -> None:
        to.x, to.k, to.function = self.span(op.x), self.span(op.y), PAIRINGS[op.function]

    @emit.register
    def _(self, op: Normalize, to: layout.Operation) -> None:
        to.x, to.function, to.groups, to.eps = self.span(op.x), NORMS[op.norm], op.groups, op.eps
        part = op.x.width // op.groups
        to.weight, to.bias = (self.keep(None if x is None else spread(x, op.x.width)) for x in (op.weight, op.bias))
        to.weight_step = part

    @emit.register
    def _(self, op: Sum, to: layout.Operation) -> None:
        to.x = self.span(op.x)

    @emit.register
    def _(self, op: Exponentials, to: layout.Operation) -> None:
        to.x, to.groups, to.flag = self.span(op.x), op.groups, op.divided

    @emit.register
    def _(self, op: Convolve, to: layout.Operation) -> None:
        D, W = op.weight.shape
        if W > ProgramCall.MOST_WIDTH:
            raise ValueError(f"a short convolution takes at most {ProgramCall.MOST_WIDTH} tokens, got {W}")
        to.x, to.weight, to.bias = self.span(op.x), self.keep(op.weight.T), self.keep(op.bias)
        to.width, to.flag, to.held, to.record = W, op.silu, op.tail.offset, self.record(D)

    @emit.register
    def _(self, op: Rotate, to: layout.Operation) -> None:
        pairs = torch.arange(op.x.width // op.heads // 2, dtype=torch.float64)
        to.x, to.heads = self.span(op.x), op.heads
        to.weight = self.memory.keep(op.base ** (-pairs / len(pairs)))
        self.need(2 * len(pairs))

    @emit.register
    def _(self, op: CosineWeight, to: layout.Operation) -> None:
        to.x, to.heads, to.width = self.span(op.x), op.heads, op.horizon

    @emit.register
    def _(self, op: Recur, to: layout.Operation) -> None:
        if op.bonus is not None and op.per_token > 1:
            raise ValueError(f"a bonus goes with one write a token, got {op.per_token}")
        H, K, V = op.memory.shape
        to.x, to.k, to.v, to.r = (self.span(x) for x in (op.q, op.k, op.v, op.r))
        to.beta, to.decay, to.weight = self.span(op.beta), self.span(op.log_decay), self.keep(op.bonus)
        to.query_heads, to.key_heads, to.heads, to.per_token = op.query_heads, op.key_heads, op.heads, op.per_token
        to.key_dim, to.value_dim, to.after = K, V, op.scale
        to.held, to.key_sum = op.memory.offset, -1 if op.key_sum is None else op.key_sum.offset
        to.record = self.record(op.per_token * H * (K + V + 1) + to.decay.width)
        self.need(2 * self.rows + K * V + K)

    @emit.register
    def _(self, op: Attend, to: layout.Operation) -> None:
        to.x, to.k, to.v = (self.span(x) for x in (op.q, op.k, op.v))
        to.query_heads, to.heads, to.after, to.width = op.heads, op.pages.heads, op.scale, op.pages.window or 0
        to.key_dim, to.value_dim, to.paged = op.pages.key_dim, op.pages.value_dim, self.paged[op.pages.index]
        self.need(self.most_tokens + 2 * ProgramCall.LANES)


def described(operation: Operation) -> tuple[str, dict[str, Any]]:
    """An operation without the numbers of its weights."""
    plain = {name: list(x.shape) if isinstance(x, Tensor) else x for name, x in vars(operation).items()}
    return type(operation).__name__, plain


def spread(weight: Tensor, width: int) -> Tensor:
    """A weight of one part or of all as one of all."""
    return weight.repeat(width // weight.numel())
