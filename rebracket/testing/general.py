"""Laws of every operator: it is its definition, however it is cut, packed, laid out in memory or used with torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.utils.checkpoint import checkpoint

from rebracket.testing.budgets import check, check_all, check_equal
from rebracket.testing.law import Result, Row, Run, Sample, each, kinds, law, results, values

LOW: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)


def every() -> Iterator[Row]:
    """All rows of all operators."""
    return (row for kind in kinds() for row in kind.every())


def few(
    *shapes: str, dtypes: Sequence[torch.dtype] = (torch.float64,), packed: bool | None = None
) -> Callable[[], Iterable[Row]]:
    """Some rows of all operators: the first shape in every dtype, the others in the first dtype; packed or not."""

    def rows() -> Iterator[Row]:
        found = (row for kind in kinds() for row in kind.few(shapes, dtypes))
        return (row for row in found if packed in (None, row.case.packed))

    return rows


@law(over=every)
def it_is_the_token_loop(run: Run, row: Row) -> None:
    """Outputs, state and every gradient are those of the definition in float64, one token after the other."""
    check_all(results(lambda s: run(s, row), row.case.draw()), row.case.exact(), row.case.limit)


@law(over=few("plain", "grouped", packed=False))
def cutting_changes_nothing(run: Run, row: Row) -> None:
    """A sequence in any pieces, the state passed on, gives the whole: outputs, state, gradients.

    In a short dtype the gradient of what all pieces share is rounded in each of them, and is left out.
    """
    s, short = row.case.draw(), row.dtype.itemsize < 4
    whole = collect(lambda x: run(x, row), s, short)
    for cuts in row.case.cuts(s.T):
        found = collect(lambda x, cuts=cuts: in_pieces(run, x, row, cuts), s, short)
        check_all(found, whole, lambda name: row.case.limit_of_pieces(name, row.backend), f"cut at {cuts}:")


def collect(run: Callable[[Any], Result], s: Sample, short: bool) -> dict[str, Tensor]:
    """The results, without gradients in a short dtype."""
    return values(run(s)) if short else results(run, s)


def in_pieces(run: Run, s: Any, row: Row, cuts: list[int]) -> Result:  # noqa: ANN401
    """The call cut at some tokens; a place named twice makes an empty piece."""
    out, carried = [], s.carried
    for start, stop in itertools.pairwise([0, *cuts, s.T]):
        piece, carried = run(s.tokens(start, stop).after(carried), row)
        out.append(piece)
    return torch.cat(out, 1), carried


@law(over=few("packings", packed=True))
def packed_equals_separate(run: Run, row: Row) -> None:
    """Packed sequences, empty ones too, are separate runs; NaN in the padding gives zeros and zero gradients."""
    clean = row.case.draw()
    end, short = int(clean.cu_seqlens[-1]), row.dtype.itemsize < 4
    found = results(lambda x: run(with_nan(x, end), row), clean)
    for name, x in {"out": found["out"], **padded_gradients(clean, found)}.items():
        padding = x[:, end * (1 if name == "out" else clean.entries(name, x)) :]
        check_equal(f"{name} in the padding", padding, torch.zeros_like(padding))
    wanted = collect(lambda x: x.joined([run(alone, row) for alone in x.sequences()]), clean, short)
    limits = lambda name: row.case.limit_of_pieces(name, row.backend)  # noqa: E731
    check_all({name: found[name] for name in wanted}, wanted, limits, f"{len(clean.cu_seqlens) - 1} sequences:")


def with_nan(s: Sample, end: int) -> Sample:
    """A packed sample with NaN in its padding."""
    return s.timed(lambda x, n: torch.cat((x[:, : end * n], torch.full_like(x[:, end * n :], torch.nan)), 1))


def padded_gradients(s: Sample, found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: found[f"grad {name}"] for name, x in s.tensors().items() if s.entries(name, x)}


@law(over=few("plain", "grouped", dtypes=(torch.float64, torch.float32, torch.bfloat16)))
def future_stays_out(run: Run, row: Row) -> None:
    """Outputs before t are bitwise the same when everything at t or later is another.

    Other numbers, that is: an infinity at t meets a weight of 0 in its own chunk, which gives NaN before t.
    """
    s = row.case.draw()
    before = run(s, row)[0]
    for t in sorted({t for t in (1, 6, 15, 16, 17, s.T // 3, s.T - 1) if 0 <= t < s.T}):
        other = s.timed(lambda x, n, t=t: torch.cat((x[:, : t * n], another(x)[:, t * n :]), 1))
        check_equal(f"out before {t}", run(other, row)[0][:, :t], before[:, :t])


def another(x: Tensor) -> Tensor:
    """Other numbers of the same kind: those of other rows, heads and channels, and smaller."""
    return 0.7 * x.flip(0, *range(2, x.ndim))


@law(over=few("plain", "grouped", dtypes=(torch.float64, torch.float32), packed=False))
def rows_do_not_meet(run: Run, row: Row) -> None:
    """A row of a batch is what it is alone, whatever the others hold: bitwise on native backends."""
    s = row.case.draw()
    limit = row.case.limit if row.backend == "reference" else lambda name: 0.0
    for b, sequence in enumerate(s.sequences()):
        out, carried = run(s.map(lambda name, x, b=b: spoil(x, b) if name in s.free else x), row)
        mine = values((out[b : b + 1], each(carried, lambda x, b=b: x[b : b + 1])))
        check_all(mine, values(run(sequence, row)), limit, f"row {b}:")


def spoil(x: Tensor, kept: int) -> Tensor:
    """NaN in every row but one."""
    others = torch.arange(x.shape[0]) != kept
    return x.masked_fill(others.view(-1, *[1] * (x.ndim - 1)), torch.nan)


@law(over=few("plain", dtypes=LOW))
def runs_repeat(run: Run, row: Row) -> None:
    """Two runs give the same bits: outputs, state, gradients."""
    first, second = (results(lambda x: run(x, row), row.case.draw()) for _ in range(2))
    same_bits(second, first)


def same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str = "") -> None:
    for name, x in wanted.items():
        check_equal(f"{name} {what}".strip(), found[name], x)


@law(over=few("plain", dtypes=LOW))
def torch_defaults_change_nothing(run: Run, row: Row) -> None:
    """What dtype torch gives to new tensors by default does not matter: outputs, state, gradients."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for dtype in (torch.float64, torch.bfloat16):
        with default_dtype(dtype):
            found = results(lambda x: run(x, row), s)
        same_bits(found, wanted, f"under {dtype}")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@law(over=few("plain", "grouped", "packed"))
