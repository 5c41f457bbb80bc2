"""The correction takes a part of the key off the query, for each head its own."""

import torch

from rebracket.nn import QueryCorrection


def test_every_head_has_its_own_part():
    correction, q, k = QueryCorrection(3), torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(correction(q, k), q - k)
    with torch.no_grad():
        correction.d.copy_(torch.tensor([0.0, 2.0, -1.0]))
    for head, part in enumerate((0.0, 2.0, -1.0)):
        torch.testing.assert_close(correction(q, k)[:, :, head], q[:, :, head] - part * k[:, :, head])
    torch.testing.assert_close(correction(q[:, 0], k[:, 0]), correction(q, k)[:, 0])
    correction.reset_parameters()
    assert torch.equal(correction.d, torch.ones(3))


def test_it_keeps_the_dtype_of_the_query():
    q = torch.randn(1, 3, 4, dtype=torch.bfloat16)
    assert QueryCorrection(3)(q, q).dtype == torch.bfloat16
