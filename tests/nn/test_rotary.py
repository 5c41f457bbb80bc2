"""Rotary positions: rotations whose products depend on distances alone."""

import math

import pytest
import torch
from torch import Tensor

from rebracket.nn.rotary import Rotary

B, T, H, K = 2, 3, 4, 6


def sample(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


def literal(x: Tensor, position: int, base: float) -> Tensor:
    """One vector turned, pair by pair, as complex numbers."""
    y, half = x.clone(), len(x) // 2
    for i in range(half):
        turned = complex(x[i], x[i + half]) * complex(math.cos(a := position * base ** (-2 * i / len(x))), math.sin(a))
        y[i], y[i + half] = turned.real, turned.imag
    return y


@pytest.mark.parametrize("base", [10000.0, 7.0])
def test_every_pair_is_turned_by_its_angle(base: float):
    x, positions = sample(B, T, H, K), torch.tensor([[0, 1, 2], [5, 900, 17]])
    out = Rotary(K, base)(x, positions)
    for b in range(B):
        for t in range(T):
            for h in range(H):
                expected = literal(x[b, t, h], int(positions[b, t]), base)
                torch.testing.assert_close(out[b, t, h], expected, rtol=1e-12, atol=1e-12)


def test_positions_of_one_row_serve_all():
    x, positions = sample(B, T, H, K), torch.tensor([3, 4, 5])
    turn = Rotary(K)
    assert torch.equal(turn(x, positions), turn(x, positions.expand(B, T)))
    assert torch.equal(turn(x, positions[None]), turn(x, positions.expand(B, T)))


def test_products_depend_on_the_distance_alone():
    q, k = sample(2, 1, 1, 1, K)
    turn = Rotary(K)
    products = [
        (turn(q, torch.tensor([start])) * turn(k, torch.tensor([start + 3]))).sum() for start in (0, 5, 100_000, 10**7)
    ]
    torch.testing.assert_close(torch.stack(products), products[0].expand(4), rtol=1e-8, atol=1e-8)
    assert abs(float(products[0] - (turn(q, torch.tensor([0])) * turn(k, torch.tensor([4]))).sum())) > 1e-3


def test_far_positions_are_as_exact_as_near_ones_in_every_precision():
    x, far = sample(1, T, H, K), torch.tensor([10**6, 10**6 + 1, 4 * 10**6 + 3])
    exact = Rotary(K)(x, far)
    torch.testing.assert_close(Rotary(K)(x.float(), far).double(), exact, rtol=1e-6, atol=1e-6)
    half = Rotary(K).to(torch.bfloat16)(x.to(torch.bfloat16), far)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), Rotary(K)(x.to(torch.bfloat16).double(), far), rtol=2**-8, atol=2**-9)


def test_position_zero_and_no_token_change_nothing():
    x = sample(B, T, H, K)
    assert torch.equal(Rotary(K)(x, torch.zeros(T, dtype=torch.int64)), x)
    assert Rotary(K)(x[:, :0], torch.zeros(0, dtype=torch.int64)).shape == (B, 0, H, K)


def test_gradients_are_those_of_finite_differences():
    x = sample(B, T, 1, K).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: Rotary(K)(y, torch.tensor([1, 5, 9])), x)


def test_it_holds_nothing_that_meta_could_empty():
    with torch.device("meta"):
        born = Rotary(K)
    born = born.to_empty(device="cpu")
    born.reset_parameters()
    assert not born.state_dict()
    x, positions = sample(B, T, H, K), torch.arange(T)
    assert torch.equal(born(x, positions), Rotary(K)(x, positions))
    assert born(x.to("meta"), positions.to("meta")).shape == x.shape


def test_bad_calls_say_what_is_wrong():
    x = torch.randn(B, T, H, K)
    with pytest.raises(ValueError, match="dim must be even"):
        Rotary(5)
    with pytest.raises(ValueError, match="base"):
        Rotary(4, 1.0)
    with pytest.raises(ValueError, match=r"x must be \[B,T,H,K = 6\]"):
        Rotary(K)(x[..., 1:], torch.arange(T))
    for positions in (torch.arange(T + 1), torch.zeros(H, T), torch.tensor(3)):
        with pytest.raises(ValueError, match="positions must be"):
            Rotary(K)(x, positions)
