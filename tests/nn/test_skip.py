"""The skip adds each head's own value in its own measure."""

import torch

from rebracket.nn.skip import ValueSkip


def test_every_head_has_its_own_weight():
    skip, out, v = ValueSkip(3), torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(skip(out, v), out + v)
    with torch.no_grad():
        skip.D.copy_(torch.tensor([0.0, 2.0, -1.0]))
    for head, weight in enumerate((0.0, 2.0, -1.0)):
        torch.testing.assert_close(skip(out, v)[:, :, head], out[:, :, head] + weight * v[:, :, head])


def test_it_keeps_the_dtype_of_the_output():
    assert ValueSkip(3).double()(torch.randn(1, 3, 4), torch.randn(1, 3, 4)).dtype == torch.float32
