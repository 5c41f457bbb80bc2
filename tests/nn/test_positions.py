"""Every token knows its place in its own sequence."""

import pytest
import torch

from rebracket.nn.positions import advance, positions


@pytest.mark.parametrize("lengths", [[3, 4], [0, 0, 5, 0, 2], [1], [0], [7, 0]])
@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_positions_restart_behind_each_past(lengths: list[int], tail: int, dtype: torch.dtype):
    seen = torch.arange(len(lengths)) * 10
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(dtype)
    found = positions(seen, sum(lengths) + tail, bounds)
    wanted = [10 * row + t for row, length in enumerate(lengths) for t in range(length)]
    assert found.shape == (1, sum(lengths) + tail)
    assert found[0, : sum(lengths)].tolist() == wanted
    assert advance(seen, sum(lengths) + tail, bounds).tolist() == [10 * i + n for i, n in enumerate(lengths)]


def test_rows_go_on_from_their_own_pasts():
    seen = torch.tensor([0, 5])
    assert positions(seen, 3).tolist() == [[0, 1, 2], [5, 6, 7]]
    assert advance(seen, 3).tolist() == [3, 8]
    assert seen.tolist() == [0, 5]


def test_no_tokens():
    assert positions(torch.tensor([4, 2]), 0).shape == (2, 0)
    assert positions(torch.tensor([4]), 0, torch.tensor([0, 0])).shape == (1, 0)
