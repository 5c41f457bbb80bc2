"""A prepared step is a step: the same bits, the same errors, whatever came before."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.ops.backend import INSTALLED
from rebracket.ops.stepper import Stepper
from rebracket.ops.write import Sizes, WriteRule, Writes

B, H, K, V = 2, 3, 4, 5


def token(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (B, H, K), "k": (B, H, K), "v": (B, H, V), "log_decay": (B, H)}
    drawn = {name: torch.rand(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return drawn | {"log_decay": -drawn["log_decay"]}


def state(seed: int, normalize: bool = False) -> rb.State:
    generator = torch.Generator().manual_seed(seed)
    key_sum = torch.rand(B, H, K, generator=generator) if normalize else None
    return rb.State(torch.rand(B, H, K, V, generator=generator), key_sum)


def run(stepper: Callable[..., rb.Output], x: dict[str, Any], *held: rb.State, **options: Any) -> rb.Output:
    given = x | options | ({"state": held[0]} if held else {})
    return stepper(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def agree(found: rb.Output, wanted: rb.Output) -> None:
    assert torch.equal(found.out, wanted.out)
    for name, x in found.state.tensors().items():
        assert torch.equal(x, wanted.state.tensors()[name])


RULES: dict[str, Callable[[int], WriteRule]] = {
    "additive": lambda seed: rb.Additive(),
    "delta": lambda seed: rb.Delta(torch.rand(B, H, generator=torch.Generator().manual_seed(seed))),
    "delta by a number": lambda seed: rb.Delta(0.5),
    "read_key": lambda seed: rb.ReadKey(0.1 * token(seed)["k"], 0.5),
    "gated_erase": lambda seed: rb.GatedErase(0.5 * token(seed)["q"], token(seed)["v"]),
    "low_rank": lambda seed: rb.LowRank(token(seed)["q"], 0.1 * token(seed)["k"]),
}


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prepared_step_gives_the_same_bits(backend: str, inplace: bool, rule: str, dtype: torch.dtype):
    stepper = rb.Stepper(backend=backend)
    for i in range(4):
        options = {"write": RULES[rule](i), "inplace": inplace}
        wanted = run(rb.step, token(i, dtype), state(i), backend=backend, **options)
        given = state(i)
        found = run(stepper, token(i, dtype), given, **options)
        agree(found, wanted)
        assert (found.state is given) == inplace
    assert stepper.prepared is not None


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_normalizer_and_a_bonus_are_stepped_too(backend: str, inplace: bool):
    counted, own = rb.Stepper(normalize=True, backend=backend), rb.Stepper(scale=0.7, backend=backend)
    for i in range(3):
        x, bonus = token(i), torch.rand(H, K)
        wanted = run(rb.step, x, state(i, True), normalize=True, backend=backend)
        agree(run(counted, x, state(i, True), inplace=inplace), wanted)
        wanted = run(rb.step, x, state(i), bonus=bonus, scale=0.7, backend=backend)
        agree(run(own, x, state(i), bonus=bonus, inplace=inplace), wanted)


def test_several_writes_a_token_are_stepped_too():
    stepper = rb.Stepper()
    for i in range(3):
        x = token(i)
        x["k"], x["v"] = torch.stack((x["k"], x["q"]), 1), torch.stack((x["v"], 2 * x["v"]), 1)
        write = rb.DeltaProduct(torch.rand(B, 2, H), 2)
        agree(run(stepper, x, state(i), write=write), run(rb.step, x, state(i), write=write))


def test_only_the_first_of_many_is_checked(monkeypatch: pytest.MonkeyPatch):
    stepper, checked = rb.Stepper(), []
    prepare = Stepper.prepare
    monkeypatch.setattr(Stepper, "prepare", lambda self, *x: checked.append(x) or prepare(self, *x))
    for i in range(5):
        run(stepper, token(i), state(i))
    assert len(checked) == 1


@final
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
    stepper, weight = rb.Stepper(), torch.full((), 3.0)
    for rule in (Weighted(weight, 0.5), Weighted(0.5, weight), Weighted(0.5, 0.25), Weighted(weight, 0.5)):
        for _ in range(2):
            agree(run(stepper, token(0), state(0), write=rule), run(rb.step, token(0), state(0), write=rule))


def test_tensors_that_were_one_may_be_two_later():
    stepper, x = rb.Stepper(), token(0)
    run(stepper, x | {"q": x["k"]}, state(0))
    other = x | {"q": token(1)["q"]}
    agree(run(stepper, other, state(0)), run(rb.step, other, state(0)))


CHANGES: dict[str, dict[str, Any]] = {
    "another batch": {name: x[:1] for name, x in token(3).items()},
    "other strides": {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in token(3).items()},
    "another dtype": token(3, torch.bfloat16),
    "a wider dtype": token(3, torch.float64),
    "no decay": token(3) | {"log_decay": None},
    "a decay per head": token(3) | {"log_decay": -torch.rand(H)},
    "a parameter": token(3) | {"q": torch.nn.Parameter(token(3)["q"], requires_grad=False)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_kind_of_call_is_prepared_again(change: str):
    stepper, x = rb.Stepper(), CHANGES[change]
    run(stepper, token(0), state(0))
    held = state(1).select(slice(0, x["q"].shape[0]))
    for _ in range(2):
        agree(run(stepper, x, held), run(rb.step, x, held))


def test_a_positive_decay_is_seen_in_a_prepared_step():
    stepper, x = rb.Stepper(), token(0)
    run(stepper, x, state(0))
    x["log_decay"] = x["log_decay"].clone().index_fill(1, torch.tensor(1), 0.5)
    with pytest.raises(ValueError, match="log_decay must be <= 0"):
        run(stepper, x, state(0))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"state": rb.State.zeros(B, H, K, V + 1)}, ValueError, r"state.memory must be \[N,H,K,V\]"),
        ({"state": None}, TypeError, "state must be a State"),
        ({"q": None}, TypeError, "q must be a tensor"),
        ({"write": rb.Delta}, TypeError, "write must be an instance"),
        ({"inplace": 1}, TypeError, "inplace must be True or False"),
        ({"bonus": torch.zeros(H, K + 1)}, ValueError, "bonus must be"),
    ],
)
def test_what_step_refuses_a_prepared_step_refuses(change: dict[str, Any], error: type[Exception], message: str):
    stepper = rb.Stepper()
    for _ in range(2):
        run(stepper, token(0), state(0))
    with pytest.raises(error, match=message):
        run(stepper, {**token(0), "state": state(0), **change})


def test_gradients_are_those_of_step():
    stepper, x = rb.Stepper(), token(0)
    run(stepper, x, state(0))
    x["q"].requires_grad_()
    assert run(stepper, x, state(0)).out.requires_grad
    with torch.no_grad():
        assert not run(stepper, x, state(0)).out.requires_grad
    assert run(stepper, x, state(0)).out.requires_grad


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_prepared_nothing(again: Callable[[Stepper], Stepper]):
    stepper = rb.Stepper(scale=0.5, backend="reference")
    run(stepper, token(0), state(0))
    copied = again(stepper)
    assert copied.prepared is None
    agree(run(copied, token(0), state(0)), run(stepper, token(0), state(0)))


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend must be auto or one of"):
        run(rb.Stepper(backend="tpu"), token(0), state(0))
