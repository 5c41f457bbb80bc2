"""Steps that repeat go a shorter way; nobody can tell."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.backends.cpu import library
from rebracket.ops import repetition
from rebracket.ops.write import Sizes, WriteRule, Writes

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")
B, H, K, V = 2, 3, 4, 5


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    repetition.KNOWN.clear()
    yield
    repetition.KNOWN.clear()


def token(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (B, H, K), "k": (B, H, K), "v": (B, H, V), "log_decay": (B, H)}
    drawn = {name: torch.rand(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return drawn | {"log_decay": -drawn["log_decay"]}


def state(seed: int, normalize: bool = False) -> rb.State:
    generator = torch.Generator().manual_seed(seed)
    key_sum = torch.rand(B, H, K, generator=generator) if normalize else None
    return rb.State(torch.rand(B, H, K, V, generator=generator), key_sum)


def step(x: dict[str, Any], held: rb.State, **options: Any) -> rb.Output:
    return rb.step(**x, state=held, **options)


def long_way(x: dict[str, Any], held: rb.State, **options: Any) -> rb.Output:
    repetition.KNOWN.clear()
    return step(x, held, **options)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_repeated_step_gives_the_same_bits(inplace: bool, normalize: bool, dtype: torch.dtype):
    options = {"inplace": inplace, "normalize": normalize}
    wanted = [long_way(token(i, dtype), state(i, normalize), **options) for i in range(3)]
    repetition.KNOWN.clear()
    for i in range(3):
        given = state(i, normalize)
        found = step(token(i, dtype), given, **options)
        assert torch.equal(found.out, wanted[i].out)
        for name, x in found.state.tensors().items():
            assert torch.equal(x, wanted[i].state.tensors()[name])
        assert (found.state is given) == inplace
    assert len(repetition.KNOWN) == 1


@dataclass(frozen=True)
class Weighted(WriteRule):
    """Either weight may be a tensor."""

    first: float | Tensor
    second: float | Tensor

    def check(self, sizes: Sizes) -> None:
        assert sizes.shape("B,T")

    def lower(self, k: Tensor, v: Tensor) -> Writes:
        return Writes(k, v * self.first * self.second)


def test_a_rule_is_told_by_which_of_its_fields_are_tensors():
    x, weight = token(0), torch.ones(B, H)
    rules = Weighted(weight, 0.5), Weighted(0.5, weight)
    calls = [repetition.parts(x["q"], x["k"], x["v"], None, None, state(0), rule) for rule in rules]
    assert repetition.signature(*calls[0]) != repetition.signature(*calls[1])


def test_tensors_that_were_one_may_be_two_later():
    x, other = token(0), token(1)
    same = x | {"q": x["k"]}
    step(same, state(0))
    wanted = long_way(x | {"q": other["q"]}, state(0))
    step(same, state(0))
    assert torch.equal(step(x | {"q": other["q"]}, state(0)).out, wanted.out)


def test_a_number_for_beta_is_not_forgotten():
    x = token(0)
    for beta in (0.5, 1.0):
        for write in (rb.Delta(beta), rb.Delta(torch.full((B, H), beta))):
            step(x, state(0), write=write)
            found = step(x, state(0), write=write)
            assert torch.allclose(found.out, long_way(x, state(0), write=write).out)


def test_a_positive_decay_is_seen_in_a_repeated_step():
    x = token(0)
    step(x, state(0))
    x["log_decay"] = x["log_decay"].clone().index_fill(1, torch.tensor(1), 0.5)
    with pytest.raises(ValueError, match="log_decay must be <= 0"):
        step(x, state(0))


def test_another_shape_is_checked_again():
    x = token(0)
    step(x, state(0))
    with pytest.raises(ValueError, match=r"state.memory must be \[N,H,K,V\]"):
        step(x, rb.State.zeros(B, H, K, V + 1))
    with pytest.raises(TypeError, match="q must be a tensor"):
        step(x | {"q": None}, state(0))


def test_what_is_refused_is_refused_after_its_like_was_accepted():
    x = token(0)
    step(x, state(0), normalize=False, scale=1.0)
    for wrong in ({"normalize": 0, "scale": 1.0}, {"normalize": False, "scale": True}):
        with pytest.raises((TypeError, ValueError), match="normalize|scale"):
            step(x, state(0), **wrong)


def test_gradients_take_the_long_way():
    x = token(0)
    step(x, state(0))
    x["q"].requires_grad_()
    assert step(x, state(0)).out.requires_grad


def test_only_so_many_signatures_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repetition, "MOST", 2)
    for scale in (0.1, 0.2, 0.3, 0.4):
        step(token(0), state(0), scale=scale)
    assert len(repetition.KNOWN) <= 2
