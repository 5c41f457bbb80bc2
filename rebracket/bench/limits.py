"""What the machine can do: products of matrices, copies, and one pass over a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from rebracket.bench.cases import Case
from rebracket.bench.clock import Pace, Timing, laps, threads

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

    def seconds(self, case: Case, rate: float | None = None) -> float:
        """The least that a case can take: its operations at the rate of float32, its bytes at that of a copy.

        Args:
            case: to bound.
            rate: operations a second, measured beside the case.
        """
        return max(case.operations / (rate or self.float32), case.nbytes / self.copy)


def measure(count: int, pace: Pace) -> Limits:
    """Takes the rates in turns."""
    with threads(count), torch.no_grad():
        found = laps({**products(), **copies()}, pace).timings
    return Limits(
        count,
        float32=rate(2 * SIDE**3, found["float32"]),
        bfloat16=rate(2 * SIDE**3, found["bfloat16"]),
        copy=rate(8 * LARGE, found["copy"]),
        cache=rate(8 * SMALL, found["cache"]),
    )


def rate(amount: float, timing: Timing) -> float:
    return amount / timing.median


def product(dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """One torch.mm of square matrices."""
    a, b, c = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(3))
    return partial(torch.mm, a, b, out=c)


def products() -> dict[str, Callable[[], Tensor]]:
    return {"float32": product(), "bfloat16": product(torch.bfloat16)}


def copies() -> dict[str, Callable[[], Tensor]]:
    sources = {"copy": torch.ones(LARGE), "cache": torch.ones(SMALL)}
    return {name: partial(torch.empty_like(x).copy_, x) for name, x in sources.items()}


def yardstick(case: Case) -> tuple[str, Callable[[], Tensor]]:
    """What is timed beside a case to measure it by: a product of matrices, in decode a pass over its state."""
    if case.mode == "decode":
        shape = case.shape
        state = torch.ones(shape.B, shape.H, shape.D, shape.D + case.rule.normalizes)
        return SCALING, partial(state.mul_, 1.0)
    return PRODUCT, product()


def least(case: Case, limits: Limits, beside: Timing) -> float:
    """The seconds that a case is compared with, `beside` being the time of its yardstick."""
    return beside.median if case.mode == "decode" else limits.seconds(case, rate(2 * SIDE**3, beside))
