"""Values made of tensors: names, copies with other tensors, rows by number and by mask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import pytest
import torch
from torch import Tensor

from rebracket.base.tensors import HeldTensors, map_tensors, named_tensors


@final
@dataclass(frozen=True, eq=False)
class Inner:
    y: Tensor
    size: int = 3


@final
@dataclass(frozen=True, eq=False)
class Held(HeldTensors):
    x: Tensor
    absent: Tensor | None
    inner: Inner
    several: tuple[Inner, ...]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        raise NotImplementedError


def held() -> Held:
    rows = torch.arange(3)
    return Held(rows + 0.5, None, Inner(rows[:, None] * 2.0), (Inner(rows), Inner(rows * 3)))


def test_tensors_have_names_and_values_in_values_too():
    assert list(named_tensors(held())) == ["x", "inner.y", "0.y", "1.y"]


def test_a_copy_with_other_tensors_keeps_all_else():
    seen = []
    changed = map_tensors(held(), lambda name, x: seen.append(name) or x + 1)
    assert seen == list(named_tensors(held()))
    assert changed.absent is None
    assert changed.inner.size == 3
    for name, x in named_tensors(changed).items():
        assert torch.equal(x, named_tensors(held())[name] + 1)


MASK = [True, False, True]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([2, 0], [2, 0]),
        ([-1], [2]),
        (1, [1]),
        (torch.tensor(-1), [2]),
        (np.int64(2), [2]),
        ([], []),
        ((1, 1), [1, 1]),
        (slice(1, None), [1, 2]),
        (torch.tensor([2, 0], dtype=torch.int32), [2, 0]),
        (np.array([2, 0]), [2, 0]),
        (MASK, [0, 2]),
        (torch.tensor(MASK), [0, 2]),
        (np.array(MASK), [0, 2]),
    ],
    ids=str,
)
def test_rows_by_number_by_mask_and_by_slice(rows: Any, wanted: list[int]):
    for name, x in held().select(rows).tensors().items():
        assert torch.equal(x, held().tensors()[name][torch.tensor(wanted, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("rows", "error"),
    [(True, ValueError), ([[1]], ValueError), ([True, False], ValueError), ([0.5], TypeError), (1.0, TypeError)],
)
def test_rows_that_are_none_are_refused(rows: Any, error: type[Exception]):
    with pytest.raises(error, match="rows must be"):
        held().select(rows)


def test_counts_stay_whole_numbers_in_another_dtype():
    dtypes = [x.dtype for x in held().to(torch.float64).tensors().values()]
    assert dtypes == [torch.float64, torch.float64, torch.int64, torch.int64]


def test_a_fork_goes_its_own_way():
    first = held()
    second = first.fork()
    second.x.add_(1)
    assert torch.equal(first.x, held().x)
    assert first.nbytes == second.nbytes == 3 * (4 + 4 + 8 + 8)
