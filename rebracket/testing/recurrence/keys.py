"""Laws of what is stored: exact recall, keys that repeat, vanish or are long, sums over thousands of tokens."""

from __future__ import annotations

from dataclasses import replace

import torch

from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.testing.budgets import budget, check, check_all, check_equal
from rebracket.testing.law import Row, Run, law, results, values
from rebracket.testing.operators.recurrence import Sample, each_of, in_every_mode, write_names


@law(over=lambda: in_every_mode(each_of(("delta",), dtypes=(torch.float64, torch.float32))))
def orthonormal_keys_recall_exactly(run: Run, row: Row) -> None:
    """What was written under orthonormal keys is read back; under Delta(1) the newest value of many."""
    basis = orthonormal(row.case.draw())
    for rule, times in ((Additive(), 1), (Delta(1.0), 1), (Delta(1.0), 3)):
        s = replace(basis, write=rule)
        state = None
        for turn in range(times):
            out, state = run(replace(s, v=s.v + turn, state=state), row)
            check(f"{type(rule).__name__} write {turn}, read at once", out, s.v + turn, budget("state", row.dtype))
        assert state is not None
        later = run(replace(s, k=torch.zeros_like(s.k), state=state), row)[0]
        check(f"{type(rule).__name__} read after {times}", later, s.v + times - 1, budget("state", row.dtype))


def orthonormal(s: Sample) -> Sample:
    """K tokens whose keys, and queries, are an orthonormal basis."""
    K = s.q.shape[-1]
    basis = torch.linalg.qr(s.q[:, :K].transpose(1, 2).double()).Q
    keys = basis.transpose(1, 2).to(s.q.dtype)
    return Sample(keys, keys, s.v[:, :K], scale=1.0)


@law(over=lambda: in_every_mode(each_of(("delta",), dtypes=(torch.float64, torch.float32))))
def last_write_is_read_exactly(run: Run, row: Row) -> None:
    """Under Delta(1) and unit keys, related as they may be, a token that asks for its own key reads its own value."""
    s = row.case.draw()
    asked = replace(s, q=s.k, write=Delta(1.0), scale=1.0)
    check("out", run(asked, row)[0], s.v, 4 * budget("out", row.dtype))


CONDITION = 32
"""What beta = 2 and keys a little longer than 1 make of an error: the states themselves grow twentyfold in a chunk."""


@law(
    over=lambda: in_every_mode(
        each_of(("delta",), ("none", "token"), ("T70",), (torch.float32, torch.bfloat16)), chunk=64
    )
)
def repeated_keys_stay_in_budget(run: Run, row: Row) -> None:
    """One unit key again and again, or nearly parallel ones, with beta 1 and 2: finite and exact, gradients too."""
    s = row.case.draw()
    one = torch.nn.functional.normalize(s.k[:, :1].double() + 0.01, dim=-1)
    for spread in (0.0, 0.01):
        near = torch.nn.functional.normalize(one + spread * s.k.double(), dim=-1).to(s.k.dtype)
        for beta in (1.0, 2.0):
            same = replace(s, k=near, write=Delta(torch.full(s.v.shape[:3], beta, dtype=s.v.dtype)))
            wanted = results(Sample.define, same.to(torch.float64))
            for name, x in results(lambda y: run(y, row), same).items():
                check(f"beta {beta}, spread {spread}: {name}", x, wanted[name], CONDITION * budget(name, row.dtype))


@law(over=lambda: in_every_mode(each_of(write_names(), ("token",), dtypes=(torch.float32, torch.bfloat16))))
def zero_and_long_keys_are_exact(run: Run, row: Row) -> None:
    """All keys zero, or of length 1e3 with the additive rule: finite and exact, gradients too."""
    s = row.case.draw()
    lengths = (0.0,) if s.write.reads_back else (0.0, 1e3)
    for length in lengths:
        scaled = replace(s, k=length * s.k)
        found, wanted = results(lambda x: run(x, row), scaled), results(Sample.define, scaled.to(torch.float64))
        check_all(found, wanted, row.dtype, f"keys of length {length}:")


@law(
    over=lambda: in_every_mode(
        each_of(shapes=("plain", "grouped"), dtypes=(torch.float64, torch.bfloat16), normalize=True)
    )
)
def empty_normalizer_gives_zero(run: Run, row: Row) -> None:
    """Features that are zero, or that sum to zero, give output 0 and finite gradients."""
    s = replace(row.case.draw(), state=None)
    silent = results(lambda x: run(x, row), replace(s, k=torch.zeros_like(s.k)))
    check_equal("out of zero features", silent["out"], torch.zeros_like(silent["out"]))
    cancelling = torch.cat((s.k[:, :1], -s.k[:, :1], torch.zeros_like(s.k[:, 2:])), 1)
    summed = results(lambda x: run(x, row), replace(s, k=cancelling))
    check_equal("out of features that sum to zero", summed["out"][:, 1:], torch.zeros_like(summed["out"][:, 1:]))
    for name, x in (silent | summed).items():
        if not bool(x.isfinite().all()):
            raise AssertionError(f"{name} is not finite")


@law(
    over=lambda: in_every_mode(
        each_of(decays=("none", "token"), dtypes=(torch.float64, torch.float32, torch.bfloat16), normalize=True)
    )
)
def small_features_divide_or_vanish(run: Run, row: Row) -> None:
    """Weights whose sum is small divide like others; below 2^-100 outputs are 0, and all is finite, gradients too."""
    s = replace(row.case.draw(), state=None)
    for exponent in (-60, -90, -120, -140):
        small = replace(s, k=s.k * 2.0**exponent)
        found, wanted = results(lambda x: run(x, row), small), results(Sample.define, small.to(torch.float64))
        for name in (name for name in wanted if not name.startswith("state.")):
            check(f"keys of 2^{exponent}: {name}", found[name], wanted[name], budget(name, row.dtype))
        state = run(small.tokens(0, 6), row)[1]
        token = run(small.tokens(6, 7).after(state), replace(row, mode="step"))[0]
        check(f"keys of 2^{exponent}: a step", token, wanted["out"][:, 6:7], budget("out", row.dtype))


@law(
    over=lambda: (
        Row(case, mode, chunk)
        for case in each_of(decays=("none", "head"), shapes=("T8192",), dtypes=(torch.bfloat16,), normalize=True)
        for mode, chunk in (("chunk", 64), ("recurrent", None))
    )
)
def normalizer_stays_exact(run: Run, row: Row) -> None:
    """The sum of 8,192 bfloat16 keys is exact to float32, and outputs as exact as their dtype."""
    s = row.case.draw()
    wanted = values(s.to(torch.float64).define())
    for name, x in values(run(s, row)).items():
        check(name, x, wanted[name], (1 if name == "out" else 8) * budget(name, row.dtype))
