"""Laws of decays: strong gates cost nothing, weak gates are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rebracket.testing.budgets import check, check_all, error
from rebracket.testing.law import Row, Run, law, results, values
from rebracket.testing.operators.recurrence import Case, Sample, each_of, in_every_mode, write_names

GATES = (-1e4, -1e6, -1e30, -torch.inf)
PLACE = 19
"""The token that is gated: in the middle of a chunk, whatever the chunk."""


@law(
    over=lambda: in_every_mode(
        each_of(write_names(), ("token", "channel"), dtypes=(torch.float32,)),
        [
            Case("additive", "token", dtype=torch.float32, normalize=True),
            Case("additive", "channel", dtype=torch.float32, bonus=True),
        ],
    )
)
def strong_gate_costs_nothing(run: Run, row: Row) -> None:
    """After a gate of -1e4 ... -inf everything is as exact as after a gate of 0; its own gradient is 0."""
    plain = errors(run, row, 0.0)
    for gate in GATES:
        for name, found in errors(run, row, gate).items():
            limit = 2 * plain[name] + 4 * torch.finfo(row.dtype).eps
            if not found <= limit:
                raise AssertionError(f"gate {gate}: {name}: error {found:.2e} > {limit:.2e}, {plain[name]:.2e} without")


def errors(run: Run, row: Row, gate: float) -> dict[str, float]:
    """The error of every result against the token loop in float64, when one token is gated."""
    found = results(lambda x: run(x, row), gated(row.case, gate))
    own = found["grad log_decay"][:, PLACE, ..., ::2]
    if gate < 0 and bool(own.any()):
        raise AssertionError(f"gate {gate}: gradient {float(own.abs().amax()):.2e} of log_decay, expected 0")
    return {name: error(x, exactly(gated, row.case, gate)[name]) for name, x in found.items()}


@functools.cache
def exactly(build: Callable[..., Sample], case: Case, *gates: float) -> dict[str, Tensor]:
    """The results of the token loop in float64 on a sample, computed once for all modes."""
    return results(Sample.define, build(case, *gates).to(torch.float64))


def gated(case: Case, gate: float) -> Sample:
    """The sample of a case with one strong gate in every other head, or channel."""
    return with_gate(case.draw(), (slice(None), PLACE, ..., slice(None, None, 2)), gate)


def with_gate(s: Sample, place: slice | tuple[Any, ...], gate: float) -> Sample:
    assert s.log_decay is not None
    log_decay = s.log_decay.clone()
    log_decay[place] = gate
    return replace(s, log_decay=log_decay)


@law(
    over=lambda: in_every_mode(
        each_of(write_names(), ("token", "channel")), [Case("additive", "token", normalize=True)]
    )
)
def reset_is_two_runs(run: Run, row: Row) -> None:
    """log_decay = -inf erases: what follows is a run of its own."""
    s = row.case.draw()
    whole = run(with_gate(s, (slice(None), PLACE), -torch.inf), row)
    alone = run(replace(s.tokens(PLACE, s.T), state=None), row)
    check_all(values((whole[0][:, PLACE:], whole[1])), values(alone), row.dtype)


@law(
    over=lambda: in_every_mode(
        each_of(write_names(), ("token", "channel"), dtypes=(torch.float32,)),
        each_of(("additive", "delta"), ("token",), dtypes=(torch.bfloat16, torch.float16)),
    )
)
def strong_gates_are_finite(run: Run, row: Row) -> None:
    """Every gate -50, -88 or -inf, or the first -88 and the rest 0: finite, exact, gradients too."""
    for first, rest in STRONG:
        found = results(lambda x: run(x, row), strong(row.case, first, rest))
        check_all(found, exactly(strong, row.case, first, rest), row.dtype, f"gates {first}, {rest}, ...:")


STRONG = ((-50.0, -50.0), (-88.0, -88.0), (-104.0, -104.0), (-torch.inf, -torch.inf), (-88.0, 0.0))
"""The first gate, and all others."""


def strong(case: Case, first: float, rest: float) -> Sample:
    return with_gate(with_gate(case.draw(), slice(None), rest), (slice(None), 0), first)


@law(
    over=lambda: (
        Row(case, "chunk", 64)
        for case in each_of(
            ("additive", "delta"), ("head", "token", "channel"), ("T4096",), (torch.float64, torch.float32)
        )
    )
)
def weak_gates_keep_their_effect(run: Run, row: Row) -> None:
    """Gates of -1e-12 (float64) and -1e-5 (float32) over 4,096 tokens take away exp of their sum, to 1 %."""
    gate = -1e-12 if row.dtype == torch.float64 else -1e-5
    s = quiet_after_first(row.case.draw(), gate)
    found = run(s, row)
    gone = -torch.expm1(torch.tensor(gate * (s.T - 1), dtype=torch.float64))
    whole = s.k[:, 0, :, :, None].double() * written(s)[:, 0, :, None, :].double()
    lost = (whole - found[1].memory.double()) / whole
    check("part lost by the state", lost, gone.expand_as(lost), 1e-2)
    reads = torch.einsum("bhk,bhkv->bhv", s.q[:, -1].double(), whole)
    unread = (reads - found[0][:, -1].double()) / reads
    check("part lost by the last output", unread, gone.expand_as(unread), 1e-2)


def quiet_after_first(s: Sample, gate: float) -> Sample:
    """One write at the first token, nothing after it, and every gate weak."""
    assert s.log_decay is not None
    once = s.timed(lambda x, entries: torch.cat((x[:, :entries], torch.zeros_like(x[:, entries:])), 1))
    q = torch.ones_like(s.q)
    k = torch.cat((torch.ones_like(s.k[:, :1]), torch.zeros_like(s.k[:, 1:])), 1)
    return replace(once, q=q, k=k, scale=1.0, state=None, log_decay=torch.full_like(s.log_decay, gate))


def written(s: Sample) -> Tensor:
    """The values as the rule of a quiet sample writes them into an empty state."""
    return replace(s.tokens(0, 1), log_decay=None).define().out / s.q.shape[-1]
