"""A state can be held: forked, rolled back, selected, moved, saved, and it never grows."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rebracket as rb
from rebracket.base.files import write_tensors
from rebracket.ops import state as module

N, H, K, V, T = 2, 3, 4, 5, 11


def tokens(seed: int, length: int = T) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.rand(N, length, H, K, generator=generator) for _ in range(2))
    return q, k, torch.randn(N, length, H, V, generator=generator)


def after(seed: int, state: rb.State | None = None, length: int = T) -> rb.Output:
    return rb.linear_attention(*tokens(seed, length), normalize=True, state=state, backend="reference")


def same(a: rb.State, b: rb.State) -> bool:
    assert a.tensors().keys() == b.tensors().keys()
    return all(torch.equal(x, b.tensors()[name]) for name, x in a.tensors().items())


def test_zeros_have_the_shapes_and_dtypes_asked_for():
    state = rb.State.zeros(N, H, K, V, key_sum=True, dtype=torch.float64)
    assert {name: (tuple(x.shape), x.dtype) for name, x in state.tensors().items()} == {
        "memory": ((N, H, K, V), torch.float64),
        "key_sum": ((N, H, K), torch.float64),
    }
    assert not any(x.any() for x in state.tensors().values())
    assert rb.State.zeros(N, H, K, V).key_sum is None
    assert rb.State.zeros(N, H, K, V, device="meta").memory.is_meta


def test_zeros_do_not_share_memory():
    state = rb.State.zeros(N, H, K, V, key_sum=True)
    state.memory.fill_(1.0)
    assert state.key_sum is not None
    assert not state.key_sum.any()


def test_the_size_is_the_same_after_one_token_and_after_many():
    sizes = {after(0, length=length).state.nbytes for length in (1, 7, 100)}
    assert sizes == {4 * N * H * K * (V + 1)}


def test_both_branches_of_a_fork_go_on_independently():
    """Steps write into one branch; the other, and a run that never forked, know nothing of it."""
    trunk = after(0).state
    branch, kept = trunk.fork(), trunk.fork()
    for seed in range(3):
        q, k, v = (x[:, 0] for x in tokens(seed, 1))
        rb.step(q, k, v, state=branch, normalize=True, inplace=True)
    assert same(trunk, kept)
    assert not same(branch, kept)
    assert same(after(1, trunk).state, after(1, kept).state)


def test_a_fork_that_shares_memory_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.State, "fork", lambda self: self)
    with pytest.raises(AssertionError):
        test_both_branches_of_a_fork_go_on_independently()


def test_rolled_back_is_having_stopped_there():
    checkpoint = after(0).state.fork()
    gone = after(1, after(0).state).state
    again = after(2, checkpoint)
    never_gone = after(2, after(0).state)
    assert torch.equal(again.out, never_gone.out)
    assert same(again.state, never_gone.state)
    assert not same(gone, never_gone.state)


@pytest.mark.parametrize("rows", [[1, 0], [1], [0, 0, 1], [], slice(1, None), torch.tensor([1, 0]), [-1]])
def test_selected_rows_are_those_of_a_selected_batch(rows: Any):
    state = after(0).state
    selected = state.select(rows)
    index = torch.tensor(rows, dtype=torch.int64) if isinstance(rows, list) else rows
    assert torch.equal(selected.memory, state.memory[index])
    assert state.key_sum is not None
    assert selected.key_sum is not None
    assert torch.equal(selected.key_sum, state.key_sum[index])


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError):
        rb.State.zeros(N, H, K, V).select([N])


def test_selected_rows_continue_as_they_would_have():
    state = after(0).state
    q, k, v = tokens(1)
    alone = rb.linear_attention(q[1:], k[1:], v[1:], normalize=True, state=state.select([1]), backend="reference").out
    torch.testing.assert_close(alone, after(1, state).out[1:])


def test_to_moves_all_its_tensors():
    state = after(0).state
    assert {x.dtype for x in state.to(torch.float64).tensors().values()} == {torch.float64}
    assert all(x.is_meta for x in state.to("meta").tensors().values())


def test_a_step_in_place_writes_where_it_should_and_nowhere_else():
    state = after(0).state.fork()
    whole = state.fork()
    given = {name: x.data_ptr() for name, x in whole.tensors().items()}
    q, k, v = (x[:, 0] for x in tokens(1, 1))
    wanted = rb.step(q, k, v, state=state, normalize=True)
    found = rb.step(q, k, v, state=whole, normalize=True, inplace=True)
    assert {name: x.data_ptr() for name, x in found.state.tensors().items()} == given
    assert same(found.state, wanted.state)
    assert torch.equal(found.out, wanted.out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key_sum", [True, False])
def test_saved_and_loaded_is_the_same(tmp_path: Path, key_sum: bool, dtype: torch.dtype):
    full = after(0).state.to(dtype)
    state = full if key_sum else rb.State(full.memory)
    state.save(tmp_path / "state")
    assert same(rb.State.load(tmp_path / "state"), state)


def test_a_selection_and_a_state_with_gradients_are_saved_as_they_are(tmp_path: Path):
    state = rb.State(torch.randn(N, H, V, K).mT.requires_grad_()).select(slice(1, 2))
    state.save(tmp_path / "state")
    loaded = rb.State.load(tmp_path / "state")
    assert torch.equal(loaded.memory, state.memory)
    assert not loaded.memory.requires_grad


def test_a_loaded_state_continues_as_if_it_had_never_been_saved(tmp_path: Path):
    after(0).state.save(tmp_path / "state")
    found, wanted = after(1, rb.State.load(tmp_path / "state")), after(1, after(0).state)
    assert torch.equal(found.out, wanted.out)
    assert same(found.state, wanted.state)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "state"
    after(0).state.save(path)
    content = path.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], content[:5], b"", b"hello" * 100):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="state"):
            rb.State.load(path)
    flipped = bytearray(content)
    flipped[-3] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="memory"):
        rb.State.load(path)


def test_files_of_another_kind_or_version_or_without_memory_are_refused(tmp_path: Path):
    tensors = rb.State.zeros(N, H, K, V).tensors()
    for kind, version, content, word in (
        ("rebracket.other", rb.State.version, tensors, "rebracket.other"),
        (rb.State.kind, rb.State.version + 1, tensors, "version"),
        (rb.State.kind, rb.State.version, {"key_sum": torch.zeros(1)}, "key_sum"),
    ):
        write_tensors(tmp_path / "x", content, kind, version, {})
        with pytest.raises(ValueError, match=word):
            rb.State.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        rb.State.load(tmp_path / "nowhere")
