"""Weights are products of exactly the decays between two places, whatever the decays are."""

import math

import pytest
import torch

from rebracket.backends.reference.weights import Weights, weights
from rebracket.testing.budgets import check

M, H, K = 2, 3, 4
GATES = {
    "mild": lambda x: x,
    "strong": lambda x: x.masked_fill(x < -0.5, -1e6),
    "erasing": lambda x: x.masked_fill(x < -0.5, -math.inf),
    "weak": lambda x: 1e-12 * x,
    "none": torch.zeros_like,
}


def decays(C: int, channels: int, gates: str) -> torch.Tensor:
    torch.manual_seed(C)
    return GATES[gates](-torch.rand(M, H, C, channels, dtype=torch.float64))


def products(log_decay: torch.Tensor, first: int) -> torch.Tensor:
    """D[i,j], the product of the factors of first + j ... i one by one, [M,H,C,C,K]; 0 where j > i."""
    a = log_decay.exp().expand(*log_decay.shape[:-1], K)
    C = a.shape[-2]
    table = torch.zeros(M, H, C, C, K, dtype=a.dtype)
    for i in range(C):
        for j in range(i + 1):
            table[..., i, j, :] = a[..., j + 1 : i + 1 + first, :].prod(-2)
    return table


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("channels", [1, K])
@pytest.mark.parametrize("C", [1, 2, 5, 8])
def test_every_weight_is_a_product(C: int, channels: int, gates: str):
    log_decay = decays(C, channels, gates)
    x, k = torch.randn(2, M, H, C, K, dtype=torch.float64)
    found, table = weights(log_decay), products(log_decay, 0)
    scores = torch.einsum("mhik,mhijk,mhjk->mhij", x, table, k)
    check("scores", found.scores(x, k).tril(), scores, 1e-13)
    factors = log_decay.exp().expand(M, H, C, K)
    entry = factors.cumprod(-2)
    check("since_entry", found.since_entry(x), entry * x, 1e-13)
    check("until_exit", found.until_exit(k), table[..., -1, :, :] * k, 1e-13)
    over = found.over_chunk()
    assert over is not None
    check("over_chunk", over.squeeze(-1).expand(M, H, K), entry[..., -1, :], 1e-13)


@pytest.mark.parametrize("gates", ["mild", "erasing"])
@pytest.mark.parametrize("channels", [1, K])
def test_reads_before_a_token_do_not_meet_its_decay(channels: int, gates: str):
    C = 6
    log_decay = decays(C, channels, gates)
    x, k = torch.randn(2, M, H, C, K, dtype=torch.float64)
    found, table = weights(log_decay).before(), products(log_decay, -1)
    scores = torch.einsum("mhik,mhijk,mhjk->mhij", x, table, k)
    check("scores", found.scores(x, k).tril(-1), scores.tril(-1), 1e-13)
    entry = torch.cat((torch.ones(M, H, 1, K, dtype=torch.float64), log_decay.exp().expand(M, H, C, K).cumprod(-2)), -2)
    check("since_entry", found.since_entry(x), entry[..., :-1, :] * x, 1e-13)


def test_no_decay_costs_nothing():
    found = weights(None)
    x = torch.randn(M, H, 5, K)
    assert found.since_entry(x) is x
    assert found.until_exit(x) is x
    assert found.over_chunk() is None
    assert found.before() is found


@pytest.mark.parametrize("channels", [1, K])
def test_weak_gates_are_summed_before_they_are_rounded(channels: int):
    """64 float32 gates of -1e-5: each factor rounds by 3e-8, their sum does not."""
    log_decay = torch.full((1, 1, 64, channels), -1e-5)
    over = weights(log_decay).over_chunk()
    assert over is not None
    assert (1 - over.double()).flatten()[0].item() == pytest.approx(-math.expm1(-64e-5), rel=2e-4)


@pytest.mark.parametrize("channels", [1, K])
def test_gradients_are_finite_and_zero_where_a_decay_erases(channels: int):
    log_decay = decays(7, channels, "erasing").requires_grad_()
    found: Weights = weights(log_decay)
    x = torch.randn(M, H, 7, K, dtype=torch.float64)
    over = found.over_chunk()
    assert over is not None
    (found.scores(x, x).tril().sum() + found.since_entry(x).sum() + found.until_exit(x).sum() + over.sum()).backward()
    assert log_decay.grad is not None
    assert bool(log_decay.grad.isfinite().all())
    assert not log_decay.grad[log_decay == -math.inf].any()
    assert bool(log_decay.grad.any())
