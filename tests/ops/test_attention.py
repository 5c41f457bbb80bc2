"""The operator under random cuttings and packings, and what both of its entries promise beside the laws."""

import inspect
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rebracket as rb
from rebracket.ops.backend import INSTALLED
from rebracket.testing.budgets import check, check_equal

H, K, V = 3, 4, 5
QUICK = settings(max_examples=25, deadline=None, derandomize=True)
LENGTHS = st.lists(st.integers(0, 23), min_size=1, max_size=6)
CHUNKS = st.sampled_from([1, 2, 7, 16, 100])


def tokens(T: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(T)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    k = torch.nn.functional.normalize(randn(1, T, H, K), dim=-1)
    return {"q": randn(1, T, H, K), "k": k, "v": randn(1, T, H, V), "gate": randn(1, T, H, K), "beta": randn(1, T, H)}


def run(x: dict[str, torch.Tensor], start: int, stop: int, chunk: int, state: rb.State | None = None) -> rb.Output:
    part = {name: y[:, start:stop] for name, y in x.items()}
    gate = torch.nn.functional.logsigmoid(part["gate"])
    write = rb.Delta(2 * part["beta"].sigmoid())
    return rb.linear_attention(
        part["q"], part["k"], part["v"], log_decay=gate, write=write, state=state, chunk=chunk, backend="reference"
    )


@QUICK
@given(lengths=LENGTHS, chunk=CHUNKS)
def test_any_cutting_equals_the_whole(lengths: list[int], chunk: int):
    T = sum(lengths)
    x, state, out = tokens(T), None, []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        piece, state = run(x, start, stop, chunk, state)
        out.append(piece)
    whole = run(x, 0, T, 64)
    assert state is not None
    check("out", torch.cat(out, 1), whole.out, 1e-12)
    check("state", state.memory, whole.state.memory, 1e-12)


@QUICK
@given(lengths=LENGTHS, tail=st.integers(0, 5), chunk=CHUNKS)
def test_any_packing_equals_separate_runs(lengths: list[int], tail: int, chunk: int):
    offsets = list(accumulate(lengths, initial=0))
    x = tokens(offsets[-1] + tail)
    packed = rb.linear_attention(
        x["q"],
        x["k"],
        x["v"],
        log_decay=torch.nn.functional.logsigmoid(x["gate"]),
        write=rb.Delta(2 * x["beta"].sigmoid()),
        cu_seqlens=torch.tensor(offsets),
        chunk=chunk,
        backend="reference",
    )
    for n, (start, stop) in enumerate(pairwise(offsets)):
        alone = run(x, start, stop, 64)
        check(f"out {n}", packed.out[:, start:stop], alone.out, 1e-12)
        check(f"state {n}", packed.state.memory[n : n + 1], alone.state.memory, 1e-12)
    check_equal("tail", packed.out[:, offsets[-1] :], torch.zeros(1, tail, H, V, dtype=torch.float64))


def test_what_follows_the_first_three_arguments_is_named():
    for function in (rb.linear_attention, rb.step, rb.explain):
        kinds = [x.kind for x in inspect.signature(function).parameters.values()]
        assert kinds[:3] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 3
        assert set(kinds[3:]) == {inspect.Parameter.KEYWORD_ONLY}


def parameters(function: Callable[..., object]) -> dict[str, str]:
    return {name: str(x) for name, x in inspect.signature(function).parameters.items()}


def test_explain_takes_what_linear_attention_takes():
    taken, explained, step = (parameters(x) for x in (rb.linear_attention, rb.explain, rb.step))
    assert explained == taken
    shared = step.keys() & taken.keys() - {"state"}
    assert {name: step[name] for name in shared} == {name: taken[name] for name in shared}


def test_both_entries_return_an_output():
    x = tokens(1)
    out, state = rb.linear_attention(x["q"], x["k"], x["v"])
    token, after = rb.step(x["q"][:, 0], x["k"][:, 0], x["v"][:, 0], state=rb.State.zeros(1, H, K, V).to(torch.float64))
    assert isinstance(rb.linear_attention(x["q"], x["k"], x["v"]), rb.Output)
    check("out", token, out[:, 0], 1e-14)
    check("state", after.memory, state.memory, 1e-14)


def test_a_state_of_another_dtype_is_continued_in_that_of_the_inputs():
    x = tokens(5)
    state = rb.State(torch.ones(1, H, K, V))
    found = rb.linear_attention(x["q"], x["k"], x["v"], state=state).state
    wanted = rb.linear_attention(x["q"], x["k"], x["v"], state=state.to(torch.float64)).state
    assert found.memory.dtype == torch.float64
    check_equal("state", found.memory, wanted.memory)


def test_outputs_have_the_dtype_of_the_inputs_and_states_are_float32_or_wider():
    x = tokens(5)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out, state = rb.linear_attention(x["q"].to(dtype), x["k"].to(dtype), x["v"].to(dtype))
        assert out.dtype == dtype
        assert state.memory.dtype == torch.promote_types(dtype, torch.float32)


EMPTY = [(0, 5, None), (2, 0, None), (0, 0, None), (1, 0, [0]), (1, 0, [0, 0, 0]), (1, 4, [0]), (1, 4, [0, 0, 0])]


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("rule", ["additive", "delta", "channels", "normalized", "bonus", "low rank", "product"])
@pytest.mark.parametrize(("B", "T", "offsets"), EMPTY)
def test_where_there_are_no_tokens_gradients_are_zeros(
    backend: str, rule: str, B: int, T: int, offsets: list[int] | None
):
    n, H, K, V = 2 if rule == "product" else 1, 2, 4, 5
    N, cu_seqlens = (B, None) if offsets is None else (len(offsets) - 1, torch.tensor(offsets))
    shapes = {"q": (B, T, H, K), "k": (B, n * T, H, K), "v": (B, n * T, H, V), "memory": (N, H, K, V)}
    shapes |= {"beta": (B, n * T, H), "log_decay": (B, T, H, K) if rule == "channels" else (B, T, H)}
    shapes |= {"erase": (B, T, H, K), "read": (B, T, H, K), "bonus": (H, K), "key_sum": (N, H, K)}
    x = {name: torch.rand(shape).requires_grad_() for name, shape in shapes.items()}
    writes = {
        "delta": rb.Delta(x["beta"]),
        "product": rb.DeltaProduct(x["beta"], 2),
        "low rank": rb.LowRank(x["erase"], x["read"]),
    }
    used = {"beta": rule in ("delta", "product"), "erase": rule == "low rank", "read": rule == "low rank"}
    used |= {"bonus": rule == "bonus", "key_sum": rule == "normalized"}
    out, state = rb.linear_attention(
        x["q"],
        x["k"],
        x["v"],
        log_decay=-x["log_decay"],
        write=writes.get(rule, rb.Additive()),
        bonus=x["bonus"] if rule == "bonus" else None,
        normalize=rule == "normalized",
        state=rb.State(x["memory"], x["key_sum"] if rule == "normalized" else None),
        cu_seqlens=cu_seqlens,
        backend=backend,
    )
    assert out.shape == (B, T, H, V)
    (out.sum() + sum(y.sum() for y in state.tensors().values())).backward()
    for name, y in x.items():
        if used.get(name, True):
            assert y.grad is not None, name
            assert (y.grad == (1 if name in ("memory", "key_sum") else 0)).all(), name
