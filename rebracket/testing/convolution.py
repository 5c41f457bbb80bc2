"""Laws of the short convolution: against a token loop, in pieces, packed, and in what it leaves alone.

for law in LAWS:
    for row in rows("reference"):
        law(SOUND, row)
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rebracket.ops.backend import INSTALLED
from rebracket.ops.call import Activation, Convolution
from rebracket.ops.convolution import short_convolution
from rebracket.testing.budgets import budget, check, check_all, check_equal
from rebracket.testing.guarantees import another, spoil
from rebracket.testing.results import loss


@final
@dataclass(frozen=True)
class Shape:
    """The letters of a call, and the offsets when its sequences are packed."""

    B: int
    T: int
    D: int
    offsets: tuple[int, ...] | None = None


SHAPES: dict[str, Shape] = {
    "plain": Shape(B=3, T=19, D=21),
    "packed": Shape(B=1, T=37, D=5, offsets=(0, 0, 5, 6, 6, 9, 34)),
    "empty": Shape(B=2, T=0, D=3),
    "token": Shape(B=2, T=1, D=37),
    "wide": Shape(B=2, T=600, D=1100),
    "wide_packed": Shape(B=1, T=620, D=1100, offsets=(0, 1, 260, 260, 600)),
}
"""Sizes off the width of any vector; the last two are more than one block of tokens and strip of channels."""
WIDTHS = (1, 2, 4, 11)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True)
class Row:
    """One setting of every axis."""

    shape: str = "plain"
    width: int = 4
    activation: Activation = "silu"
    bias: bool = True
    dtype: torch.dtype = torch.float64
    backend: str = "reference"

    def __str__(self) -> str:
        parts = (self.backend, self.shape, f"W{self.width}", self.activation, "bias" * self.bias, str(self.dtype)[6:])
        return "-".join(x for x in parts if x)


Run = Callable[[Convolution, str], tuple[Tensor, Tensor]]
"""What a law is asked about: a call on a backend by name. A planted fault is another one."""
Law = Callable[[Run, Row], None]
NAMES = ("x", "weight", "bias", "tail")


def sound(call: Convolution, backend: str) -> tuple[Tensor, Tensor]:
    """`short_convolution` itself."""
    return short_convolution(
        call.x, call.weight, call.bias, call.tail, call.cu_seqlens, activation=call.activation, backend=backend
    )


SOUND: Run = sound


def rows(backend: str) -> Iterator[Row]:
    """The rows that a backend covers."""
    return (row for row in every_row(backend) if INSTALLED[backend].covers(draw(row)) is None)


def every_row(backend: str) -> Iterator[Row]:
    """The product of shapes, widths and dtypes with and without activation and bias; one width over long shapes."""
    long = [name for name in SHAPES if "wide" in name]
    for shape, width, dtype in itertools.product([x for x in SHAPES if x not in long], WIDTHS, DTYPES):
        yield Row(shape, width, "silu", True, dtype, backend)
        yield Row(shape, width, None, False, dtype, backend)
    yield from (Row(shape, 4, "silu", True, dtype, backend) for shape, dtype in itertools.product(long, DTYPES))


def draw(row: Row) -> Convolution:
    """The call of a row: the same numbers every time, rounded to its dtype."""
    shape = SHAPES[row.shape]
    generator = torch.Generator().manual_seed(zlib.crc32(f"{row.shape}{row.width}".encode()))
    N = shape.B if shape.offsets is None else len(shape.offsets) - 1
    sizes = ((shape.B, shape.T, shape.D), (shape.D, row.width), (shape.D,), (N, row.width - 1, shape.D))
    x, weight, bias, tail = (torch.randn(s, generator=generator, dtype=torch.float64).to(row.dtype) for s in sizes)
    offsets = None if shape.offsets is None else torch.tensor(shape.offsets)
    return Convolution(x, weight, bias if row.bias else None, tail, offsets, row.activation)


def tensors(call: Convolution) -> dict[str, Tensor]:
    """Everything that a gradient can be asked for, by name."""
    return {name: x for name in NAMES if (x := getattr(call, name)) is not None}


def each(call: Convolution, change: Callable[[str, Tensor], Tensor]) -> Convolution:
    """A copy whose tensors went through `change`, which is told their names."""
    return replace(call, **{name: change(name, x) for name, x in tensors(call).items()})


def values(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"out": result[0], "tail": result[1]}


def results(run: Callable[[Convolution], tuple[Tensor, Tensor]], call: Convolution) -> dict[str, Tensor]:
    """y and the tail, and the gradient of every input against fixed random cotangents."""
    leaves = each(call, lambda _, x: x.detach().clone().requires_grad_())
    found = values(run(leaves))
    loss(found).backward()
    grads = {f"grad {name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in tensors(leaves).items()}
    return {name: x.detach() for name, x in found.items()} | grads


def compare(found: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype, what: str = "") -> None:
    """Outputs and gradients within their budgets; the tail is copied, so it is equal."""
    check_equal(f"{what} tail".strip(), found.pop("tail"), wanted["tail"].to(dtype))
    check_all(found, {name: x for name, x in wanted.items() if name != "tail"}, dtype, what)


def limit(row: Row) -> float:
    """How far two ways to the same output may lie apart: not at all on a native backend."""
    return budget("out", row.dtype) if row.backend == "reference" else 0.0


def sequences(call: Convolution) -> Iterator[Convolution]:
    """Each packed sequence, or row, by itself."""
    offsets = None if call.cu_seqlens is None else call.cu_seqlens.tolist()
    for n in range(call.sequences):
        x = call.x[n : n + 1] if offsets is None else call.x[:, offsets[n] : offsets[n + 1]]
        yield replace(call, x=x, tail=None if call.tail is None else call.tail[n : n + 1], cu_seqlens=None)


def joined(call: Convolution, found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The results of single sequences as those of the call: zeros beyond the last."""
    if call.cu_seqlens is None:
        return torch.cat([y for y, _ in found]), torch.cat([tail for _, tail in found])
    beyond = torch.zeros_like(call.x[:, int(call.cu_seqlens[-1]) :])
    return torch.cat([*(y for y, _ in found), beyond], 1), torch.cat([tail for _, tail in found])


