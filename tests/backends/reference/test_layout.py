"""Sequences are cut into chunks and joined again: every token once, the longest first, no chunk longer than needed."""

from itertools import pairwise

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from rebracket.backends.reference import layout as module
from rebracket.backends.reference.layout import layout
from rebracket.testing.budgets import check_equal

OFFSETS = [[0, 10], [0, 0, 5, 5, 9, 9], [0, 1, 2, 3], [0, 7, 8, 20], [0], [0, 0]]
H, D = 2, 3


def cut(offsets: list[int], tail: int, C: int) -> tuple[module.Layout, torch.Tensor]:
    T = offsets[-1] + tail
    return layout(torch.tensor(offsets), T, C), torch.randn(1, T, H, D, dtype=torch.float64)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("C", [1, 3, 16])
@pytest.mark.parametrize("tail", [0, 4])
def test_split_and_joined_is_the_same_with_zeros_in_the_tail(offsets: list[int], tail: int, C: int):
    found, x = cut(offsets, tail, C)
    wanted = x.clone()
    wanted[:, offsets[-1] :] = 0
    check_equal("x", found.join(found.split(x), 1, x.shape[1]), wanted)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("C", [1, 3, 16])
def test_chunks_hold_consecutive_tokens_of_one_sequence_in_order_of_steps(offsets: list[int], C: int):
    found, _ = cut(offsets, 2, C)
    lengths = [b - a for a, b in pairwise(offsets)]
    assert found.order.tolist() == sorted(range(len(lengths)), key=lambda n: -lengths[n])
    chunks = iter(found.tokens.tolist())
    for step, alive in enumerate(found.alive):
        for n in found.order.tolist()[:alive]:
            start = offsets[n] + step * found.tokens.shape[1]
            wanted = [t for t in range(start, start + found.tokens.shape[1]) if t < offsets[n + 1]]
            assert [t for t in next(chunks) if t >= 0] == wanted
    assert next(chunks, None) is None
    assert sorted(found.tokens[found.tokens >= 0].tolist()) == list(range(offsets[-1]))


def test_no_chunk_is_longer_than_the_longest_sequence():
    """In parallel mode C = T, but a hundred short sequences are not a hundred chunks of T tokens."""
    found, _ = cut(list(range(0, 101, 5)), 0, 100)
    assert found.tokens.shape == (20, 5)


def test_padding_is_zero():
    found, x = cut([0, 5], 0, 4)
    chunks = found.split(x)
    assert chunks.shape == (2, H, 4, D)
    assert not chunks[1, :, 1:].any()


@pytest.mark.parametrize("checker", [gradcheck, gradgradcheck])
def test_gradients_pass_both_ways(checker):
    found, x = cut([0, 5, 5, 9], 2, 4)
    assert checker(found.split, (x.requires_grad_(),))
    assert checker(lambda y: found.join(y, 1, 11), (found.split(x).detach().requires_grad_(),))


def test_a_tail_of_nan_reaches_nothing_in_either_direction():
    found, x = cut([0, 5], 2, 4)
    x[:, 5:] = torch.nan
    x.requires_grad_()
    (found.join(found.split(x), 1, 7) * torch.arange(7.0)[:, None, None]).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert not x.grad[:, 5:].any()
