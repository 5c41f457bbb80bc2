"""Laws of what the arguments mean: the paper's loop, padding, defaults, wider gates, both directions, any size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.state import Output, State
from rebracket.testing.budgets import budget, check, check_all, check_equal
from rebracket.testing.general import autocast_stays_out, with_nan
from rebracket.testing.law import Row, Run, each, law, results, values
from rebracket.testing.operators.recurrence import (
    DECAYS,
    SHAPES,
    SWEEP,
    Case,
    Sample,
    cases,
    draw,
    each_of,
    exact,
    few,
    in_every_mode,
    prototype,
    rule_module,
    write_names,
)


@law(over=lambda: in_every_mode(each_of(write_names(), DECAYS, ("plain", "grouped"))))
def literal_agrees(run: Run, row: Row) -> None:
    """Each write rule is the loop that its own paper writes down, head by head."""
    s, limit = row.case.draw(), 1e-12 if row.dtype == torch.float64 else 1e-5
    out, state = run(s, row)
    s = s.to(torch.float64)
    for b, h in itertools.product(range(s.v.shape[0]), range(s.v.shape[2])):
        wanted, memory = literal(s, row.case.write, b, h)
        check(f"out[{b}, :, {h}]", out[b, :, h], wanted, limit)
        check(f"memory[{b}, {h}]", state.memory[b, h], memory, limit)


def literal(s: Sample, write: str, b: int, h: int) -> tuple[Tensor, Tensor]:
    """The paper's loop on one sequence and head of a sample."""
    assert s.state is not None
    H, K = s.v.shape[2], s.q.shape[3]
    rule = [x[b, :, h * x.shape[2] // H] if isinstance(x, Tensor) else x for x in vars(s.write).values()]
    q, k = (x[b, :, h * x.shape[2] // H] for x in (s.q, s.k))
    decay = whole_decay(s)[b, :, h].exp()
    return rule_module(write).literal(q, k, s.v[b, :, h], decay, s.state.memory[b, h], K**-0.5, *rule)


def whole_decay(s: Sample) -> Tensor:
    """The log-decays as [B,T,H,K]."""
    B, T, H, K = *s.q.shape[:2], s.v.shape[2], s.q.shape[3]
    x = s.q.new_zeros(H) if s.log_decay is None else s.log_decay
    return (x[..., None] if x.ndim in (1, 3) else x).expand(B, T, H, K)


# A decay per head would act in the padding too.
@law(
    over=lambda: in_every_mode(
        (case for shape in ("plain", "grouped") for case in few(shape=shape) if case.decay != "head"),
        [Case("additive", normalize=True)],
    )
)
def padding_changes_nothing(run: Run, row: Row) -> None:
    """Rows padded with zeros on either side, one row alone included, are the rows without padding."""
    s = row.case.draw()
    for rows, left in itertools.product((slice(0, 1), slice(0, s.q.shape[0])), (False, True)):
        batch = s.rows(rows.start, rows.stop)
        lengths = [s.T - 11 - 3 * b for b in range(rows.stop)]
        padded = pad(batch, lengths, left)
        found = run(padded, row)
        for b, length in enumerate(lengths):
            start = s.T - length if left else 0
            alone = values(run(padded.rows(b, b + 1).tokens(start, start + length), row))
            mine = (found[0][b : b + 1, start : start + length], found[1].select([b]))
            check_all(values(mine), alone, row.dtype, f"row {b} padded on the {'left' if left else 'right'}:")


def pad(s: Sample, lengths: list[int], left: bool) -> Sample:
    """Each row keeps `length` tokens at one end; keys, values, strengths and log-decays of the others are zero."""

    def silence(x: Tensor, entries: int) -> Tensor:
        token = torch.arange(x.shape[1]) // entries
        kept = [token >= s.T - length if left else token < length for length in lengths]
        return x * torch.stack(kept).view(*x.shape[:2], *[1] * (x.ndim - 2))

    # A zero times -inf is not a number, and a padded token's query may be anything.
    finite = s.map(lambda name, x: x.clamp(min=-1e4) if name == "log_decay" else x)
    return replace(finite.timed(silence), q=s.q)


@law(over=lambda: (Row(case) for shape in SHAPES for case in few(shape=shape)))
def defaults_are_what_they_say(run: Run, row: Row) -> None:
    """No scale is K**-0.5, or 1 with a normalizer; no state is zeros; mode auto is any mode."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    scale = 1.0 if s.normalize else s.q.shape[-1] ** -0.5
    check_all(results(lambda x: run(replace(x, scale=scale), row), s), wanted, row.dtype, f"scale {scale}:")
    automatic = replace(row, mode="auto", chunk=None)
    check_all(results(lambda x: run(x, automatic), s), wanted, row.dtype, "auto:")
    empty = s.after(each(s.state, torch.zeros_like))
    check_all(values(run(s.after(None), row)), values(run(empty, row)), row.dtype, "no state:")


@law(over=lambda: in_every_mode(case for case in cases() if case.normalize))
def a_normalizer_divides_the_scale_out(run: Run, row: Row) -> None:
    """out = scale S^T q / (scale z^T q): under `normalize` no scale has an effect, on not one bit."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for scale in (0.3, 7.0):
        for name, x in results(lambda x, scale=scale: run(replace(x, scale=scale), row), s).items():
            check_equal(f"scale {scale}: {name}", x, wanted[name])


@law(over=lambda: in_every_mode(case for shape in ("plain", "packed") for case in few(torch.bfloat16, shape)))
def gates_may_be_wider(run: Run, row: Row) -> None:
    """Decays, strengths and gates may be float32 beside bfloat16 queries, keys and values: none of them is rounded."""
    wide = draw(replace(row.case, dtype=torch.float32))
    s = wide.map(lambda name, x: x.bfloat16() if name in ("q", "k", "v") else x)
    check_all(results(lambda x: run(x, row), s), results(Sample.define, s.to(torch.float64)), row.dtype)


def bidirectional() -> Iterator[Row]:
    found = [c for c in cases() if not prototype(c.write).reads_back and not c.bonus and "flush" not in c.decay]
    low = [replace(c, dtype=torch.bfloat16) for c in found if c.decay in ("none", "channel")]
    return (row for row in in_every_mode(found, low) if row.mode != "recurrent")


@law(over=bidirectional)
def not_causal_is_the_square(run: Run, row: Row) -> None:
    """causal=False is the explicit sum over all pairs of tokens of a sequence: outputs, state, gradients."""
    for s in (both_ways(row.case), replace(both_ways(row.case), scale=0.7)):
        padded = s if s.cu_seqlens is None else with_nan(s, int(s.cu_seqlens[-1]))
        wanted = results(lambda x: x.joined([square(alone) for alone in x.sequences()]), s.to(torch.float64))
        check_all(results(lambda x: run(x, row), padded), wanted, row.dtype)


def both_ways(case: Case) -> Sample:
    """The sample of a case without its order of time."""
    return replace(draw(case), causal=False, state=None)


def square(s: Sample) -> Output:
    """out_t = scale sum_s w_ts v_s, w_ts = sum over K of q_t k_s and the decays that lie between the two."""
    scale = s.scale if s.scale is not None else (1.0 if s.normalize else s.q.shape[3] ** -0.5)
    q, k = (repeat_heads(x, s.v.shape[2]) for x in (s.q, s.k))
    between, leaving = distances(whole_decay(s).exp())
    w = torch.einsum("bthk,bshk,btshk->bhts", q, k, between)
    read = torch.einsum("bhts,bshv->bthv", w, s.v)
    out = scale * read if not s.normalize else read / w.sum(-1).transpose(1, 2)[..., None]
    kept = leaving * k
    return Output(out, State(torch.einsum("bshk,bshv->bhkv", kept, s.v), kept.sum(1) if s.normalize else None))


def distances(a: Tensor) -> tuple[Tensor, Tensor]:
    """What decays [B,T,H,K] leave between every two tokens [B,T,T,H,K], and from each to the end [B,T,H,K].

    Backwards a decay acts on what lies behind it as well: between t < s the decays of t ... s - 1, not of t + 1 ... s.
    """
    t = torch.arange(a.shape[1])
    first, last, m = t[:, None, None], t[None, :, None], t[None, None, :]
    forward, backward = (last < m) & (m <= first), (first <= m) & (m < last)
    between = a[:, None, None].masked_fill(~(forward | backward)[None, ..., None, None], 1).prod(3)
    return between, a[:, None].masked_fill(~(m[0] > t[:, None])[None, ..., None, None], 1).prod(2)


def without_order() -> Iterator[Row]:
    dtype, shapes = torch.float32, ("plain", "packed")
    found = [*few(dtype), *few(dtype, "packed"), *(Case("additive", "none", shape, dtype) for shape in shapes)]
    return in_every_mode(c for c in found if not prototype(c.write).reads_back and not c.bonus)


@law(over=without_order)
def autocast_stays_out_both_ways(run: Run, row: Row) -> None:
    """The same of a call without an order of time."""
    autocast_stays_out(lambda s, row: run(replace(s, causal=False, state=None), row), row)


SIZE = 6
"""What sums over a thousand tokens or 320 channels make of a budget measured on 40 tokens and 4 channels."""


def swept() -> Iterator[Row]:
    """Both kinds of decay and of rule over all sizes; in chunks of 64 where there are as many tokens."""
    for shape, size in SWEEP.items():
        for write, decay in (("additive", "channel"), ("delta", "token")):
            yield from in_every_mode([Case(write, decay, shape, torch.float32)], chunk=64 if size.T > 33 else 16)


@law(over=swept)
def any_shape(run: Run, row: Row) -> None:
    """Every size of every letter gives what the token loop gives; T = 0 gives no output and the state as it was."""
    s = row.case.draw()
    found = results(lambda x: run(x, row), s)
    for name, x in found.items():
        check(name, x, exact(row.case)[name], SIZE * budget(name, row.dtype))
    if s.T == 0 and s.state is not None:
        check_equal("state", found["state.memory"], s.state.memory)
