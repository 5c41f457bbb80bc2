"""Every bad call is refused by the name of its argument, with what was expected, what was seen and what to do."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import rebracket as rb
from rebracket.ops.backend import INSTALLED
from rebracket.ops.write import WriteRule

B, T, HQ, H, K, V = 2, 6, 2, 4, 3, 5


def good() -> dict[str, Any]:
    return {"q": torch.randn(B, T, HQ, K), "k": torch.randn(B, T, HQ, K), "v": torch.randn(B, T, H, V)}


def one_row() -> dict[str, Any]:
    return {name: x[:1] for name, x in good().items()}


def call(**changed: Any) -> rb.Output:
    return rb.linear_attention(**good() | changed)


def nothing() -> Any:
    return None


def half() -> Any:
    return 0.5


def swapped(name: str) -> torch.Tensor:
    return good()[name].transpose(1, 2)


NAN, INF = float("nan"), float("inf")
SHAPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "q of three dimensions": ({"q": torch.randn(T, HQ, K)}, ("q must be [B,T,heads,dim]", "[6, 2, 3]")),
    "k head-first": ({"k": swapped("k")}, ("k must be [B,T,Hq,K] = [2, 6, 2, 3]", "head-first", "k.transpose(1, 2)")),
    "v head-first": ({"v": swapped("v")}, ("v must be [B,T,H,V]", "pass v.transpose(1, 2)")),
    "v head-first, of heads that T does not divide": (
        {"v": torch.randn(B, 7, T, V)},
        ("v must be [B,T,H,V]", "pass v.transpose(1, 2)"),
    ),
    "all head-first": ({x: swapped(x) for x in "qkv"}, ("v must be [B,T,H,V]", "q, k and v look head-first")),
    "k with the heads of v": ({"k": torch.randn(B, T, H, K)}, ("k must be", "heads as q", "q.repeat_interleave(2, 2)")),
    "k of another dim": ({"k": torch.randn(B, T, HQ, K + 1)}, ("k must be", "got [2, 6, 2, 4]")),
    "v of another length": ({"v": torch.randn(B, T - 1, H, V)}, ("v must be [B,T,H,V] = [2, 6, 4, 5]", "[2, 5, 4, 5]")),
    "heads that do not divide": ({"v": torch.randn(B, T, 3, V)}, ("Hq = 2 and H = 3",)),
    "no key dim": ({"q": torch.randn(B, T, HQ, 0), "k": torch.randn(B, T, HQ, 0)}, ("at least 1",)),
    "decay per batch": ({"log_decay": -torch.rand(B, H)}, ("log_decay must be [H] = [4] or [B,T,H]", "got [2, 4]")),
    "decay head-first": (
        {"log_decay": -torch.rand(B, H, T)},
        ("log_decay must", "transpose(1, 2), or those of q, k"),
    ),
    "decay per head of q": ({"log_decay": -torch.rand(B, T, HQ)}, ("log_decay.repeat_interleave(2, 2)",)),
    "decay with an axis too many": ({"log_decay": -torch.rand(B, T, H, 1)}, ("log_decay.squeeze(-1)",)),
    "beta per head of q": ({"write": rb.Delta(torch.rand(B, T, HQ))}, ("beta must be [H] = [4] or [B,T,H]", "repeat_")),
    "beta head-first": ({"write": rb.Delta(torch.rand(B, H, T))}, ("beta", "head-first")),
    "beta with an axis too many": ({"write": rb.Delta(torch.rand(B, T, H, 1))}, ("beta.squeeze(-1)",)),
    "read key": ({"write": rb.ReadKey(torch.rand(B, T, HQ, K + 1), 0.5)}, ("key must be [B,T,Hq,K]",)),
    "beta of a read key": ({"write": rb.ReadKey(torch.rand(B, T, HQ, K), torch.rand(B, T))}, ("beta must be",)),
    "erase gate": ({"write": rb.GatedErase(torch.rand(B, T, 3, K), torch.rand(B, T, H, V))}, ("erase must be",)),
    "write gate": (
        {"write": rb.GatedErase(torch.rand(B, T, HQ, K), torch.rand(B, T, H, K))},
        ("write must be [B,T,H,V]",),
    ),
    "low-rank erase": ({"write": rb.LowRank(torch.rand(B, T, K), torch.rand(B, T, H, K))}, ("erase must be",)),
    "low-rank read": ({"write": rb.LowRank(torch.rand(B, T, H, K), torch.rand(B, T, K))}, ("read must be",)),
    "too few writes": ({"write": rb.DeltaProduct(0.5, 2)}, ("k must be [B,T*2,Hq,K] = [2, 12, 2, 3]",)),
    "bonus": ({"bonus": torch.rand(K)}, ("bonus must be [H,K] = [4, 3]", "got [3]")),
    "state transposed": ({"state": rb.State.zeros(B, H, V, K)}, ("state.memory must be [N,H,K,V] = [2, 4, 3, 5]",)),
    "state of another batch": ({"state": rb.State.zeros(1, H, K, V)}, ("state.memory must be", "got [1, 4, 3, 5]")),
    "sum of keys": (
        {"state": rb.State(torch.zeros(B, H, K, V), torch.zeros(B, H, V))},
        ("state.key_sum must be [N,H,K] = [2, 4, 3]",),
    ),
    "packed batch": ({"cu_seqlens": torch.tensor([0, 3])}, ("cu_seqlens needs B = 1", "got B = 2")),
}

VALUES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "rounded decay": ({"log_decay": torch.tensor([-1.0, 1.2e-7, -3.0, 0.0])}, ("log_decay must be <= 0", "rounded 0")),
    "positive decay": ({"log_decay": torch.tensor([-1.0, 2.5, -3.0, 0.0])}, ("log_decay must be <= 0", "2.5", "sign")),
    "decay as a factor": ({"log_decay": torch.rand(B, T, H).clamp(min=0.1)}, ("log_decay must be <= 0", "logarithm")),
    "NaN decay": ({"log_decay": torch.tensor([-1.0, NAN, -3.0, 0.0])}, ("log_decay holds NaN",)),
    "infinite decay": ({"log_decay": torch.tensor([-1.0, INF, -3.0, 0.0])}, ("log_decay must be <= 0",)),
    "beta above 2": ({"write": rb.Delta(2.5)}, ("beta must lie in [0, 2]", "2.5")),
    "beta below 0": ({"write": rb.ReadKey(torch.rand(B, T, HQ, K), -0.1)}, ("beta must lie in [0, 2]", "-0.1")),
    "beta NaN": ({"write": rb.Delta(NAN)}, ("beta must lie in [0, 2]",)),
    "bonus beside erasing": ({"bonus": torch.rand(H, K), "write": rb.Delta(0.5)}, ("bonus", "Delta", "Additive()")),
    "normalizer beside erasing": ({"normalize": True, "write": rb.Delta(0.5)}, ("normalize", "Delta", "Additive()")),
    "no sum of keys": ({"normalize": True, "state": rb.State.zeros(B, H, K, V)}, ("state must hold key_sum",)),
    "unknown mode": ({"mode": "fast"}, ("mode must be one of auto, parallel, chunk, recurrent", "'fast'")),
    "chunk of no token": ({"chunk": 0}, ("chunk must be a whole number of at least 1", "0")),
    "chunk of half tokens": ({"chunk": 2.5}, ("chunk must be a whole number of at least 1", "2.5")),
    "chunk in parallel mode": (
        {"chunk": 4, "mode": "parallel"},
        ("chunk is for mode 'chunk'", "leave one of them out"),
    ),
    "chunk in recurrent mode": ({"chunk": 4, "mode": "recurrent"}, ("chunk is for mode 'chunk'",)),
    "unknown backend": ({"backend": "abacus"}, ("backend must be auto or one of", "reference", "'abacus'")),
    "erasing both ways": ({"causal": False, "write": rb.Delta(0.5)}, ("causal=False needs an additive write rule",)),
    "bonus both ways": ({"causal": False, "bonus": torch.rand(H, K)}, ("causal=False has no bonus",)),
    "state both ways": ({"causal": False, "state": rb.State.zeros(B, H, K, V)}, ("causal=False takes no state",)),
}

KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "q is a list": ({"q": [1.0]}, ("q must be a tensor", "list")),
    "q holds integers": ({"q": torch.ones(B, T, HQ, K, dtype=torch.int64)}, ("q must be float32", "int64", "convert")),
    "k of another dtype": ({"k": torch.randn(B, T, HQ, K).double()}, ("q, k and v must share a dtype", "float64")),
    "decay is a number": ({"log_decay": -0.1}, ("log_decay must be a tensor", "float")),
    "decay holds integers": ({"log_decay": torch.zeros(H, dtype=torch.int64)}, ("log_decay must be a floating-point",)),
    "write is a class": ({"write": rb.Delta}, ("write must be an instance", "Delta(...)")),
    "write is a number": ({"write": 0.5}, ("write must be a write rule", "float")),
    "write is nothing": ({"write": None}, ("write must be a write rule", "NoneType")),
    "beta is nothing": ({"write": rb.Delta(nothing())}, ("beta must be a number or a tensor", "use Additive()")),
    "beta is a truth value": ({"write": rb.Delta(True)}, ("beta must be a number or a tensor", "bool")),
    "erase is a number": ({"write": rb.LowRank(half(), half())}, ("erase must be a tensor",)),
    "scale is a tensor": ({"scale": torch.tensor(1.0)}, ("scale must be a number", "multiply q")),
    "scale is a word": ({"scale": "1"}, ("scale must be a number", "str")),
    "state of whole numbers": (
        {"state": rb.State(torch.zeros(B, H, K, V, dtype=torch.int64))},
        ("state.memory must be a floating-point tensor", "int64"),
    ),
    "sum of keys of whole numbers": (
        {"state": rb.State(torch.zeros(B, H, K, V), torch.zeros(B, H, K, dtype=torch.int32))},
        ("state.key_sum must be a floating-point tensor", "int32"),
    ),
    "normalize is a word": ({"normalize": "yes"}, ("normalize must be True or False", "'yes'")),
    "causal is nothing": ({"causal": None}, ("causal must be True or False", "None")),
    "causal is a number": ({"causal": 0, "write": rb.Delta(0.5)}, ("causal must be True or False", "0")),
    "state is a tensor": ({"state": torch.zeros(B, H, K, V)}, ("state must be a State", "State(memory)")),
    "offsets are a list": (one_row() | {"cu_seqlens": [0, 3]}, ("cu_seqlens must be an int32 or int64 tensor [N+1]",)),
    "offsets are floats": (one_row() | {"cu_seqlens": torch.tensor([0.0, 3.0])}, ("cu_seqlens must be an int32",)),
    "offsets are a table": (one_row() | {"cu_seqlens": torch.tensor([[0, 3]])}, ("cu_seqlens must be an int32",)),
    "an unknown argument": ({"beta": 0.5}, ("unexpected keyword argument 'beta'",)),
}


def refusal(kind: type[Exception], changed: dict[str, Any]) -> str:
    with pytest.raises(kind) as caught:
        call(**changed)
    return str(caught.value)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("hint", "sign"), [("head-first", "transpose(1, 2)"), ("heads as q", "q.repeat_")])
def test_no_wrong_shape_is_told_what_is_not_so(name: str, hint: str, sign: str):
    changed, words = SHAPES[name]
    wanted = any(hint in word or sign in word for word in words)
    assert (hint in refusal(ValueError, changed)) == wanted


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shapes_are_refused(name: str):
    changed, words = SHAPES[name]
    message = refusal(ValueError, changed)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", VALUES)
def test_wrong_values_are_refused(name: str):
    changed, words = VALUES[name]
    message = refusal(ValueError, changed)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", KINDS)
def test_wrong_kinds_are_refused(name: str):
    changed, words = KINDS[name]
    message = refusal(TypeError, changed)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([1, 3], ("must start at 0", "got 1")),
        ([0, 3, 2], ("must not decrease", "got 3 before 2", "offsets, not lengths")),
        ([0, -1], ("must not decrease",)),
        ([0, T + 1], ("must not pass T = 6", "got 7")),
        ([], ("N + 1 >= 1",)),
    ],
)
def test_wrong_offsets_are_refused(offsets: list[int], words: tuple[str, ...]):
    message = refusal(ValueError, one_row() | {"cu_seqlens": torch.tensor(offsets, dtype=torch.int64)})
    assert "cu_seqlens" in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("writes", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_writes_is_refused(writes: Any):
    with pytest.raises(ValueError, match="writes must be a whole number of at least 1"):
        rb.DeltaProduct(0.5, writes)


@pytest.mark.parametrize("mode", ["parallel", "chunk", "recurrent"])
@pytest.mark.parametrize("causal", [True, False])
def test_decays_are_looked_at_in_every_mode(mode: str, causal: bool):
    with pytest.raises(ValueError, match="log_decay must be <= 0"):
        call(log_decay=torch.full((B, T, H, K), 0.5), mode=mode, causal=causal, backend="reference")


@pytest.mark.parametrize("value", [0.5, NAN])
@pytest.mark.parametrize("backend", INSTALLED)
def test_decays_are_looked_at_by_every_backend_and_in_steps(backend: str, value: float):
    with pytest.raises(ValueError, match="log_decay"):
        call(log_decay=torch.full((B, T, H, K), value), backend=backend)
    with pytest.raises(ValueError, match="log_decay"):
        token(log_decay=torch.full((B, H), value), backend=backend)


def test_a_decay_in_a_tail_may_be_anything():
    log_decay = torch.full((1, T, H), NAN)
    log_decay[:, :4] = -0.5
    out, _ = call(**one_row(), log_decay=log_decay, cu_seqlens=torch.tensor([0, 4]))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("offsets", [[0, 0, 3, 3, T], [0], [0, 0]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_of_empty_sequences_and_of_none_are_legal(offsets: list[int], dtype: torch.dtype):
    out, state = call(**one_row(), cu_seqlens=torch.tensor(offsets, dtype=dtype), write=rb.Delta(0.5))
    assert state.memory.shape == (len(offsets) - 1, H, K, V)
    assert not out[:, offsets[-1] :].any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("log_decay", [None, -torch.rand(H)])
def test_a_batch_of_none_and_a_sequence_of_none_are_legal(causal: bool, log_decay: torch.Tensor | None):
    nobody = {name: x[:0] for name, x in good().items()}
    out, state = call(**nobody, causal=causal, log_decay=log_decay)
    assert out.shape == (0, T, H, V)
    assert state.memory.shape == (0, H, K, V)
    nothing = {name: x[:, :0] for name, x in good().items()}
    out, state = call(**nothing, causal=causal, log_decay=log_decay)
    assert out.shape == (B, 0, H, V)
    assert not state.memory.any()


STRENGTHS: dict[str, Callable[[Tensor], WriteRule]] = {
    "delta": rb.Delta,
    "read_key": lambda beta: rb.ReadKey(torch.rand(beta.shape[0], beta.shape[1], HQ, K), beta),
    "delta_product": lambda beta: rb.DeltaProduct(beta, 2),
}
"""Every rule with a strength, from its tensor."""


def strong(rule: str, beta: Tensor, backend: str, rows: int = B, **others: Any) -> rb.Output:
    times = 2 if rule == "delta_product" else 1
    q, k, v = torch.rand(rows, T, HQ, K), torch.rand(rows, T * times, HQ, K), torch.rand(rows, T * times, H, V)
    beta = beta.repeat_interleave(times, 1)
    return rb.linear_attention(q, k, v, write=STRENGTHS[rule](beta), backend=backend, **others)


def test_every_rule_with_a_strength_is_here():
    held = [rule for rule in vars(rb).values() if isinstance(rule, type) and issubclass(rule, WriteRule)]
    assert len(STRENGTHS) == sum("beta" in vars(rule)["__dataclass_fields__"] for rule in held)


@pytest.mark.parametrize("backend", tuple(INSTALLED))
@pytest.mark.parametrize("wrong", [2.5, -0.25, NAN, INF])
@pytest.mark.parametrize("rule", STRENGTHS)
def test_strengths_are_looked_at_in_every_sequence(rule: str, wrong: float, backend: str):
    beta = torch.rand(B, T, H) * 2
    beta[0, 0], beta[-1, -1] = 2.0, 0.0
    strong(rule, beta, backend)
    beta[1, T - 2, H - 1] = wrong
    with pytest.raises(ValueError, match=r"beta must lie in \[0, 2\], got"):
        strong(rule, beta, backend)
    strong(rule, beta[1:], backend, rows=1, cu_seqlens=torch.tensor([0, T - 2]))  # padding may hold anything
    with pytest.raises(ValueError, match=r"beta must lie in \[0, 2\], got"):
        strong(rule, beta[1:], backend, rows=1, cu_seqlens=torch.tensor([0, 3, T - 1]))


@pytest.mark.parametrize("backend", tuple(INSTALLED))
@pytest.mark.parametrize("wrong", [2.5, -0.25, NAN])
def test_strengths_are_looked_at_in_steps_and_prepared_steps(wrong: float, backend: str):
    q, v, stepper = torch.rand(B, H, K), torch.rand(B, H, V), rb.Stepper(backend=backend)
    sound, beta = torch.ones(B, H), torch.ones(B, H)
    beta[1, 2] = wrong
    for step in (partial(rb.step, backend=backend), stepper):
        for _ in range(2):
            step(q, q, v, state=rb.State.zeros(B, H, K, V), write=rb.Delta(sound))
        with pytest.raises(ValueError, match=r"beta must lie in \[0, 2\], got"):
            step(q, q, v, state=rb.State.zeros(B, H, K, V), write=rb.Delta(beta))


def token(**changed: Any) -> rb.Output:
    given: dict[str, Any] = {name: x[:, 0] for name, x in good().items()} | {"state": rb.State.zeros(B, H, K, V)}
    return rb.step(**given | changed)


STEPS: dict[str, tuple[type[Exception], dict[str, Any], tuple[str, ...]]] = {
    "a sequence": (ValueError, good(), ("q must be [B,Hq,K], one token", "[2, 6, 2, 3]")),
    "q is a list": (TypeError, {"q": [1.0]}, ("q must be a tensor",)),
    "two keys for one write": (ValueError, {"k": torch.randn(B, 2, HQ, K)}, ("k must be [B,Hq,K]",)),
    "one key for two writes": (ValueError, {"write": rb.DeltaProduct(0.5, 2)}, ("k must be [B,2,Hq,K]",)),
    "no state": (TypeError, {"state": None}, ("state must be a State", "State.zeros")),
    "decay is a number": (TypeError, {"log_decay": -0.5}, ("log_decay must be a tensor",)),
    "positive decay": (ValueError, {"log_decay": torch.full((B, H), 1.5)}, ("log_decay must be <= 0",)),
    "decay per token": (ValueError, {"log_decay": -torch.rand(B, T, H)}, ("log_decay must be",)),
    "beta per token": (ValueError, {"write": rb.Delta(torch.rand(B, T, H))}, ("beta must be",)),
    "write is a class": (TypeError, {"write": rb.Delta}, ("write must be an instance",)),
    "state of another batch": (ValueError, {"state": rb.State.zeros(1, H, K, V)}, ("state.memory must be",)),
    "state of another dtype in place": (
        ValueError,
        {"state": rb.State.zeros(B, H, K, V, dtype=torch.float64), "inplace": True},
        ("state must be torch.float32", "state.to(dtype)"),
    ),
    "sum of keys that would go stale": (
        ValueError,
        {"state": rb.State.zeros(B, H, K, V, key_sum=True), "inplace": True},
        ("key_sum", "normalize", "State(state.memory)"),
    ),
    "unknown backend": (ValueError, {"backend": "abacus"}, ("backend must be",)),
}


@pytest.mark.parametrize("name", STEPS)
def test_wrong_steps_are_refused(name: str):
    kind, changed, words = STEPS[name]
    with pytest.raises(kind) as caught:
        token(**changed)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_good_calls_are_good():
    call()
    call(write=rb.Delta(torch.rand(B, T, H)), log_decay=-torch.rand(H), scale=2, state=rb.State.zeros(B, H, K, V))
    call(normalize=True, bonus=torch.rand(H, K))
    token()
    token(write=rb.Delta(torch.rand(B, H)), log_decay=-torch.rand(B, H, K), inplace=True)


def everything() -> dict[str, Any]:
    """A call with every tensor that the operator takes, offsets aside."""
    state = rb.State.zeros(B, H, K, V, key_sum=True)
    return good() | {"log_decay": -torch.rand(B, T, H), "bonus": torch.rand(H, K), "normalize": True, "state": state}


def meta_state(which: str) -> rb.State:
    held = rb.State.zeros(B, H, K, V, key_sum=True)
    return replace(held, **{which: held.tensors()[which].to("meta")})


ELSEWHERE: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {name: everything()[name].to("meta")}) for name in ("k", "v", "log_decay", "bonus")},
    "q": ("k", {"q": good()["q"].to("meta")}),
    "state": ("state.memory", {"state": meta_state("memory")}),
    "sum of keys": ("state.key_sum", {"state": meta_state("key_sum")}),
}
RULES: dict[str, tuple[str, Any]] = {
    "beta": ("beta", lambda x: rb.Delta(x(B, T, H))),
    "read key": ("key", lambda x: rb.ReadKey(x(B, T, HQ, K), 0.5)),
    "erase gate": ("erase", lambda x: rb.GatedErase(x(B, T, HQ, K), torch.rand(B, T, H, V))),
    "write gate": ("write", lambda x: rb.GatedErase(torch.rand(B, T, HQ, K), x(B, T, H, V))),
    "low-rank read": ("read", lambda x: rb.LowRank(torch.rand(B, T, HQ, K), x(B, T, HQ, K))),
}


def nowhere(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def first(x: Any) -> Any:
    """An argument of a call as `step` takes it."""
    return x[:, 0] if isinstance(x, torch.Tensor) and x.ndim > 2 else x


@pytest.mark.parametrize("entry", [rb.linear_attention, rb.explain])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_tensor_elsewhere_is_refused_by_name(name: str, entry: Any):
    named, changed = ELSEWHERE[name]
    with pytest.raises(ValueError, match=rf"{named} must be on (cpu|meta) .*, got (meta|cpu); pass {named}\.to"):
        entry(**everything() | changed)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_tensor_elsewhere_is_refused_by_name_in_a_step(name: str):
    named, changed = ELSEWHERE[name]
    with pytest.raises(ValueError, match=f"{named} must be on"):
        rb.step(**{key: first(x) for key, x in (everything() | changed).items()})


@pytest.mark.parametrize("name", RULES)
def test_a_tensor_of_a_write_rule_elsewhere_is_refused_by_name(name: str):
    named, rule = RULES[name]
    with pytest.raises(ValueError, match=f"{named} must be on cpu"):
        call(write=rule(nowhere))
    with pytest.raises(ValueError, match=f"{named} must be on cpu"):
        token(write=rule(lambda B, T, *rest: nowhere(B, *rest)).map(first_unless_meta))


def first_unless_meta(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_meta else x[:, 0]


def test_offsets_elsewhere_are_refused_by_name():
    with pytest.raises(ValueError, match="cu_seqlens must be on cpu"):
        call(**one_row(), cu_seqlens=torch.zeros(3, dtype=torch.int64, device="meta"))