def inputs_stay_untouched(run: Run, row: Row) -> None:
    """No input is written to, by the call or by its backward pass."""
    s = row.case.draw()
    held = s.map(lambda _, x: x.clone().requires_grad_())
    results(lambda _: run(held, row), s)
    same_bits(held.tensors(), s.tensors())


@law(over=lambda: (row for row in few("plain", "packed")() if row.mode != "parallel"))
def layouts_change_nothing(run: Run, row: Row) -> None:
    """Transposed, strided and shifted inputs are the plain ones, and so are expanded ones; gradients included."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for name, layout in LAYOUTS.items():
        moved = results(lambda x, layout=layout: run(x.map(lambda _, y: layout(y)), row), s)
        check_all(moved, wanted, row.case.limit, f"{name}:")
    short = row.dtype.itemsize < 4  # the gradient of an expanded tensor is a sum of rounded ones
    same, wide = (collect(lambda x, f=f: run(x.map(lambda _, y: f(y)), row), s, short) for f in (repeated, expanded))
    check_all(wide, same, row.case.limit, "expanded:")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "head-first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim > 2 else x,
    "strided": lambda x: torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0],
    "part": lambda x: torch.cat((torch.full_like(x, torch.nan), x), -1)[..., x.shape[-1] :],
    "shifted": lambda x: torch.cat((x.new_full((1,), torch.nan), x.reshape(-1)))[1:].view(x.shape),
}
"""The same numbers elsewhere in memory."""


def repeated(x: Tensor) -> Tensor:
    """The first row in place of every row, each in memory of its own."""
    return torch.cat([x[:1]] * x.shape[0])


def expanded(x: Tensor) -> Tensor:
    """The first row in place of every row, all in the same memory."""
    return x[:1].expand(x.shape)


@law(over=few("small", "small_packed"))
def any_gradient_alone(run: Run, row: Row) -> None:
    """The gradient of one input alone, or of the outputs or the state alone, is what it is among all."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for name in s.tensors():
        alone = results(lambda x: run(x, row), s, frozenset([name]))
        check_all(alone, {key: wanted[key] for key in alone}, row.case.limit, f"only {name}:")
    parts = [results(lambda x, part=part: part(run(x, row)), s) for part in (outputs_only, state_only)]
    for key in (key for key in wanted if key.startswith("grad")):
        check(f"{key} in two parts", parts[0][key] + parts[1][key], wanted[key], row.case.limit(key))


