"""Error budgets: how far a result may lie from the float64 token loop on the same inputs.

The error of a tensor is its largest difference from the exact one over the largest exact magnitude (at least FLOOR).
`measure` in tests/testing/test_budgets.py takes the worst error of each dtype and quantity over the whole product of
samples and modes of the recurrence on the reference backend. It said, and the budgets make of it:

    dtype       measured out, state, grad     budget
    float64     1.8e-15  1.9e-15  3.7e-15     times four
    float32     5.0e-07  6.9e-07  1.1e-06     times four
    bfloat16    3.6e-03  5.1e-07  3.9e-03     out: half a unit of 8 bits, 2^-8, and float32; grad: times two
    float16     4.4e-04  5.3e-07  4.3e-04     out: half a unit of 11 bits, 2^-11, and float32; grad: times two

A gradient in a short dtype is rounded once, but the sum of two of them (a key used by the rule and by the read) twice.

The state is float32 whatever the inputs are, so its error never is that of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

FLOOR = 1e-3
"""Magnitude below which an error is absolute: a gradient may be exactly 0."""

BUDGETS: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"out": 8e-15, "state": 8e-15, "grad": 1.6e-14},
    torch.float32: {"out": 2e-6, "state": 3e-6, "grad": 5e-6},
    torch.bfloat16: {"out": 4.0e-3, "state": 3e-6, "grad": 8.0e-3},
    torch.float16: {"out": 5.0e-4, "state": 3e-6, "grad": 1.0e-3},
}


def error(actual: Tensor, exact: Tensor) -> float:
    """The largest difference over the largest exact magnitude; infinite where one is not a number."""
    if actual.shape != exact.shape:
        return float("inf")
    if exact.numel() == 0:
        return 0.0
    actual, exact = actual.detach().double(), exact.detach().double()
    worst = float((actual - exact).abs().amax() / exact.abs().amax().clamp(min=FLOOR))
    return worst if worst == worst else float("inf")


def budget(name: str, dtype: torch.dtype) -> float:
    """The budget of a quantity by its name: "out", "state.memory", "grad q", ..."""
    return next(limit for kind, limit in BUDGETS[dtype].items() if name.startswith(kind))


def check(what: str, actual: Tensor, exact: Tensor, limit: float) -> None:
    """Raises an AssertionError with the numbers when the error is above the limit."""
    if actual.shape != exact.shape:
        raise AssertionError(f"{what}: shape {list(actual.shape)}, expected {list(exact.shape)}")
    found = error(actual, exact)
    if not found <= limit:
        raise AssertionError(f"{what}: error {found:.2e} > {limit:.2e}{where(actual, exact)}")


def check_equal(what: str, actual: Tensor, exact: Tensor) -> None:
    """Raises an AssertionError unless both are the same, bit for bit up to the sign of zero."""
    if actual.shape != exact.shape or not torch.equal(actual, exact):
        raise AssertionError(f"{what}: not equal, error {error(actual, exact):.2e}{where(actual, exact)}")


def check_all(
    actual: dict[str, Tensor],
    exact: dict[str, Tensor],
    limits: torch.dtype | Callable[[str], float],
    what: str = "",
) -> None:
    """Every named result within its limit, or the budgets of a dtype; both sides must hold the same names."""
    if actual.keys() != exact.keys():
        raise AssertionError(f"{what} results {sorted(actual)}, expected {sorted(exact)}")
    for name, x in exact.items():
        limit = budget(name, limits) if isinstance(limits, torch.dtype) else limits(name)
        check(f"{what} {name}".strip(), actual[name], x, limit)


def where(actual: Tensor, exact: Tensor) -> str:
    """The place and the two values of the largest difference."""
    if actual.shape != exact.shape or exact.numel() == 0:
        return f" (shapes {list(actual.shape)} and {list(exact.shape)})"
    difference = (actual.detach().double() - exact.detach().double()).abs().nan_to_num(nan=torch.inf)
    place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return f" at {place}: {actual[place].item():.6g}, expected {exact[place].item():.6g}"
