"""Laws of what a call leaves alone: the past, other rows, its inputs, the place of numbers in memory, its last run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from rebracket.testing.budgets import budget, check, check_all, check_equal
from rebracket.testing.results import exact, results, values
from rebracket.testing.rows import LOW, Law, Operator, Row, few, in_every_mode
from rebracket.testing.samples import SHAPES, SWEEP, Case, draw


def future_stays_out(op: Operator, row: Row) -> None:
    """Outputs before t are bitwise the same when everything at t or later is another.

    Other numbers, that is: an infinity at t meets a weight of 0 in its own chunk, which gives NaN before t.
    """
    s = draw(row.case)
    before = op.attend(s, row).out
    for t in (1, 6, 15, 16, 17, s.T - 1):
        other = s.timed(lambda x, entries, t=t: torch.cat((x[:, : t * entries], another(x)[:, t * entries :]), 1))
        check_equal(f"out before {t}", op.attend(other, row).out[:, :t], before[:, :t])


def another(x: Tensor) -> Tensor:
    """Other numbers of the same kind: those of other rows, heads and channels, and smaller."""
    return 0.7 * x.flip(0, *range(2, x.ndim))


def ordered() -> Iterator[Row]:
    yield from in_every_mode([*few(), *few(shape="grouped")])
    yield from in_every_mode(few(torch.float32))
    yield from in_every_mode(few(torch.bfloat16))


def rows_do_not_meet(op: Operator, row: Row) -> None:
    """A row of a batch is what it is alone, whatever the others hold: bitwise on native backends."""
    s = draw(row.case)
    for b in range(s.q.shape[0]):
        alone = values(op.attend(s.rows(b, b + 1), row))
        spoiled = {name: spoil(x, b) for name, x in s.tensors().items() if name in ("q", "k", "v")}
        whole = op.attend(replace(s, **spoiled), row)
        found = values(whole._replace(out=whole.out[b : b + 1], state=whole.state.select([b])))
        for name, x in found.items():
            limit = budget(name, row.dtype) if row.backend == "reference" else 0.0
            check(f"row {b}: {name}", x, alone[name], limit)


def spoil(x: Tensor, kept: int) -> Tensor:
    """NaN in every row but one."""
    others = torch.arange(x.shape[0]) != kept
    return x.masked_fill(others.view(-1, *[1] * (x.ndim - 1)), torch.nan)


def batched() -> Iterator[Row]:
    return in_every_mode([*few(), *few(shape="grouped"), *few(torch.float32)])


def runs_repeat(op: Operator, row: Row) -> None:
    """Two runs give the same bits: outputs, state, gradients."""
    s = draw(row.case)
    first, second = (results(lambda x: op.attend(x, row), s) for _ in range(2))
    for name, x in first.items():
        check_equal(name, second[name], x)


def repeatable() -> Iterator[Row]:
    return in_every_mode(case for dtype in LOW for case in few(dtype))


def torch_defaults_change_nothing(op: Operator, row: Row) -> None:
    """What dtype torch gives to new tensors by default does not matter: outputs, state, gradients, steps."""
    s = draw(row.case)
    token = s.tokens(0, 1)
    wanted, step = results(lambda x: op.attend(x, row), s), values(op.step(token, row, False))
    for dtype in (torch.float64, torch.bfloat16):
        with default_dtype(dtype):
            found, again = results(lambda x: op.attend(x, row), s), values(op.step(token, row, False))
        for name, x in (found | {f"step {key}": y for key, y in again.items()}).items():
            check_equal(f"{name} under {dtype}", x, (wanted | {f"step {key}": y for key, y in step.items()})[name])


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def inputs_stay_untouched(op: Operator, row: Row) -> None:
    """No input is written to, by the call, by its backward pass or by a step."""
    s = draw(row.case)
    held = s.map(lambda _, x: x.clone().requires_grad_())
    results(lambda _: op.attend(held, row), s)
    if held.cu_seqlens is None:
        op.step(held.tokens(0, 1), row, False)
    for name, x in held.tensors().items():
        check_equal(name, x, s.tensors()[name])


def touched() -> Iterator[Row]:
    return in_every_mode([case for shape in SHAPES for case in few(shape=shape)])


def layouts_change_nothing(op: Operator, row: Row) -> None:
    """Transposed, strided and shifted inputs are the plain ones, and so are expanded ones; gradients included."""
    s = draw(row.case)
    wanted = results(lambda x: op.attend(x, row), s)
    for name, layout in LAYOUTS.items():
        moved = results(lambda x, layout=layout: op.attend(x.map(lambda _, y: layout(y)), row), s)
        check_all(moved, wanted, row.dtype, f"{name}:")
    same, wide = (results(lambda x, f=f: op.attend(x.map(f), row), s) for f in (repeated, expanded))
    check_all(wide, same, row.dtype, "expanded:")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "head-first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim > 2 else x,
    "strided": lambda x: torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0],
    "shifted": lambda x: torch.cat((x.new_full((1,), torch.nan), x.reshape(-1)))[1:].view(x.shape),
}
"""The same numbers elsewhere in memory."""


def repeated(_: str, x: Tensor) -> Tensor:
    """The first row in place of every row, each in memory of its own."""
    return torch.cat([x[:1]] * x.shape[0])


def expanded(_: str, x: Tensor) -> Tensor:
    """The first row in place of every row, all in the same memory."""
    return x[:1].expand(x.shape)


def laid_out() -> Iterator[Row]:
    return (row for row in in_every_mode([*few(), *few(shape="packed")]) if row.mode != "parallel")


SIZE = 6
"""What sums over a thousand tokens or 320 channels make of a budget measured on 40 tokens and 4 channels."""


def any_shape(op: Operator, row: Row) -> None:
    """Every size of every letter gives what the token loop gives; T = 0 gives no output and the state as it was."""
    s = draw(row.case)
    found = results(lambda x: op.attend(x, row), s)
    for name, x in found.items():
        check(name, x, exact(row.case)[name], SIZE * budget(name, row.dtype))
    if s.T == 0 and s.state is not None:
        check_equal("state", found["state.memory"], s.state.memory)


def swept() -> Iterator[Row]:
    """Both kinds of decay and of rule over all sizes; in chunks of 64 where there are as many tokens."""
    for shape, size in SWEEP.items():
        for write, decay in (("additive", "channel"), ("delta", "token")):
            yield from in_every_mode([Case(write, decay, shape, torch.float32)], 64 if size.T > 33 else 16)


LAWS = (
    Law(future_stays_out, ordered),
    Law(rows_do_not_meet, batched),
    Law(runs_repeat, repeatable),
    Law(torch_defaults_change_nothing, repeatable),
    Law(inputs_stay_untouched, touched),
    Law(layouts_change_nothing, laid_out),
    Law(any_shape, swept),
)
