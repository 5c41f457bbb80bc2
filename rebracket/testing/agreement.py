"""Laws of one function in many forms: modes, pieces, steps, packings and special cases all say the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.state import Output, State
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.ops.writes.delta_product import DeltaProduct
from rebracket.ops.writes.gated_erase import GatedErase
from rebracket.ops.writes.low_rank import LowRank
from rebracket.ops.writes.read_key import ReadKey
from rebracket.testing.budgets import check, check_all, check_equal
from rebracket.testing.results import define, exact, results, values
from rebracket.testing.rows import LOW, Law, Operator, Row, cases, few, in_every_mode, recurrence
from rebracket.testing.samples import (
    SHAPES,
    Case,
    Sample,
    draw,
    fields,
    prototype,
    rule_module,
    sample,
    write_names,
)


def modes_agree(op: Operator, row: Row) -> None:
    """Outputs, state and every gradient are those of the token loop in float64."""
    found = results(lambda s: op.attend(s, row), draw(row.case))
    check_all(found, exact(row.case), row.dtype)


def all_modes() -> Iterator[Row]:
    """The whole product in float64, and in chunks in two other dtypes; each rule and decay in the rest."""
    yield from in_every_mode(cases())
    yield from (Row(case, "chunk", 7) for case in few())
    yield from (Row(case) for dtype in (torch.float32, torch.bfloat16) for case in cases(dtype))
    yield from (row for dtype in LOW for row in in_every_mode(few(dtype)))


def literal_agrees(op: Operator, row: Row) -> None:
    """Each write rule is the loop that its own paper writes down, head by head."""
    s, limit = draw(row.case), 1e-12 if row.dtype == torch.float64 else 1e-5
    out, state = op.attend(s, row)
    s = s.to(torch.float64)
    for b, h in itertools.product(range(s.v.shape[0]), range(s.v.shape[2])):
        wanted, memory = literal(s, row.case.write, b, h)
        check(f"out[{b}, :, {h}]", out[b, :, h], wanted, limit)
        check(f"memory[{b}, {h}]", state.memory[b, h], memory, limit)


def literal(s: Sample, write: str, b: int, h: int) -> tuple[Tensor, Tensor]:
    """The paper's loop on one sequence and head of a sample."""
    assert s.state is not None
    H, K = s.v.shape[2], s.q.shape[3]
    rule = [x[b, :, h * x.shape[2] // H] if isinstance(x, Tensor) else x for x in fields(s.write).values()]
    q, k = (x[b, :, h * x.shape[2] // H] for x in (s.q, s.k))
    return rule_module(write).literal(q, k, s.v[b, :, h], factors(s, b, h), s.state.memory[b, h], K**-0.5, *rule)


def factors(s: Sample, b: int, h: int) -> Tensor:
    """The decays of one sequence and head as factors [T,K]."""
    T, K = s.q.shape[1], s.q.shape[3]
    if s.log_decay is None:
        return s.q.new_ones(T, K)
    mine = s.log_decay[h] if s.log_decay.ndim == 1 else s.log_decay[b, :, h]
    return (mine[:, None] if mine.ndim == 1 else mine).exp().expand(T, K)


def plain_rules() -> Iterator[Row]:
    return in_every_mode(c for c in cases(shapes=("plain", "grouped")) if not c.normalize and not c.bonus)


def cutting_changes_nothing(op: Operator, row: Row) -> None:
    """A sequence in any pieces, the state passed on, gives the whole: outputs, state, gradients."""
    s = draw(row.case)
    whole = results(lambda x: op.attend(x, row), s)
    generator = torch.Generator().manual_seed(len(str(row)))
    for pieces in (2, 5):
        cuts = torch.randint(0, s.T + 1, (pieces - 1,), generator=generator).sort().values.tolist()
        check_all(results(lambda x, cuts=cuts: in_pieces(op, x, row, cuts), s), whole, row.dtype, f"cut at {cuts}:")


def in_pieces(op: Operator, s: Sample, row: Row, cuts: list[int]) -> Output:
    """The call cut at some tokens; a place named twice makes an empty piece."""
    out, state = [], s.state
    for start, stop in itertools.pairwise([0, *cuts, s.T]):
        piece, state = op.attend(replace(s.tokens(start, stop), state=state), row)
        out.append(piece)
    assert state is not None
    return Output(torch.cat(out, 1), state)


def unpacked() -> Iterator[Row]:
    return in_every_mode([*few(), *few(shape="grouped")])


def step_is_one_token(op: Operator, row: Row) -> None:
    """Step after step gives the whole: outputs, state, and gradients where these are not rounded at every step."""
    s = draw(row.case)
    if row.dtype == torch.bfloat16:
        return check_all(values(in_steps(op, s, row)), values(op.attend(s, row)), row.dtype)
    whole = results(lambda x: op.attend(x, row), s)
    return check_all(results(lambda x: in_steps(op, x, row), s), whole, row.dtype)


def in_steps(op: Operator, s: Sample, row: Row, inplace: bool = False) -> Output:
    """The call one token at a time."""
    out, state = [], s.state
    for t in range(s.T):
        token, state = op.step(replace(s.tokens(t, t + 1), state=state), row, inplace)
        out.append(token)
    assert state is not None
    return Output(torch.cat(out, 1), state)


def step_in_place_is_step(op: Operator, row: Row) -> None:
    """An in-place step gives the same bits, in the tensors of the state it was given."""
    s = draw(row.case)
    assert s.state is not None
    held = replace(s, state=s.state.fork())
    wanted, found = in_steps(op, s, row), in_steps(op, held, row, inplace=True)
    for name, x in values(found).items():
        check_equal(name, x, values(wanted)[name])
    if held.state is None or found.state.memory.data_ptr() != held.state.memory.data_ptr():
        raise AssertionError("the state came back in other memory")


def a_state_is_its_numbers(op: Operator, row: Row) -> None:
    """A step reads and writes a state by its strides and in its dtype, as it lies: what counts are the numbers."""
    s = draw(row.case).tokens(0, 1)
    assert s.state is not None
    for name, state in unusual(s.state).items():
        plain = State(
            **{key: x.to(row.dtype).clone(memory_format=torch.contiguous_format) for key, x in state.tensors().items()}
        )
        wanted = values(op.step(replace(s, state=plain), row, False))
        for inplace in (False, True) if state.memory.dtype == row.dtype else (False,):
            held = replace(s, state=state)
            found = op.step(held, row, inplace)
            for key, x in values(found).items():
                check_equal(f"{name}, {key}", x, wanted[key])
            if inplace and found.state.memory is not state.memory:
                raise AssertionError(f"{name}: the state came back in another tensor")


def unusual(state: State) -> dict[str, State]:
    """States that do not lie as State.zeros would lay them."""

    def each(change: Callable[[Tensor], Tensor]) -> State:
        return State(**{name: change(x) for name, x in state.tensors().items()})

    return {
        "in bfloat16": each(lambda x: x.bfloat16()),
        "in float64": each(lambda x: x.double()),
        "transposed": each(lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2)),
        "a slice of a wider one": each(lambda x: torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]]),
    }


def stepped() -> Iterator[Row]:
    return (Row(case) for case in [*few(), *few(shape="grouped"), *few(torch.float32), *few(torch.bfloat16)])


def stepped_exactly() -> Iterator[Row]:
    return (Row(case) for case in [*few(), *few(torch.float32)])


def packed_equals_separate(op: Operator, row: Row) -> None:
    """Packed sequences are separate runs; a tail of NaN gives zeros and zero gradients."""
    for offsets in packings(row):
        shape = replace(SHAPES["plain"], B=1, T=offsets[-1] + 3, offsets=offsets)
        clean = sample(row.case, shape)
        whole = results(lambda x: op.attend(x, row), with_poison(clean))
        wanted = results(lambda x, offsets=offsets: in_sequences(op, x, row, offsets), clean)
        check_all(whole, wanted, row.dtype, f"{len(offsets) - 1} sequences:")
        check_equal("tail", whole["out"][:, offsets[-1] :], torch.zeros_like(whole["out"][:, offsets[-1] :]))


def packings(row: Row) -> list[tuple[int, ...]]:
    """Empty sequences at every place, sequences of one token, and (once for a rule) 100 sequences of random length."""
    lengths = torch.randint(0, 7, (100,), generator=torch.Generator().manual_seed(0))
    many = (0, *lengths.cumsum(0).tolist())
    return [(0, 0, 5, 5, 9, 9), (0, 1, 2, 19, 20)] + ([many] if row.chunk and "channel" in row.case.decay else [])


def with_poison(s: Sample) -> Sample:
    """A packed sample with NaN in its tail."""
    if s.cu_seqlens is None:
        return s
    end = int(s.cu_seqlens[-1])
    return s.timed(lambda x, n: torch.cat((x[:, : end * n], torch.full_like(x[:, end * n :], torch.nan)), 1))


def in_sequences(op: Operator, s: Sample, row: Row, offsets: Iterable[int]) -> Output:
    """Each packed sequence by a call of its own, zeros in the tail."""
    assert s.state is not None
    out, states = [], []
    for n, (start, stop) in enumerate(itertools.pairwise(offsets)):
        alone = replace(s.tokens(start, stop), cu_seqlens=None, state=s.state.select([n]))
        piece, state = op.attend(alone, row)
        out.append(piece)
        states.append(state)
    tail = s.T - sum(x.shape[1] for x in out)
    return Output(torch.cat([*out, s.v.new_zeros(1, tail, *s.v.shape[2:])], 1), joined(states))


def joined(states: list[State]) -> State:
    """States of single sequences as one."""
    sums = [x.key_sum for x in states if x.key_sum is not None]
    return State(torch.cat([x.memory for x in states]), torch.cat(sums) if sums else None)


def packable() -> Iterator[Row]:
    return in_every_mode(few())


def padding_changes_nothing(op: Operator, row: Row) -> None:
    """Rows padded with zeros on either side, one row alone included, are the rows without padding."""
    s = draw(row.case)
    for rows, left in itertools.product((slice(0, 1), slice(0, s.q.shape[0])), (False, True)):
        batch = s.rows(rows.start, rows.stop)
        lengths = [s.T - 11 - 3 * b for b in range(rows.stop)]
        padded = pad(batch, lengths, left)
        found = op.attend(padded, row)
        for b, length in enumerate(lengths):
            start = s.T - length if left else 0
            alone = values(op.attend(padded.rows(b, b + 1).tokens(start, start + length), row))
            mine = Output(found.out[b : b + 1, start : start + length], found.state.select([b]))
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


def paddable() -> Iterator[Row]:
    """Rows whose decay is given per token: one per head would go on in the padding."""
    found = [case for shape in ("plain", "grouped") for case in few(shape=shape) if case.decay != "head"]
    return in_every_mode([*found, Case("additive", normalize=True)])


def decays_nest(op: Operator, row: Row) -> None:
    """[H] is [B,T,H] is [B,T,H,K] with equal entries, gradients included; None is zeros."""
    s = draw(row.case)
    B, T, H, K = *s.q.shape[:2], s.v.shape[2], s.q.shape[3]
    wanted = results(lambda x: op.attend(x, row), s)
    for letters, shape in {"[B,T,H]": (B, T, H, 1), "[B,T,H,K]": (B, T, H, K)}.items():
        wide = replace(s, log_decay=spread(s.log_decay, H, shape))
        found = results(lambda x: op.attend(x, row), wide)
        if s.log_decay is None:
            del found["grad log_decay"]
        else:
            found["grad log_decay"] = gathered(found["grad log_decay"], s.log_decay)
        check_all(found, wanted, row.dtype, f"{row.case.decay} as {letters}:")


def spread(log_decay: Tensor | None, H: int, shape: tuple[int, ...]) -> Tensor:
    """A decay in a wider shape; the last 1 of a shape is no axis."""
    x = torch.zeros(H, dtype=torch.float64) if log_decay is None else log_decay
    x = x[..., None] if x.ndim in (1, 3) else x
    x = x.expand(shape if shape[-1] > 1 or x.shape[-1] == 1 else (*shape[:-1], x.shape[-1]))
    return (x[..., 0] if shape[-1] == 1 else x).clone()


def gathered(grad: Tensor, narrow: Tensor) -> Tensor:
    """The gradient of a widened decay, summed back to the shape it came from."""
    grad = grad.sum(-1) if grad.ndim == 4 else grad
    return grad.sum((0, 1)) if narrow.ndim == 1 else grad


def narrow_decays() -> Iterator[Row]:
    decays, shapes = ("none", "head", "token"), ("plain", "packed")
    found = [Case(write, decay, shape) for write in write_names() for decay in decays for shape in shapes]
    extras = [Case("additive", "head", bonus=True), Case("additive", "token", normalize=True)]
    return in_every_mode([*found, *extras])


def rules_nest(op: Operator, row: Row) -> None:
    """Each rule with special arguments is another rule, gradients included."""
    s = draw(row.case)
    wanted = results(lambda x: op.attend(x, row), s)
    for name, same in NESTINGS[row.case.write].items():
        found = results(lambda x, same=same: op.attend(same(x), as_many_writes(row, same(x))), s)
        check_all(found, wanted, row.dtype, name)


def as_many_writes(row: Row, s: Sample) -> Row:
    """A row whose chunks have as many writes, for a sample that may make several a token."""
    return row if row.chunk is None else replace(row, chunk=row.chunk // recurrence(s).per_token)


def beta_of(s: Sample) -> Tensor:
    """The strengths [B,T,H] of a delta rule, with an axis for channels."""
    assert isinstance(s.write, Delta)
    assert isinstance(s.write.beta, Tensor)
    return s.write.beta[..., None]


def keys(s: Sample) -> Tensor:
    """k for every head of v."""
    return repeat_heads(s.k, s.v.shape[2])


def by_gates(s: Sample) -> Sample:
    return replace(s, write=GatedErase(beta_of(s) * torch.ones_like(keys(s)), beta_of(s) * torch.ones_like(s.v)))


def by_low_rank(s: Sample) -> Sample:
    return replace(s, v=beta_of(s) * s.v, write=LowRank(beta_of(s) * keys(s), s.k))


def by_two_equal_halves(s: Sample) -> Sample:
    """A write of strength beta, and one of strength 0 after it."""
    beta = beta_of(s).squeeze(-1)
    twice = torch.stack((beta, torch.zeros_like(beta)), 2).flatten(1, 2)
    return replace(s, k=doubled(s.k), v=doubled(s.v), write=DeltaProduct(twice, 2))


def doubled(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1)


NESTINGS: dict[str, dict[str, Callable[[Sample], Sample]]] = {
    "delta": {
        "ReadKey(k, beta):": lambda s: replace(s, write=ReadKey(s.k, beta_of(s).squeeze(-1))),
        "GatedErase(beta, beta):": by_gates,
        "DeltaProduct(beta, 1):": lambda s: replace(s, write=DeltaProduct(beta_of(s).squeeze(-1), 1)),
        "DeltaProduct((beta, 0), 2):": by_two_equal_halves,
        "LowRank(beta k, k):": by_low_rank,
    },
    "additive": {
        "ReadKey(0, 1):": lambda s: replace(s, write=ReadKey(torch.zeros_like(s.k), 1.0)),
        "GatedErase(0, 1):": lambda s: replace(s, write=GatedErase(torch.zeros_like(s.k), torch.ones_like(s.v))),
        "LowRank(k, 0):": lambda s: replace(s, write=LowRank(s.k, torch.zeros_like(s.k))),
    },
}


def nested() -> Iterator[Row]:
    decays = ("none", "channel")
    return in_every_mode(Case(write, decay, shape) for write in NESTINGS for decay in decays for shape in SHAPES)


def strength_has_three_shapes(op: Operator, row: Row) -> None:
    """beta as a number, as [H] and as [B,T,H] is the same; beta = 0 writes nothing and erases nothing."""
    s = draw(row.case)
    H, steps = s.v.shape[2], s.v.shape[:2]
    for beta in (0.0, 0.3, 2.0):
        number, head, full = (with_beta(s, b) for b in (beta, *spread_beta(beta, H, steps)))
        wanted = values(op.attend(number, row))
        check_all(values(op.attend(head, row)), wanted, row.dtype, f"beta {beta} as [H]:")
        check_all(values(op.attend(full, row)), wanted, row.dtype, f"beta {beta} as [B,T,H]:")
    silent = replace(s, v=torch.zeros_like(s.v[:, : s.T]), k=s.k[:, : s.T], write=Additive())
    check_all(values(op.attend(with_beta(s, 0.0), row)), values(op.attend(silent, row)), row.dtype, "beta 0:")


def spread_beta(beta: float, H: int, steps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.full((H,), beta, dtype=torch.float64), torch.full((*steps, H), beta, dtype=torch.float64)


def with_beta(s: Sample, beta: float | Tensor) -> Sample:
    rule = s.write
    changed = {name: beta if name == "beta" else x for name, x in fields(rule).items()}
    return replace(s, write=type(rule)(**changed))  # type: ignore[arg-type]


def with_strength() -> Iterator[Row]:
    """Every rule that carries a beta, in float64, and in bfloat16, which does not hold 0.3."""
    found = [name for name in write_names() if "beta" in fields(prototype(name))]
    dtypes = (torch.float64, torch.bfloat16)
    return in_every_mode(Case(name, "token", dtype=dtype) for name in found for dtype in dtypes)


def defaults_are_what_they_say(op: Operator, row: Row) -> None:
    """No scale is K**-0.5, or 1 with a normalizer; no state is zeros; mode auto is any mode."""
    s = draw(row.case)
    wanted = results(lambda x: op.attend(x, row), s)
    scale = 1.0 if s.normalize else s.q.shape[-1] ** -0.5
    check_all(results(lambda x: op.attend(replace(x, scale=scale), row), s), wanted, row.dtype, f"scale {scale}:")
    automatic = replace(row, mode="auto", chunk=None)
    check_all(results(lambda x: op.attend(x, automatic), s), wanted, row.dtype, "auto:")
    assert s.state is not None
    empty = replace(s, state=State(*(torch.zeros_like(x) for x in s.state.tensors().values())))
    bare = values(op.attend(replace(s, state=None), row))
    check_all(bare, values(op.attend(empty, row)), row.dtype, "no state:")


def gates_may_be_wider(op: Operator, row: Row) -> None:
    """Decays, strengths and gates may be float32 beside bfloat16 queries, keys and values: none of them is rounded."""
    wide = draw(replace(row.case, dtype=torch.float32))
    s = wide.map(lambda name, x: x.bfloat16() if name in ("q", "k", "v") else x)
    check_all(results(lambda x: op.attend(x, row), s), results(define, s.to(torch.float64)), row.dtype)


def mixed() -> Iterator[Row]:
    return in_every_mode(case for shape in ("plain", "packed") for case in few(torch.bfloat16, shape))


def default_rows() -> Iterator[Row]:
    return (Row(case) for shape in SHAPES for case in few(shape=shape))


def not_causal_is_the_square(op: Operator, row: Row) -> None:
    """causal=False is the explicit sum over all pairs of tokens of a sequence: outputs, state, gradients."""
    for s in (both_ways(row.case), replace(both_ways(row.case), scale=0.7)):
        found = results(lambda x: op.attend(x, row), with_poison(s))
        check_all(found, results(square, s.to(torch.float64)), row.dtype)


def both_ways(case: Case) -> Sample:
    """The sample of a case without its order of time."""
    return replace(draw(case), causal=False, state=None)


def square(s: Sample) -> Output:
    """out_t = scale sum_s w_ts v_s, w_ts = sum over K of q_t k_s and the decays that lie between the two."""
    H, K = s.v.shape[2], s.q.shape[3]
    offsets = [0, s.T] if s.cu_seqlens is None else s.cu_seqlens.tolist()
    scale = s.scale if s.scale is not None else (1.0 if s.normalize else K**-0.5)
    q, k = (repeat_heads(x, H) for x in (s.q, s.k))
    out, states = [], []
    for start, stop in itertools.pairwise(offsets):
        span = slice(start, stop)
        between, leaving = distances(s, start, stop)
        w = torch.einsum("bthk,bshk,btshk->bhts", q[:, span], k[:, span], between)
        read = torch.einsum("bhts,bshv->bthv", w, s.v[:, span])
        out.append(scale * read if not s.normalize else read / w.sum(-1).transpose(1, 2)[..., None])
        kept = leaving * k[:, span]
        states.append(State(torch.einsum("bshk,bshv->bhkv", kept, s.v[:, span]), kept.sum(1) if s.normalize else None))
    tail = s.T - offsets[-1]
    return Output(torch.cat([*out, s.v.new_zeros(s.v.shape[0], tail, *s.v.shape[2:])], 1), joined(states))


def distances(s: Sample, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """What the decays leave between every two tokens [B,T,T,H,K], and from each to the end [B,T,H,K].

    Backwards a decay acts on what lies behind it as well: between t < s the decays of t ... s - 1, not of t + 1 ... s.
    """
    B, T, H, K = s.q.shape[0], stop - start, s.v.shape[2], s.q.shape[3]
    a = whole_decay(s)[:, start:stop].exp()
    t = torch.arange(T)
    first, last, m = t[:, None, None], t[None, :, None], t[None, None, :]
    forward, backward = (last < m) & (m <= first), (first <= m) & (m < last)
    between = a[:, None, None].masked_fill(~(forward | backward)[None, ..., None, None], 1).prod(3)
    leaving = a[:, None].masked_fill(~(m[0] > t[:, None])[None, ..., None, None], 1).prod(2)
    return between.expand(B, T, T, H, K), leaving.expand(B, T, H, K)


def whole_decay(s: Sample) -> Tensor:
    """The log-decays as [B,T,H,K]."""
    B, T, H, K = *s.q.shape[:2], s.v.shape[2], s.q.shape[3]
    x = s.q.new_zeros(H) if s.log_decay is None else s.log_decay
    return (x[..., None] if x.ndim in (1, 3) else x).expand(B, T, H, K)


def bidirectional() -> Iterator[Row]:
    found = [c for c in cases() if not prototype(c.write).reads_back and not c.bonus and "flush" not in c.decay]
    low = [replace(c, dtype=torch.bfloat16) for c in found if c.decay in ("none", "channel")]
    return (row for row in in_every_mode([*found, *low]) if row.mode != "recurrent")


LAWS = (
    Law(modes_agree, all_modes),
    Law(literal_agrees, plain_rules),
    Law(cutting_changes_nothing, unpacked),
    Law(step_is_one_token, stepped),
    Law(step_in_place_is_step, stepped_exactly),
    Law(a_state_is_its_numbers, stepped_exactly),
    Law(packed_equals_separate, packable),
    Law(padding_changes_nothing, paddable),
    Law(decays_nest, narrow_decays),
    Law(rules_nest, nested),
    Law(strength_has_three_shapes, with_strength),
    Law(defaults_are_what_they_say, default_rows),
    Law(gates_may_be_wider, mixed),
    Law(not_causal_is_the_square, bidirectional),
)
