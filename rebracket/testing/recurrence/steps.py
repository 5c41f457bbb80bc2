"""Laws of steps, by `step` and by a prepared `Stepper`: they are the sequence, in place or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from rebracket.ops.state import State
from rebracket.testing.budgets import check, check_all, error
from rebracket.testing.general import collect, same_bits
from rebracket.testing.law import Row, Run, each, law, values
from rebracket.testing.operators.recurrence import LOW, STEPS, Case, few, in_steps

FLOAT64_AND_32 = (torch.float64, torch.float32)
DTYPES = (torch.float64, *LOW)


def stepped() -> Iterator[Row]:
    return in_steps([*few(), *few(shape="grouped"), *few(torch.float32), *few(torch.bfloat16)])


@law(over=stepped)
def step_is_one_token(run: Run, row: Row) -> None:
    """Step after step gives the whole: outputs, state, and gradients where these are not rounded at every step."""
    s, short = row.case.draw(), row.dtype == torch.bfloat16
    whole = collect(lambda x: run(x, replace(row, mode="chunk")), s, short)
    check_all(collect(lambda x: run(x, row), s, short), whole, row.dtype)


@law(over=lambda: (Row(case, "stepper", None) for dtype in DTYPES for case in few(dtype, "steps")))
def a_prepared_step_is_a_step(run: Run, row: Row) -> None:
    """What a `Stepper` gives is bitwise what `step` gives."""
    s = row.case.draw()
    same_bits(values(run(s, row)), values(run(s, replace(row, mode="step"))))


@law(over=lambda: in_steps(case for dtype in FLOAT64_AND_32 for case in few(dtype)))
def step_in_place_is_step(run: Run, row: Row) -> None:
    """An in-place step gives the same bits, in the tensors of the state it was given."""
    s = row.case.draw()
    held = s.after(s.state.fork())
    wanted, found = run(s, replace(row, mode="step")), run(held, in_place(row))
    same_bits(values(found), values(wanted))
    if found[1].memory.data_ptr() != held.state.memory.data_ptr():
        raise AssertionError("the state came back in other memory")


def in_place(row: Row) -> Row:
    return replace(row, mode=f"{row.mode}_inplace")


@law(over=lambda: in_steps(case for dtype in FLOAT64_AND_32 for case in few(dtype)))
def a_state_is_its_numbers(run: Run, row: Row) -> None:
    """A step reads and writes a state by its strides and in its dtype: what counts are the numbers."""
    s = row.case.draw().tokens(0, 1)
    for name, state in unusual(s.state).items():
        plain = each(state, lambda x: x.to(row.dtype).clone(memory_format=torch.contiguous_format))
        wanted = values(run(s.after(plain), replace(row, mode="step")))
        for way in (row, in_place(row)) if state.memory.dtype == row.dtype else (row,):
            found = run(s.after(state), way)
            same_bits(values(found), wanted, name)
            if way != row and found[1].memory is not state.memory:
                raise AssertionError(f"{name}: the state came back in another tensor")


def unusual(state: State) -> dict[str, State]:
    """States in another layout or dtype than State.zeros has."""
    return {
        "in bfloat16": each(state, lambda x: x.bfloat16()),
        "in float64": each(state, lambda x: x.double()),
        "transposed": each(state, lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2)),
        "a slice of a wider one": each(state, lambda x: torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]]),
    }


STEPS_TAKEN = 32_000


@law(over=lambda: [Row(Case("delta", "head", "T100", torch.float32), "step", None)])
def steps_do_not_drift(run: Run, row: Row) -> None:
    """32,000 steps, prepared ones by turns, are no further from float64 than the chunked run, within a factor of 2."""
    s = row.case.draw()
    chunks = replace(row, mode="chunk", chunk=64 if row.backend == "reference" else None)
    precise, exact = replace(chunks, chunk=64, backend="reference"), s.state.to(torch.float64)
    chunked, stepped = s.state, s.state.fork()
    for turn in range(STEPS_TAKEN // s.T):
        exact = s.to(torch.float64).after(exact).run(precise)[1]
        chunked = run(s.after(chunked), chunks)[1]
        stepped = run(s.after(stepped), in_place(replace(row, mode=STEPS[turn % 2])))[1]
        limit = 2 * error(chunked.memory, exact.memory) + 4e-7
        check(f"state after {s.T * (turn + 1)} steps", stepped.memory, exact.memory, limit)
