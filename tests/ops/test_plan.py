"""The plan that `explain` shows is the one that runs, and its counts are those of the formulas."""

from dataclasses import replace
from typing import Any, final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rebracket as rb
from rebracket.backends.reference import BACKEND as REFERENCE
from rebracket.ops.backend import INSTALLED, Backend, Implementation
from rebracket.ops.call import Call, Recurrence, Step

B, HQ, H, K, V = 2, 3, 6, 4, 5


@final
class Recording(Implementation[Any]):
    """The reference's way, noting the chunk of each call; chunks of 24 by default, and perhaps no others."""

    def __init__(self, kind: type[Call], refuses: str | None, picky: bool):
        self.inner, self.refuses, self.picky = REFERENCE.operators[kind], refuses, picky
        self.chunks: list[int | None] = []

    def covers(self, call: Any) -> str | None:
        if self.picky and isinstance(call, Recurrence) and call.chunk not in (None, 24):
            return "its chunks are 24"
        return self.refuses

    def settled(self, call: Any) -> Any:
        return replace(call, chunk=24) if isinstance(call, Recurrence) and call.chunk is None else call

    def run(self, call: Any) -> Any:
        self.chunks.append(call.chunk if isinstance(call, Recurrence) else None)
        return self.inner.run(call)


def recording(refuses: str | None = None, *, name: str = "recorder", picky: bool = False) -> Backend:
    operators = {kind: Recording(kind, refuses, picky) for kind in REFERENCE.operators}
    return Backend(name, 99, operators)


def chunks(backend: Backend) -> list[int | None]:
    """The chunks that it was run with."""
    return backend.operators[Recurrence].chunks  # type: ignore[attr-defined]


def steps(backend: Backend) -> int:
    """How many steps it ran."""
    return len(backend.operators[Step].chunks)  # type: ignore[attr-defined]


def install(monkeypatch: pytest.MonkeyPatch, **backends: Backend) -> None:
    """These backends before all others."""
    for name in reversed(list(INSTALLED)):  # the last deleted is the first to come back, and they stand in order
        monkeypatch.delitem(INSTALLED, name)
    for name, backend in (backends | {"reference": REFERENCE}).items():
        monkeypatch.setitem(INSTALLED, name, backend)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Backend:
    installed = recording()
    install(monkeypatch, recorder=installed)
    return installed


