"""What the machine can do: products of matrices, copies, and one pass over a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from rebracket.bench.case import Case
from rebracket.bench.clock import Budget, Timing, measure, threads

PRODUCT, SCALING = "torch.mm", "state * number"
SIDE = 1024
LARGE, SMALL = 32 << 20, 64 << 10
"""Numbers of a copy that no cache holds, and of one that stays in a core's own."""


@final
@dataclass(frozen=True)
class Limits:
    """Rates at one thread count.

    Args:
        threads: as many.
        float32: operations a second of torch.mm, a multiply-add being 2.
        bfloat16: the same.
        copy: bytes read and written a second by a copy through memory.
        cache: the same within a core's cache.
    """

    threads: int
    float32: float
    bfloat16: float
    copy: float
    cache: float


def measure_limits(count: int, budget: Budget) -> Limits:
    """Takes the rates in turns."""
    sources = {"copy": torch.ones(LARGE), "cache": torch.ones(SMALL)}
    copies = {name: partial(torch.empty_like(x).copy_, x) for name, x in sources.items()}
    products = {"float32": product(torch.float32), "bfloat16": product(torch.bfloat16)}
    amounts = dict.fromkeys(products, 2 * SIDE**3) | {"copy": 8 * LARGE, "cache": 8 * SMALL}
    with threads(count), torch.no_grad():
        found, _ = measure({**products, **copies}, budget)
    return Limits(count, *(amount / found[name].median for name, amount in amounts.items()))


def product(dtype: torch.dtype) -> Callable[[], Tensor]:
    """One torch.mm of square matrices."""
    a, b, c = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(3))
    return partial(torch.mm, a, b, out=c)


def yardstick(case: Case) -> tuple[str, Callable[[], Tensor]]:
    """What is timed beside a case to measure it by: a product of matrices, in decode a pass over its state."""
    if case.mode == "decode":
        return SCALING, partial(torch.ones(case.work.state_nbytes // 4).mul_, 1.0)
    return PRODUCT, product(torch.float32)


def least(case: Case, limits: Limits, beside: Timing) -> float:
    """The seconds that a case is compared with, `beside` being the time of its yardstick.

    Over a sequence its operations at the rate of the product, or its bytes at that of a copy where that takes longer.
    """
    if case.mode == "decode":
        return beside.median
    return max(case.work.operations / (2 * SIDE**3 / beside.median), case.work.nbytes / limits.copy)
