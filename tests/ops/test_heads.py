"""Head h of v uses head h // (H // Hq) of q and k."""

import torch

from rebracket.ops.heads import repeat_heads


def test_every_head_stands_next_to_its_copies():
    x = torch.arange(3.0).view(1, 1, 3, 1)
    assert repeat_heads(x, 6).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert [int(repeat_heads(x, 12)[0, 0, h, 0]) for h in range(12)] == [h // 4 for h in range(12)]


def test_as_many_heads_are_the_same_tensor():
    x = torch.ones(2, 5, 3, 4)
    assert repeat_heads(x, 3) is x


def test_another_axis_may_hold_the_heads():
    assert repeat_heads(torch.arange(2.0)[:, None], 4, 0).flatten().tolist() == [0, 0, 1, 1]
