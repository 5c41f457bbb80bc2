"""A call is cut into chunks and joined again, every token once; pieces and what is recomputed change no bit."""

from itertools import pairwise

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from rebracket.backends.reference import chunked
from rebracket.testing.budgets import check_all, check_equal
from rebracket.testing.law import Row, loss, results, values
from rebracket.testing.memory import peak_tensor_nbytes
from rebracket.testing.operators.recurrence import Case, Shape, draw, few, sample

ROWS = [Row(case, "chunk", chunk) for shape in ("plain", "packed") for case in few(shape=shape) for chunk in (1, 5)]
OFFSETS = [[0, 10], [0, 0, 5, 5, 9, 9], [0, 1, 2, 3], [0, 7, 8, 20], [0], [0, 0]]
H, D = 2, 3


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_pieces_of_a_few_steps_are_the_whole(row: Row, monkeypatch: pytest.MonkeyPatch):
    wanted = results(lambda s: s.run(row), draw(row.case))
    monkeypatch.setattr(chunked, "STEPS", 3)
    check_all(results(lambda s: s.run(row), draw(row.case)), wanted, torch.float64)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_recomputing_changes_no_bit(row: Row, monkeypatch: pytest.MonkeyPatch):
    found = []
    for small in (0, 1000):
        monkeypatch.setattr(chunked, "SMALL_CHUNK", small)
        found.append(results(lambda s: s.run(row), draw(row.case)))
    for name, x in found[0].items():
        check_equal(name, found[1][name], x)


def test_recomputing_saves_the_states_of_small_chunks(monkeypatch: pytest.MonkeyPatch):
    peaks = []
    for small in (0, 16):
        monkeypatch.setattr(chunked, "SMALL_CHUNK", small)
        s = sample(Case("delta", "token", dtype=torch.float32), Shape(1, 256, 1, 1, 24, 30)).leaves()
        row = Row(Case(), "recurrent", None)
        peaks.append(peak_tensor_nbytes(lambda s=s, row=row: loss(values(s.run(row))).backward()))
    assert peaks[1] < peaks[0] / 2


@pytest.mark.parametrize("write", ["additive", "delta"])
def test_a_key_in_bfloat16_has_its_gradient_rounded_once(write: str):
    """Every entry is within half a unit of the float32 one: a key that is also read back adds its parts up before."""
    case = Case(write, "none", dtype=torch.bfloat16)
    row = Row(case)
    short, exact = (results(lambda s: s.run(row), x)["grad k"] for x in (draw(case), draw(case).to(torch.float32)))
    assert bool(((short.float() - exact).abs() <= 1.01 * 2.0**-8 * exact.abs() + 1e-5).all())


def drawn(offsets: list[int], padding: int, C: int) -> tuple[chunked.Cut, torch.Tensor]:
    return chunked.Cut.of(torch.tensor(offsets), H, C), torch.randn(1, offsets[-1] + padding, H, D, dtype=torch.float64)


def tokens(cut: chunked.Cut, T: int) -> list[list[int]]:
    """The tokens of every chunk of the first head, found by cutting their numbers."""
    numbers = torch.arange(1.0, T + 1).view(1, T, 1, 1).expand(1, T, H, 1)
    return [[int(t) - 1 for t in chunk if t > 0] for chunk in cut.split(numbers)[:, 0, :, 0].tolist()]


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("C", [1, 3, 16])
@pytest.mark.parametrize("padding", [0, 4])
def test_split_and_joined_is_the_same_with_zeros_in_the_padding(offsets: list[int], padding: int, C: int):
    cut, x = drawn(offsets, padding, C)
    wanted = x.clone()
    wanted[:, offsets[-1] :] = 0
    check_equal("x", cut.join(cut.split(x), 1, x.shape[1]), wanted)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("C", [1, 3, 16])
def test_chunks_hold_consecutive_tokens_of_one_sequence_in_order_of_steps(offsets: list[int], C: int):
    cut, x = drawn(offsets, 2, C)
    lengths = [b - a for a, b in pairwise(offsets)]
    assert cut.order.tolist() == sorted(range(len(lengths)), key=lambda n: -lengths[n])
    found = tokens(cut, x.shape[1])
    chunks = iter(found)
    for step, running in enumerate(cut.running):
        for n in cut.order.tolist()[:running]:
            start = offsets[n] + step * cut.C
            assert next(chunks) == [t for t in range(start, start + cut.C) if t < offsets[n + 1]]
    assert next(chunks, None) is None
    assert sorted(t for chunk in found for t in chunk) == list(range(offsets[-1]))


def test_no_chunk_is_longer_than_the_longest_sequence():
    """In parallel mode C = T, but a hundred short sequences are not a hundred chunks of T tokens."""
    cut, _ = drawn(list(range(0, 101, 5)), 0, 100)
    assert (cut.M, cut.C) == (20, 5)


def test_what_no_token_fills_is_zero():
    cut, x = drawn([0, 5], 0, 4)
    chunks = cut.split(x)
    assert chunks.shape == (2, H, 4, D)
    check_equal("head", chunks[1, 1, 0], x[0, 4, 1])
    assert not chunks[1, :, 1:].any()


@pytest.mark.parametrize("checker", [gradcheck, gradgradcheck])
def test_gradients_pass_both_ways(checker):
    cut, x = drawn([0, 5, 5, 9], 2, 4)
    assert checker(cut.split, (x.requires_grad_(),))
    assert checker(lambda y: cut.join(y, 1, 11), (cut.split(x).detach().requires_grad_(),))


def test_padding_of_nan_reaches_nothing_in_either_direction():
    cut, x = drawn([0, 5], 2, 4)
    x[:, 5:] = torch.nan
    x.requires_grad_()
    (cut.join(cut.split(x), 1, 7) * torch.arange(7.0)[:, None, None]).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert not x.grad[:, 5:].any()
