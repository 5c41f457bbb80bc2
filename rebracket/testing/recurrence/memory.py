"""Laws of memory: what a call holds grows with its tokens and no faster."""

from __future__ import annotations

from dataclasses import replace

import torch

from rebracket.testing.law import Row, Run, law, loss, values
from rebracket.testing.memory import peak_tensor_nbytes
from rebracket.testing.operators.recurrence import Shape, each_of, sample

F32 = (torch.float32,)


@law(
    over=lambda: [
        *(Row(case, "chunk", 64) for case in each_of(("additive", "delta"), ("none", "token", "channel"), dtypes=F32)),
        *(Row(case, "recurrent", None) for case in each_of(("additive", "delta"), ("channel",), dtypes=F32)),
    ]
)
def memory_grows_with_the_tokens(run: Run, row: Row) -> None:
    """Peak bytes of forward and backward grow as T, and as K and V, never as T K V, T T or T C K."""
    token = growth(run, row, 128, 32)
    ratios = {"T": (growth(run, row, 256, 32) / token, 1.05), "K and V": (growth(run, row, 128, 64) / token, 2.1)}
    if row.chunk is not None:
        ratios["C"] = (token / growth(run, replace(row, chunk=32), 128, 32), 1.25)
    for what, (ratio, limit) in ratios.items():
        if not ratio <= limit:
            raise AssertionError(f"{what} doubled: bytes per token grew by {ratio:.2f} > {limit}")


@law(over=lambda: (Row(case, "auto", None) for case in each_of(decays=("none", "token", "channel"), dtypes=F32)))
def memory_both_ways_grows_with_the_tokens(run: Run, row: Row) -> None:
    """The same of a call without an order of time, which nobody told a mode."""
    memory_grows_with_the_tokens(lambda s, row: run(replace(s, causal=False, state=None), row), row)


@law(over=lambda: (Row(case, "parallel", None) for case in each_of(("additive", "delta"), ("channel",), dtypes=F32)))
def parallel_mode_holds_no_weight_per_channel(run: Run, row: Row) -> None:
    """[T,T] is what the parallel mode is made of; [T,T,K] would be K times as much."""
    T, K = 256, 64
    found, whole = peak(run, row, Shape(1, T, 1, 1, K, K + 1)), 4 * T * T * K
    if not found < whole:
        raise AssertionError(f"{found:,} bytes at T = {T}, K = {K}: as much as [T,T,K], {whole:,} bytes")


def growth(run: Run, row: Row, T: int, K: int) -> float:
    """Bytes that each token from T to 2 T costs."""
    V = K + K // 4
    return (peak(run, row, Shape(1, 2 * T, 1, 1, K, V)) - peak(run, row, Shape(1, T, 1, 1, K, V))) / T


def peak(run: Run, row: Row, shape: Shape) -> int:
    """Peak bytes of outputs, state and all gradients."""
    s = sample(row.case, shape).leaves()
    return peak_tensor_nbytes(lambda: loss(values(run(s, row))).backward())