def inputs(T: int = 70, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    shapes = ((B, T, HQ, K), (B, T, HQ, K), (B, T, H, V))
    return tuple(torch.ones(shape, device=device, dtype=dtype) for shape in shapes)


CALLS: list[dict[str, Any]] = [
    {},
    {"mode": "parallel"},
    {"mode": "chunk"},
    {"mode": "chunk", "chunk": 7},
    {"chunk": 100},
    {"mode": "recurrent"},
    {"causal": False, "log_decay": -torch.ones(H)},
    {"causal": False, "mode": "chunk"},
    {"causal": False, "mode": "recurrent", "log_decay": -torch.ones(H)},
    {"write": rb.Delta(0.5), "mode": "parallel"},
]


@pytest.mark.parametrize("T", [0, 1, 24, 70])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_plan_is_what_runs(recorder: Backend, call: dict[str, Any], T: int):
    plan = rb.explain(*inputs(T), **call)
    assert chunks(recorder) == []
    rb.linear_attention(*inputs(T), **call)
    assert plan.backend == "recorder"
    assert set(chunks(recorder)) == {plan.chunk}


def test_a_plan_that_does_not_run_would_be_seen(recorder: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Recording, "run", lambda self, call: self.chunks.append(3) or self.inner.run(call))
    with pytest.raises(AssertionError):
        test_the_plan_is_what_runs(recorder, {}, 70)


@pytest.mark.parametrize(
    ("call", "mode", "chunk"),
    [
        ({}, "chunk", 24),
        ({"chunk": 7}, "chunk", 7),
        ({"mode": "parallel"}, "parallel", 70),
        ({"mode": "recurrent"}, "recurrent", 1),
        ({"causal": False}, "parallel", 70),
        ({"causal": False, "mode": "chunk"}, "chunk", 24),
        ({"causal": False, "log_decay": -torch.ones(H)}, "chunk", 24),
        ({"causal": False, "log_decay": -torch.ones(H), "mode": "parallel"}, "parallel", 70),
    ],
)
@pytest.mark.usefixtures("recorder")
def test_an_explicit_mode_is_never_replaced_and_auto_says_why(call: dict[str, Any], mode: str, chunk: int):
    plan = rb.explain(*inputs(), **call)
    assert (plan.mode, plan.chunk) == (mode, chunk)
    why = next(reason for reason in plan.reasons if reason.startswith("mode"))
    assert ("asked for" in why) == bool(call.get("mode") or call.get("chunk"))


def test_one_pass_is_nothing_that_a_backend_could_refuse_for_its_chunks(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, picky=recording(name="picky", picky=True))
    for call in ({"causal": False}, {"causal": False, "backend": "picky"}):
        assert rb.explain(*inputs(), **call).backend == "picky"  # type: ignore[arg-type]
        rb.linear_attention(*inputs(), **call)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its chunks are 24"):
        rb.linear_attention(*inputs(), mode="parallel", backend="picky")


def test_auto_takes_the_best_backend_that_covers_the_call_and_says_why_not_another(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, first=recording("it is Tuesday"), second=recording())
    plan = rb.explain(*inputs())
    assert plan.backend == "recorder"
    second = INSTALLED["second"]
    rb.linear_attention(*inputs())
    rb.step(*(x[:, 0] for x in inputs()), state=rb.State.zeros(B, H, K, V))
    assert (len(chunks(second)), steps(second)) == (1, 1)
    install(monkeypatch, first=recording("it is Tuesday"))
    plan = rb.explain(*inputs())
    assert plan.backend == "reference"
    assert any("it is Tuesday" in reason for reason in plan.reasons)


def test_an_explicit_backend_is_obeyed_or_refused(monkeypatch: pytest.MonkeyPatch):
    refusing, other = recording("it is Tuesday"), recording()
    install(monkeypatch, refusing=refusing, other=other)
    rb.linear_attention(*inputs(), backend="reference")
    assert chunks(other) == []
    assert rb.explain(*inputs(), backend="reference").backend == "reference"
    state = rb.State.zeros(B, H, K, V)
    for call in (
        lambda: rb.linear_attention(*inputs(), backend="refusing"),
        lambda: rb.step(*(x[:, 0] for x in inputs()), state=state, backend="refusing"),
        lambda: rb.explain(*inputs(), backend="refusing"),
    ):
        with pytest.raises(ValueError, match="'refusing' does not cover this call: it is Tuesday"):
            call()
    assert (chunks(refusing), chunks(other), steps(other)) == ([], [], 0)


def test_where_no_backend_covers_a_call_all_reasons_are_given(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, one=recording("it is Tuesday"))
    monkeypatch.delitem(INSTALLED, "reference")
    with pytest.raises(ValueError, match="no backend covers this call.*Tuesday"):
        rb.linear_attention(*inputs())


def test_operations_are_those_of_the_formulas():
    """Per token and head: C (K + V) + 4 K V, erasing 2 C (K + V) + 6 K V; a multiply-add is two."""
    T = 70
    additive, erasing = (rb.explain(*inputs(T), write=rule, chunk=10).costs for rule in (rb.Additive(), rb.Delta(0.5)))
    rows = B * T * H
    for mode, C in {"parallel": T, "chunk": 10, "recurrent": 1}.items():
        assert additive[mode].operations == rows * (C * (K + V) + 4 * K * V)
        assert erasing[mode].operations == rows * (2 * C * (K + V) + 6 * K * V)


def test_without_order_one_undecayed_pass_has_no_chunk_and_two_directions_cost_twice():
    T = 70
    plain, decayed = (
        rb.explain(*inputs(T), log_decay=decay, causal=False, chunk=10).costs for decay in (None, -torch.ones(H))
    )
    causal = rb.explain(*inputs(T), log_decay=-torch.ones(H), chunk=10).costs
    assert plain["parallel"].operations == B * T * H * 4 * K * V
    assert plain["chunk"].operations == 2 * causal["chunk"].operations
    for mode, cost in decayed.items():
        assert (cost.operations, cost.nbytes) == (2 * causal[mode].operations, 2 * causal[mode].nbytes)


RULES: dict[str, Any] = {
    "additive": rb.Additive(),
    "delta": rb.Delta(0.5),
    "gated erase": rb.GatedErase(torch.ones(1, 70, HQ, K), torch.ones(1, 70, H, V)),
    "low rank": rb.LowRank(torch.ones(1, 70, H, K), torch.ones(1, 70, H, K)),
}


@final
class Made(TorchDispatchMode):
    """Notes the devices on which operations make tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.devices |= {x.device.type for x in tree_leaves(made) if isinstance(x, torch.Tensor)}
        return made


@pytest.mark.parametrize("offsets", [None, [0, 50]])
@pytest.mark.parametrize("rule", RULES)
def test_explaining_computes_nothing(rule: str, offsets: list[int] | None):
    x, cu_seqlens = [x[:1] for x in inputs()], None if offsets is None else torch.tensor(offsets)
    state = rb.State.zeros(1, H, K, V)
    decay = -torch.ones(H)
    with Made() as explained:
        rb.explain(*x, log_decay=decay, write=RULES[rule], state=state, cu_seqlens=cu_seqlens)
    assert explained.devices <= {"meta"}
    with Made() as ran:
        rb.linear_attention(*x, log_decay=decay, write=RULES[rule], state=state, cu_seqlens=cu_seqlens)
    assert "cpu" in ran.devices


def test_a_chunk_counts_tokens_however_many_writes_they_make():
    q, k, v = inputs(40)
    twice = {"k": k.repeat(1, 2, 1, 1), "v": v.repeat(1, 2, 1, 1), "write": rb.DeltaProduct(0.5, 2)}
    for backend in INSTALLED:
        plan = rb.explain(q, **twice, backend=backend)
        rb.linear_attention(q, **twice, chunk=plan.chunk, backend=backend)
    if "cpu" in INSTALLED and rb.explain(q, k, v).backend == "cpu":
        assert rb.explain(q, **twice, backend="cpu").chunk == 8
        with pytest.raises(ValueError, match="its chunks are 16 writes, and 16 tokens of 2 writes were asked for"):
            rb.linear_attention(q, **twice, chunk=16, backend="cpu")


def test_several_writes_a_token_cost_as_many():
    q, k, v = inputs(20)
    one = rb.explain(q, k, v, write=rb.Delta(0.5), mode="recurrent").costs["recurrent"]
    two = rb.explain(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), write=rb.DeltaProduct(0.5, 2)).costs["recurrent"]
    assert two.operations == B * 20 * 2 * H * (2 * 2 * (K + V) + 6 * K * V)
    assert two.operations > 2 * one.operations


def test_parallel_grows_with_the_square_of_the_tokens_and_the_others_linearly():
    short, long = (rb.explain(*inputs(T), chunk=16).costs for T in (512, 1024))
    for mode, least, most in (("parallel", 3, 4), ("chunk", 2, 2), ("recurrent", 2, 2)):
        assert least <= long[mode].operations / short[mode].operations <= most
    assert long["recurrent"].nbytes > long["chunk"].nbytes > long["parallel"].nbytes


def test_bytes_are_at_least_those_of_inputs_output_and_states():
    q, k, v = inputs(64)
    plan = rb.explain(q, k, v, mode="parallel")
    moved = 4 * (q.numel() + k.numel() + 2 * v.numel())
    assert plan.costs["parallel"].nbytes == moved + 2 * B * plan.state_nbytes // B


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_size_of_the_state_is_that_of_the_state(dtype: torch.dtype, normalize: bool):
    plan = rb.explain(*inputs(9, dtype=dtype), normalize=normalize)
    assert plan.state_nbytes == rb.linear_attention(*inputs(9, dtype=dtype), normalize=normalize).state.nbytes
    packed = [x[:1] for x in inputs(9)]
    cu = torch.tensor([0, 2, 2, 9])
    assert rb.explain(*packed, cu_seqlens=cu).state_nbytes == rb.linear_attention(*packed, cu_seqlens=cu).state.nbytes


def test_tensors_without_memory_can_be_explained():
    here, nowhere = (rb.explain(*inputs(4096, device), mode="chunk", backend="reference") for device in ("cpu", "meta"))
    assert here == nowhere


def test_packed_tensors_without_memory_can_be_explained():
    q, k, v = (x[:1] for x in inputs(64, "meta"))
    gates = rb.GatedErase(torch.empty_like(k), torch.empty_like(v))
    plan = rb.explain(q, k, v, write=gates, cu_seqlens=torch.empty(4, dtype=torch.int64, device="meta"))
    assert plan.state_nbytes == 3 * H * K * V * 4


def test_explaining_refuses_what_running_refuses():
    for wrong in ({"write": rb.Delta}, {"chunk": 0}, {"backend": "abacus"}, {"causal": False, "write": rb.Delta(0.5)}):
        with pytest.raises((ValueError, TypeError)) as explained:
            rb.explain(*inputs(), **wrong)  # type: ignore[arg-type]
        with pytest.raises((ValueError, TypeError)) as run:
            rb.linear_attention(*inputs(), **wrong)  # type: ignore[arg-type]
        assert str(explained.value) == str(run.value)


def test_a_plan_prints_all_that_it_knows():
    text = str(rb.explain(*inputs(), mode="chunk", backend="reference"))
    for word in ("backend reference", "mode chunk", "asked for", "parallel", "recurrent", "operations", "bytes"):
        assert word in text
