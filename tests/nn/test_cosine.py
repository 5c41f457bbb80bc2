"""Cosine weights: near tokens count more, and nothing turns negative."""

import math

import pytest
import torch

from rebracket.nn.cosine import CosineWeights

B, T, H, K = 2, 7, 3, 4


def sample(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(*shape, dtype=torch.float64)


@pytest.mark.parametrize("horizon", [6, 9, 1000])
def test_products_are_weighted_by_the_cosine_of_the_distance(horizon: int):
    q, k = sample(2, 1, T, 1, K)
    weigh, where = CosineWeights(K, horizon), torch.arange(T)
    found = weigh(q, where)[0, :, 0] @ weigh(k, where)[0, :, 0].T
    for i in range(T):
        for j in range(T):
            wanted = math.cos(math.pi * (i - j) / 2 / horizon) * q[0, i, 0] @ k[0, j, 0]
            torch.testing.assert_close(found[i, j], wanted, rtol=1e-12, atol=1e-12)


def test_positions_beyond_the_horizon_count_as_the_horizon():
    x, weigh = sample(1, 4, H, K), CosineWeights(K, 5)
    assert torch.equal(weigh(x, torch.tensor([5, 6, 10, 10**9])), weigh(x, torch.tensor([5, 5, 5, 5])))
    assert not torch.equal(weigh(x, torch.tensor([4, 5, 5, 5])), weigh(x, torch.tensor([5, 5, 5, 5])))


def test_no_feature_turns_negative():
    x = sample(1, 1000, H, K)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert (CosineWeights(K, 300)(x.to(dtype), torch.arange(1000)) >= 0).all()


def test_rows_have_positions_of_their_own():
    x, weigh = sample(B, T, H, K), CosineWeights(K, 50)
    where = torch.stack([torch.arange(T), 30 + torch.arange(T)])
    out = weigh(x, where)
    assert out.shape == (B, T, H, 2 * K)
    for row in range(B):
        assert torch.equal(out[row], weigh(x[row : row + 1], where[row])[0])


def test_a_short_dtype_rounds_the_result_alone():
    x, far = sample(1, T, H, K).to(torch.bfloat16), 10**6 + torch.arange(T)
    weigh = CosineWeights(K, 3 * 10**6).to(torch.bfloat16)
    exact = weigh(x.double(), far)
    assert torch.equal(weigh(x.float(), far).to(torch.bfloat16), weigh(x, far))
    torch.testing.assert_close(weigh(x, far).double(), exact, rtol=2**-8, atol=0)


def test_bad_calls_say_what_is_wrong():
    x = sample(B, T, H, K)
    for sizes, name in (((0, 5), "dim"), ((4, 0), "horizon")):
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
            CosineWeights(*sizes)
    with pytest.raises(ValueError, match=r"x must be \[B,T,H,dim = 4\]"):
        CosineWeights(K, 9)(x[..., 1:], torch.arange(T))
    for where in (torch.arange(T + 1), torch.zeros(H, T), torch.tensor(3)):
        with pytest.raises(ValueError, match="positions must be"):
            CosineWeights(K, 9)(x, where)
