"""Laws of what is stored: exact recall, keys that repeat, vanish or are long, sums over thousands of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch

from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.testing.budgets import budget, check, check_all, check_equal, error
from rebracket.testing.results import define, results, values
from rebracket.testing.rows import SOUND, Law, Operator, Row, in_every_mode
from rebracket.testing.samples import Case, Sample, draw, write_names


def orthonormal_keys_recall_exactly(op: Operator, row: Row) -> None:
    """What was written under orthonormal keys is read back; under Delta(1) the newest value of many."""
    basis = orthonormal(draw(row.case))
    for rule, times in ((Additive(), 1), (Delta(1.0), 1), (Delta(1.0), 3)):
        s = replace(basis, write=rule)
        state = None
        for turn in range(times):
            out, state = op.attend(replace(s, v=s.v + turn, state=state), row)
            check(f"{type(rule).__name__} write {turn}, read at once", out, s.v + turn, budget("state", row.dtype))
        assert state is not None
        later = op.attend(replace(s, k=torch.zeros_like(s.k), state=state), row).out
        check(f"{type(rule).__name__} read after {times}", later, s.v + times - 1, budget("state", row.dtype))


def orthonormal(s: Sample) -> Sample:
    """K tokens whose keys, and queries, are an orthonormal basis."""
    K = s.q.shape[-1]
    basis = torch.linalg.qr(s.q[:, :K].transpose(1, 2).double()).Q
    keys = basis.transpose(1, 2).to(s.q.dtype)
    return Sample(keys, keys, s.v[:, :K], scale=1.0)


def last_write_is_read_exactly(op: Operator, row: Row) -> None:
    """Under Delta(1) and unit keys, related as they may be, a token that asks for its own key reads its own value."""
    s = draw(row.case)
    asked = replace(s, q=s.k, write=Delta(1.0), scale=1.0)
    check("out", op.attend(asked, row).out, s.v, 4 * budget("out", row.dtype))


def recalled() -> Iterator[Row]:
    return in_every_mode(Case("delta", dtype=dtype) for dtype in (torch.float64, torch.float32))


CONDITION = 32
"""What beta = 2 and keys a little longer than 1 make of an error: the states themselves grow twentyfold in a chunk."""


def repeated_keys_stay_in_budget(op: Operator, row: Row) -> None:
    """One unit key again and again, or nearly parallel ones, with beta 1 and 2: finite and exact, gradients too."""
    s = draw(row.case)
    one = torch.nn.functional.normalize(s.k[:, :1].double() + 0.01, dim=-1)
    for spread in (0.0, 0.01):
        near = torch.nn.functional.normalize(one + spread * s.k.double(), dim=-1).to(s.k.dtype)
        for beta in (1.0, 2.0):
            same = replace(s, k=near, write=Delta(torch.full(s.v.shape[:3], beta, dtype=s.v.dtype)))
            wanted = results(define, same.to(torch.float64))
            for name, x in results(lambda y: op.attend(y, row), same).items():
                check(f"beta {beta}, spread {spread}: {name}", x, wanted[name], CONDITION * budget(name, row.dtype))


def repeating() -> Iterator[Row]:
    """A whole chunk of 64 and some more."""
    dtypes = (torch.float32, torch.bfloat16)
    found = (Case("delta", decay, "T70", dtype) for decay in ("none", "token") for dtype in dtypes)
    return in_every_mode(found, 64)


def zero_and_long_keys_are_exact(op: Operator, row: Row) -> None:
    """All keys zero, or of length 1e3 with the additive rule: finite and exact, gradients too."""
    s = draw(row.case)
    lengths = (0.0,) if s.write.reads_back else (0.0, 1e3)
    for length in lengths:
        scaled = replace(s, k=length * s.k)
        found, wanted = results(lambda x: op.attend(x, row), scaled), results(define, scaled.to(torch.float64))
        check_all(found, wanted, row.dtype, f"keys of length {length}:")


def any_keys() -> Iterator[Row]:
    dtypes = (torch.float32, torch.bfloat16)
    return in_every_mode(Case(write, "token", dtype=dtype) for write in write_names() for dtype in dtypes)


def empty_normalizer_gives_zero(op: Operator, row: Row) -> None:
    """Features that are zero, or that sum to zero, give output 0 and finite gradients."""
    s = replace(draw(row.case), state=None)
    silent = results(lambda x: op.attend(x, row), replace(s, k=torch.zeros_like(s.k)))
    check_equal("out of zero features", silent["out"], torch.zeros_like(silent["out"]))
    cancelling = torch.cat((s.k[:, :1], -s.k[:, :1], torch.zeros_like(s.k[:, 2:])), 1)
    summed = results(lambda x: op.attend(x, row), replace(s, k=cancelling))
    check_equal("out of features that sum to zero", summed["out"][:, 1:], torch.zeros_like(summed["out"][:, 1:]))
    for name, x in (silent | summed).items():
        if not bool(x.isfinite().all()):
            raise AssertionError(f"{name} is not finite")


def normalized() -> Iterator[Row]:
    axes = itertools.product(("plain", "grouped"), (torch.float64, torch.bfloat16))
    return in_every_mode(Case("additive", "none", shape, dtype, normalize=True) for shape, dtype in axes)


def small_features_divide_or_vanish(op: Operator, row: Row) -> None:
    """Weights whose sum is small divide like others; below 2^-100 outputs are 0, and all is finite, gradients too."""
    s = replace(draw(row.case), state=None)
    for exponent in (-60, -90, -120, -140):
        small = replace(s, k=s.k * 2.0**exponent)
        found, wanted = results(lambda x: op.attend(x, row), small), results(define, small.to(torch.float64))
        for name in (name for name in wanted if not name.startswith("state.")):
            check(f"keys of 2^{exponent}: {name}", found[name], wanted[name], budget(name, row.dtype))
        state = op.attend(small.tokens(0, 6), row).state
        token = op.step(replace(small.tokens(6, 7), state=state), row, False).out
        check(f"keys of 2^{exponent}: a step", token, wanted["out"][:, 6:7], budget("out", row.dtype))


def little_keys() -> Iterator[Row]:
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    return in_every_mode(
        Case("additive", decay, dtype=x, normalize=True) for decay in ("none", "token") for x in dtypes
    )


def normalizer_stays_exact(op: Operator, row: Row) -> None:
    """The sum of 8,192 bfloat16 keys is exact to float32, and outputs as exact as their dtype."""
    s = draw(row.case)
    wanted = values(define(s.to(torch.float64)))
    for name, x in values(op.attend(s, row)).items():
        check(name, x, wanted[name], (1 if name == "out" else 8) * budget(name, row.dtype))


def summed() -> Iterator[Row]:
    for decay in ("none", "head"):
        case = Case("additive", decay, "T8192", torch.bfloat16, normalize=True)
        yield from (Row(case, "chunk", 64), Row(case, "recurrent", None))


def steps_do_not_drift(op: Operator, row: Row) -> None:
    """32,000 steps from state to state lie no further from float64 than the chunked run, within a factor of two."""
    s = draw(row.case)
    assert s.state is not None
    tokens, precise = [s.tokens(t, t + 1) for t in range(s.T)], replace(row, backend="reference")
    exact, chunked, stepped = s.state.to(torch.float64), s.state, s.state.fork()
    for turn in range(STEPS // s.T):
        exact = SOUND.attend(replace(s.to(torch.float64), state=exact), precise).state
        chunked = op.attend(replace(s, state=chunked), row).state
        for token in tokens:
            stepped = op.step(replace(token, state=stepped), row, True).state
        limit = 2 * error(chunked.memory, exact.memory) + 4e-7
        check(f"state after {s.T * (turn + 1)} steps", stepped.memory, exact.memory, limit)


STEPS = 32_000


def long_walk() -> Iterator[Row]:
    yield Row(Case("delta", "head", "T100", torch.float32), "chunk", 64)


LAWS = (
    Law(orthonormal_keys_recall_exactly, recalled),
    Law(last_write_is_read_exactly, recalled),
    Law(repeated_keys_stay_in_budget, repeating),
    Law(zero_and_long_keys_are_exact, any_keys),
    Law(empty_normalizer_gives_zero, normalized),
    Law(small_features_divide_or_vanish, little_keys),
    Law(normalizer_stays_exact, summed),
    Law(steps_do_not_drift, long_walk),
)