def token_loop(call: Convolution) -> tuple[Tensor, Tensor]:
    """The formula, one token of one sequence after the other."""
    return joined(call, [one_sequence(alone) for alone in sequences(call)])


def one_sequence(call: Convolution) -> tuple[Tensor, Tensor]:
    x, W = call.x[0], call.weight.shape[1]
    seen = list(x.new_zeros(W - 1, x.shape[1]) if call.tail is None else call.tail[0])
    out = []
    for token in x:
        seen.append(token)
        z = torch.zeros_like(token) if call.bias is None else call.bias
        for j in range(W):
            z = z + call.weight[:, j] * seen[len(seen) - W + j]
        out.append(z / (1 + torch.exp(-z)) if call.activation == "silu" else z)
    last = seen[len(seen) - W + 1 :]
    return torch.stack(out)[None] if out else call.x, torch.stack(last)[None] if last else x.new_zeros(1, 0, x.shape[1])


def it_is_the_token_loop(run: Run, row: Row) -> None:
    """Outputs, tail and every gradient are those of the token loop in float64; no tail is zeros."""
    for call in (draw(row), replace(draw(row), tail=None)):
        wide = each(call, lambda _, x: x.double())
        compare(results(lambda c: run(c, row.backend), call), results(token_loop, wide), row.dtype)


