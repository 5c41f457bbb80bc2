"""Laws of special cases: a narrow decay in a wide shape, a rule with the arguments that make another rule of it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    RULES,
    SHAPES,
    Case,
    Sample,
    each_of,
    in_every_mode,
    recurrence,
    write_names,
)


@law(
    over=lambda: in_every_mode(
        each_of(write_names(), ("none", "head", "token"), ("plain", "packed")),
        [Case("additive", "head", bonus=True), Case("additive", "token", normalize=True)],
    )
)
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


def beta_of(s: Sample) -> Tensor:
    """The strengths [B,T,H] of a delta rule."""
    assert isinstance(s.write, Delta)
    assert isinstance(s.write.beta, Tensor)
    return s.write.beta


def by_gates(s: Sample) -> Sample:
    keys, beta = repeat_heads(s.k, s.v.shape[2]), beta_of(s)[..., None]
    return replace(s, write=GatedErase(beta.expand_as(keys), beta.expand_as(s.v)))


def by_low_rank(s: Sample) -> Sample:
    keys, beta = repeat_heads(s.k, s.v.shape[2]), beta_of(s)[..., None]
    return replace(s, v=beta * s.v, write=LowRank(beta * keys, s.k))


def by_two_writes(s: Sample) -> Sample:
    """A write of strength beta, and one of strength 0 after it."""
    twice = torch.stack((beta_of(s), torch.zeros_like(beta_of(s))), 2).flatten(1, 2)
    k, v = (x.repeat_interleave(2, 1) for x in (s.k, s.v))
    return replace(s, k=k, v=v, write=DeltaProduct(twice, 2))


NESTINGS: dict[str, dict[str, Callable[[Sample], Sample]]] = {
    "delta": {
        "ReadKey(k, beta):": lambda s: replace(s, write=ReadKey(s.k, beta_of(s))),
        "GatedErase(beta, beta):": by_gates,
        "DeltaProduct(beta, 1):": lambda s: replace(s, write=DeltaProduct(beta_of(s), 1)),
        "DeltaProduct((beta, 0), 2):": by_two_writes,
        "LowRank(beta k, k):": by_low_rank,
    },
    "additive": {
        "ReadKey(0, 1):": lambda s: replace(s, write=ReadKey(torch.zeros_like(s.k), 1.0)),
        "GatedErase(0, 1):": lambda s: replace(s, write=GatedErase(torch.zeros_like(s.k), torch.ones_like(s.v))),
        "LowRank(k, 0):": lambda s: replace(s, write=LowRank(s.k, torch.zeros_like(s.k))),
    },
}


@law(over=lambda: in_every_mode(each_of(NESTINGS, ("none", "channel"), SHAPES)))
def rules_nest(run: Run, row: Row) -> None:
    """Each rule with special arguments is another rule, gradients included."""
    s = row.case.draw()
    wanted = results(lambda x: run(x, row), s)
    for name, same in NESTINGS[row.case.write].items():
        writes = recurrence(same(s)).per_token  # as many of them a chunk as the rule itself makes
        way = row if row.chunk is None else replace(row, chunk=row.chunk // writes)
        found = results(lambda x, same=same, way=way: run(same(x), way), s)
        check_all(found, wanted, row.dtype, name)


def hints(write: str) -> dict[str, Any]:
    """The types of a rule's fields by name."""
    return typing.get_type_hints(RULES.load(write))


# In float64, and in bfloat16, which does not hold 0.3.
@law(
    over=lambda: in_every_mode(
        each_of(
            (name for name in write_names() if float in typing.get_args(hints(name).get("beta"))),
            ("token",),
            dtypes=(torch.float64, torch.bfloat16),
        )
    )
)
def strength_has_three_shapes(run: Run, row: Row) -> None:
    """beta as a number, as [H] and as [B,T,H] is the same; beta = 0 writes nothing and erases nothing."""
    s = row.case.draw()
    for beta in (0.0, 0.3, 2.0):
        wanted = values(run(with_beta(s, beta), row))
        for letters, shape in {"[H]": s.v.shape[2:3], "[B,T,H]": s.v.shape[:3]}.items():
            found = values(run(with_beta(s, torch.full(shape, beta, dtype=torch.float64)), row))
            check_all(found, wanted, row.dtype, f"beta {beta} as {letters}:")
    silent = replace(s, v=torch.zeros_like(s.v[:, : s.T]), k=s.k[:, : s.T], write=Additive())
    check_all(values(run(with_beta(s, 0.0), row)), values(run(silent, row)), row.dtype, "beta 0:")


def with_beta(s: Sample, beta: float | Tensor) -> Sample:
    return replace(s, write=type(s.write)(**(vars(s.write) | {"beta": beta})))