def outputs_only(found: Result) -> Result:
    return found[0], each(found[1], Tensor.detach)


def state_only(found: Result) -> Result:
    return found[0].detach(), found[1]


@law(over=few("smooth_product"), adapts=False)
def gradients_are_derivatives(run: Run, row: Row) -> None:
    """gradcheck: the gradient of every output and state entry by every input is what finite differences say."""
    differentiate(gradcheck, run, row)


@law(over=few("smooth"), adapts=False)
def gradients_have_gradients(run: Run, row: Row) -> None:
    """gradgradcheck: the same of the gradients themselves."""
    differentiate(gradgradcheck, run, row)


def differentiate(checker: Callable[..., bool], run: Run, row: Row) -> None:
    s = row.case.draw()
    try:
        checker(lambda x: flat(values(run(unflat(s, x), row))), flat(s.tensors()).requires_grad_(), fast_mode=True)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def flat(named: dict[str, Tensor]) -> Tensor:
    """All numbers in one vector: finite differences are then taken once, along a random direction of all inputs."""
    return torch.cat([x.reshape(-1) for x in named.values()])


def unflat(s: Sample, numbers: Tensor) -> Sample:
    """A sample with the numbers of a vector."""
    named = s.tensors()
    parts = dict(zip(named, numbers.split([x.numel() for x in named.values()]), strict=True))
    return s.map(lambda name, x: parts[name].view(x.shape))


@law(over=few("small", "packed"))
def checkpointing_changes_nothing(run: Run, row: Row) -> None:
    """Under torch.utils.checkpoint, reentrant or not, the same results."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for reentrant in (False, True):
        found = results(lambda x, reentrant=reentrant: checkpointed(run, x, row, reentrant), s)
        check_all(found, wanted, row.case.limit, f"use_reentrant={reentrant}:")


def checkpointed(run: Run, s: Sample, row: Row, reentrant: bool) -> Result:
    carried: list[Any] = []

    def inner(numbers: Tensor) -> tuple[Tensor, ...]:
        result = run(unflat(s, numbers), row)
        carried.append(result[1])
        return tuple(values(result).values())

    out, *held = checkpoint(inner, flat(s.tensors()), use_reentrant=reentrant)
    parts = iter(held)
    return out, each(carried[0], lambda _: next(parts))


@law(over=few("plain", "packed", dtypes=(torch.float32, torch.float16)))
def autocast_stays_out(run: Run, row: Row) -> None:
    """Under autocast to bfloat16 the same bits; the backward pass is taken outside it, as torch asks for."""

    def cast(s: Sample) -> Result:
        with torch.autocast("cpu", torch.bfloat16):
            return run(s, row)

    s = row.case.draw()
    same_bits(results(cast, s), results(lambda x: run(x, row), s))


@law(over=few("plain", "grouped", "packed", dtypes=(torch.float32,)))
def inference_mode_changes_nothing(run: Run, row: Row) -> None:
    """Under inference_mode and no_grad the same bits, from a state made there as well."""
    s = row.case.draw()
    wanted = twice(run, s, row)
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            found = twice(run, s, row)
        same_bits(found, wanted)


@law(over=few("plain", "grouped", "packed", dtypes=(torch.float32,)))
def learning_goes_on_from_inference_mode(run: Run, row: Row) -> None:
    """From what a call in inference mode handed on, the same results and gradients as from any other."""
    s = row.case.draw()
    with torch.inference_mode():
        carried = run(s, row)[1]
    wanted = results(lambda x: run(x.after(each(carried, torch.clone)), row), s)
    same_bits(results(lambda x: run(x.after(carried), row), s), wanted)


def twice(run: Run, s: Sample, row: Row) -> dict[str, Tensor]:
    """Outputs and state, and those of a second call from that state."""
    first = run(s, row)
    second = run(s.after(first[1]), row)
    return values(first) | {f"again {name}": x for name, x in values(second).items()}