def cutting_changes_nothing(run: Run, row: Row) -> None:
    """A sequence in any pieces, single tokens and empty ones too: the same outputs and tail, and gradients."""
    call = draw(row)
    T = call.x.shape[1]
    if call.cu_seqlens is not None:
        return
    whole, everywhere = values(run(call, row.backend)), list(range(1, min(T, 20)))
    for cuts in ([T // 2], [0, 0, T // 3, T], everywhere):
        found = values(in_pieces(run, call, row, cuts))
        check_equal(f"cut at {cuts}: tail", found["tail"], whole["tail"])
        check(f"cut at {cuts}: out", found["out"], whole["out"], limit(row))
    if row.dtype.itemsize >= 4:  # a shorter gradient of the weight is rounded in every piece
        wanted = results(lambda c: run(c, row.backend), call)
        compare(results(lambda c: in_pieces(run, c, row, everywhere), call), wanted, row.dtype, "in pieces:")


def in_pieces(run: Run, call: Convolution, row: Row, cuts: list[int]) -> tuple[Tensor, Tensor]:
    out, tail = [], call.tail
    for start, stop in itertools.pairwise([0, *cuts, call.x.shape[1]]):
        y, tail = run(replace(call, x=call.x[:, start:stop], tail=tail), row.backend)
        out.append(y)
    assert tail is not None
    return torch.cat(out, 1), tail


def packed_equals_separate(run: Run, row: Row) -> None:
    """Packed sequences, empty ones among them, are separate runs; what follows the last may be NaN and gives zeros."""
    call = draw(row)
    if call.cu_seqlens is None:
        return
    end = int(call.cu_seqlens[-1])
    poisoned = replace(call, x=torch.cat((call.x[:, :end], torch.full_like(call.x[:, end:], torch.nan)), 1))
    found = results(lambda c: run(c, row.backend), poisoned)
    wanted = results(lambda c: joined(c, [run(alone, row.backend) for alone in sequences(c)]), call)
    check("out", found["out"], wanted["out"], limit(row))
    check_equal("grad beyond the last", found["grad x"][:, end:], torch.zeros_like(call.x[:, end:]))
    if row.dtype.itemsize >= 4:
        compare(found, wanted, row.dtype)


def future_stays_out(run: Run, row: Row) -> None:
    """Outputs before t are bitwise the same when everything at t or later is another."""
    call = draw(row)
    before = run(call, row.backend)[0]
    for t in (call.x.shape[1] // 3, call.x.shape[1] - 1):
        other = torch.cat((call.x[:, :t], another(call.x)[:, t:]), 1)
        check_equal(f"out before {t}", run(replace(call, x=other), row.backend)[0][:, :t], before[:, :t])


def rows_do_not_meet(run: Run, row: Row) -> None:
    """A row of a batch is what it is alone, whatever the others hold."""
    call = draw(row)
    if call.cu_seqlens is not None:
        return
    for b, alone in enumerate(sequences(call)):
        y, tail = run(replace(call, x=spoil(call.x, b), tail=call.tail), row.backend)
        wanted = values(run(alone, row.backend))
        check(f"row {b}: out", y[b : b + 1], wanted["out"], limit(row))
        check_equal(f"row {b}: tail", tail[b : b + 1], wanted["tail"])


def layouts_change_nothing(run: Run, row: Row) -> None:
    """Part of a wider row, transposed and shifted inputs are the plain ones; gradients included."""
    call = draw(row)
    wanted = results(lambda c: run(c, row.backend), call)
    for name, layout in LAYOUTS.items():
        moved = results(lambda c, layout=layout: run(each(c, lambda _, x: layout(x)), row.backend), call)
        compare(moved, wanted, row.dtype, f"{name}:")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "part": lambda x: torch.cat((torch.full_like(x, torch.nan), x), -1)[..., x.shape[-1] :],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "shifted": lambda x: torch.cat((x.new_full((1,), torch.nan), x.reshape(-1)))[1:].view(x.shape),
}
"""The same numbers elsewhere in memory."""


def inputs_stay_untouched(run: Run, row: Row) -> None:
    """No input is written to, and the tail that is handed on is apart from them and keeps none of them alive."""
    call = draw(row)
    held = each(call, lambda _, x: x.clone().requires_grad_())
    y, tail = run(held, row.backend)
    loss({"out": y, "tail": tail}).backward()
    for name, x in tensors(held).items():
        check_equal(name, x, tensors(call)[name])
    if tail.untyped_storage().nbytes() != tail.nbytes:
        raise AssertionError(f"tail holds {tail.untyped_storage().nbytes()} bytes, expected {tail.nbytes}")


def runs_repeat(run: Run, row: Row) -> None:
    """Two runs give the same bits: outputs, tail, gradients."""
    first, second = (results(lambda c: run(c, row.backend), draw(row)) for _ in range(2))
    for name, x in first.items():
        check_equal(name, second[name], x)


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        it_is_the_token_loop,
        cutting_changes_nothing,
        packed_equals_separate,
        future_stays_out,
        rows_do_not_meet,
        layouts_change_nothing,
        inputs_stay_untouched,
        runs_repeat,
    )
}
"""The laws by name, each a function of a run and a row that raises an AssertionError with numbers."""


def broken(law: str, run: Run = SOUND, backend: str = "reference") -> tuple[Row, str] | None:
    """The first row on which a run breaks a law, with what the law says; None when it keeps it everywhere."""
    for row in rows(backend):
        try:
            LAWS[law](run, row)
        except AssertionError as error:
            return row, str(error)
    return None
