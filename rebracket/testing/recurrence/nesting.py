"""Laws of special cases: a narrow decay in a wide shape, a rule with the arguments that make another rule of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.ops.writes.delta_product import DeltaProduct
from rebracket.ops.writes.gated_erase import GatedErase
from rebracket.ops.writes.low_rank import LowRank
from rebracket.ops.writes.read_key import ReadKey
from rebracket.testing.budgets import check_all
from rebracket.testing.law import Row, Run, law, results, values
from rebracket.testing.operators.recurrence import (
    SHAPES,
    Case,
    Sample,
    in_every_mode,
    prototype,
    recurrence,
    write_names,
)


def narrow_decays() -> Iterator[Row]:
    decays, shapes = ("none", "head", "token"), ("plain", "packed")
    found = [Case(write, decay, shape) for write in write_names() for decay in decays for shape in shapes]
    extras = [Case("additive", "head", bonus=True), Case("additive", "token", normalize=True)]
    return in_every_mode([*found, *extras])


@law(over=narrow_decays)
def decays_nest(run: Run, row: Row) -> None:
    """[H] is [B,T,H] is [B,T,H,K] with equal entries, gradients included; None is zeros."""
    s = row.case.draw()
    B, T, H, K = *s.q.shape[:2], s.v.shape[2], s.q.shape[3]
    wanted = results(lambda x: run(x, row), s)
    for letters, shape in {"[B,T,H]": (B, T, H, 1), "[B,T,H,K]": (B, T, H, K)}.items():
        wide = replace(s, log_decay=spread(s.log_decay, H, shape))
        found = results(lambda x: run(x, row), wide)
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


@law(over=lambda: in_every_mode(itertools.starmap(Case, itertools.product(NESTINGS, ("none", "channel"), SHAPES))))
def rules_nest(run: Run, row: Row) -> None:
    """Each rule with special arguments is another rule, gradients included."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for name, same in NESTINGS[row.case.write].items():
        found = results(lambda x, same=same: run(same(x), as_many_writes(row, same(x))), s)
        check_all(found, wanted, row.dtype, name)


def with_strength() -> Iterator[Row]:
    """Every rule that carries a beta, in float64, and in bfloat16, which does not hold 0.3."""
    found = [name for name in write_names() if "beta" in vars(prototype(name))]
    dtypes = (torch.float64, torch.bfloat16)
    return in_every_mode(Case(name, "token", dtype=dtype) for name in found for dtype in dtypes)


@law(over=with_strength)
def strength_has_three_shapes(run: Run, row: Row) -> None:
    """beta as a number, as [H] and as [B,T,H] is the same; beta = 0 writes nothing and erases nothing."""
    s = row.case.draw()
    H, steps = s.v.shape[2], s.v.shape[:2]
    for beta in (0.0, 0.3, 2.0):
        number, head, full = (with_beta(s, b) for b in (beta, *spread_beta(beta, H, steps)))
        wanted = values(run(number, row))
        check_all(values(run(head, row)), wanted, row.dtype, f"beta {beta} as [H]:")
        check_all(values(run(full, row)), wanted, row.dtype, f"beta {beta} as [B,T,H]:")
    silent = replace(s, v=torch.zeros_like(s.v[:, : s.T]), k=s.k[:, : s.T], write=Additive())
    check_all(values(run(with_beta(s, 0.0), row)), values(run(silent, row)), row.dtype, "beta 0:")


def spread_beta(beta: float, H: int, steps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.full((H,), beta, dtype=torch.float64), torch.full((*steps, H), beta, dtype=torch.float64)


def with_beta(s: Sample, beta: float | Tensor) -> Sample:
    rule = s.write
    changed = {name: beta if name == "beta" else x for name, x in vars(rule).items()}
    return replace(s, write=type(rule)(**changed))  # type: ignore[arg-type]
