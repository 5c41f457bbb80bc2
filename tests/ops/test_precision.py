"""Short numbers are widened, long ones left alone, and autocast does not reach inside."""

import torch

from rebracket.ops.precision import at_least_float32, without_autocast


def test_only_short_numbers_are_widened():
    for dtype in (torch.float16, torch.bfloat16):
        assert at_least_float32(torch.ones(2, dtype=dtype)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype)
        assert at_least_float32(x) is x


def test_products_are_exact_inside():
    x = torch.randn(9, 9)
    exact = x @ x
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert torch.equal(x @ x, exact)
    with without_autocast(x), without_autocast(x.to("meta")):
        assert torch.equal(x @ x, exact)
