"""An associative memory recalls what was written, forgets what is erased, and has the capacity that theory gives it."""

from typing import Any

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.testing.budgets import check, check_equal

K, V = 6, 5


def keys(n: int = K) -> Tensor:
    """Orthonormal keys."""
    return torch.linalg.qr(torch.randn(K, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q[:n]


def listed() -> Any:
    return [1.0] * K


def values(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def memory(rule=None) -> rb.AssociativeMemory:
    return rb.AssociativeMemory(K, V, write=rule or rb.Additive(), dtype=torch.float64)


@pytest.mark.parametrize("rule", [rb.Additive(), rb.Delta(1.0)])
def test_orthonormal_keys_recall_exactly(rule):
    held = memory(rule=rule)
    held.write(keys(), values(K))
    check("read", held.read(keys()), values(K), 1e-14)


def test_a_rewrite_replaces_under_the_delta_rule_and_adds_under_the_additive_one():
    old, new = values(K, 1), values(K, 2)
    for rule, wanted in ((rb.Delta(1.0), new), (rb.Additive(), old + new)):
        held = memory(rule=rule)
        held.write(keys(), old)
        held.write(keys(), new)
        check(type(rule).__name__, held.read(keys()), wanted, 1e-14)


def test_pairs_at_once_are_pairs_one_by_one():
    k, v = torch.nn.functional.normalize(torch.randn(9, K).double(), dim=-1), values(9)
    together, apart = memory(rule=rb.Delta(0.7)), memory(rule=rb.Delta(0.7))
    together.write(k, v)
    for row in range(9):
        apart.write(k[row], v[row])
    check("state", together.state.memory, apart.state.memory, 1e-14)


def test_several_writes_a_token_are_so_many_pairs():
    k, v = torch.nn.functional.normalize(torch.randn(8, K).double(), dim=-1), values(8)
    double, single = memory(rule=rb.DeltaProduct(0.7, 2)), memory(rule=rb.Delta(0.7))
    double.write(k, v)
    single.write(k, v)
    check("state", double.state.memory, single.state.memory, 1e-14)


@pytest.mark.parametrize("length", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("rule", [rb.Additive(), rb.Delta(1.0)])
def test_erasing_a_key_of_any_length_forgets_it_and_nothing_orthogonal(rule, length: float):
    held = memory(rule=rule)
    held.write(keys(), values(K))
    held.erase(length * keys()[2])
    wanted = values(K)
    wanted[2] = 0
    check("read", held.read(keys()), wanted, 1e-14)


def test_erasing_many_keys_in_turn_and_no_key():
    held = memory()
    held.write(keys(), values(K))
    held.erase(torch.zeros(K))
    check("read", held.read(keys()), values(K), 1e-14)
    held.erase(keys(4))
    check("forgotten", held.read(keys(4)), torch.zeros(4, V), 1e-11)


@pytest.mark.parametrize("pairs", [9, 33])
def test_the_error_of_additive_recall_is_that_of_theory(pairs: int):
    """Unit random keys: the squared error, relative to the value, is (n - 1) / K."""
    torch.manual_seed(0)
    size, errors = 64, []
    for _ in range(20):
        k, v = torch.nn.functional.normalize(torch.randn(pairs, size), dim=-1), torch.randn(pairs, 32)
        held = rb.AssociativeMemory(size, 32)
        held.write(k, v)
        errors.append((held.read(k) - v).square().sum() / v.square().sum())
    assert torch.stack(errors).mean().item() == pytest.approx((pairs - 1) / size, rel=0.1)


def test_any_leading_axes_may_be_read():
    held = memory()
    held.write(keys(), values(K))
    q = torch.randn(2, 3, K).double()
    check("read", held.read(q), torch.einsum("abk,kv->abv", q, held.state.memory[0, 0]), 1e-14)
    assert held.read(q[0, 0]).shape == (V,)


def test_its_state_has_one_size_and_its_own_dtype():
    held = rb.AssociativeMemory(K, V)
    for n in (1, 50):
        held.write(torch.randn(n, K).double(), torch.randn(n, V).bfloat16())
        assert held.state.nbytes == 4 * K * V
        assert held.state.memory.dtype == torch.float32


def test_autocast_does_not_round_what_is_read():
    held = rb.AssociativeMemory(K, V, write=rb.Delta(1.0))
    held.write(torch.randn(9, K), torch.randn(9, V))
    q = torch.randn(3, K)
    wanted = held.read(q)
    with torch.autocast("cpu", torch.bfloat16):
        check_equal("read", held.read(q), wanted)


@pytest.mark.parametrize(
    ("wrong", "kind", "word"),
    [
        (lambda: rb.AssociativeMemory(0, V), ValueError, "K and V must be at least 1"),
        (lambda: memory().write(torch.ones(K + 1), torch.ones(V)), ValueError, r"k must be \[6\] or \[n,6\]"),
        (lambda: memory().write(torch.ones(K), torch.ones(V, V, V)), ValueError, "v must be"),
        (lambda: memory().write(torch.ones(2, K), torch.ones(3, V)), ValueError, "as many pairs, got 2 and 3"),
        (lambda: memory().write(listed(), torch.ones(V)), TypeError, "k must be a tensor"),
        (lambda: memory().read(torch.ones(K - 1)), ValueError, r"q must be \[..., K = 6\]"),
        (lambda: memory().read(torch.tensor(1.0)), ValueError, "q must be"),
        (lambda: memory().erase(listed()), TypeError, "k must be a tensor"),
        (lambda: memory().read(torch.ones(K, device="meta")), ValueError, "q must be on cpu"),
        (lambda: memory().write(torch.ones(K, device="meta"), torch.ones(V)), ValueError, "k must be on cpu"),
        (lambda: memory().write(torch.ones(K), torch.ones(V, device="meta")), ValueError, "v must be on cpu"),
        (lambda: memory().erase(torch.ones(K, device="meta")), ValueError, "k must be on cpu"),
        (lambda: memory(rule=rb.Delta), TypeError, "write must be an instance"),
        (lambda: memory(rule=rb.DeltaProduct(1.0, 2)).write(torch.ones(3, K), torch.ones(3, V)), ValueError, "k must"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, kind: type[Exception], word: str):
    with pytest.raises(kind, match=word):
        wrong()
