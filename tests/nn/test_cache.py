"""A layer's cache is held, chosen from, moved and saved as a whole."""

from pathlib import Path

import pytest
import torch

from rebracket import State
from rebracket.base.files import write_tensors
from rebracket.nn import LayerCache
from rebracket.ops.softmax import KeyValues
from tests.nn.tiny import assert_same

N = 3
STATES = {
    "additive": lambda: State(torch.randn(N, 2, 4, 5)),
    "normalized": lambda: State(torch.randn(N, 2, 4, 5), torch.randn(N, 2, 4)),
    "softmax": lambda: KeyValues(torch.randn(N, 7, 2, 4), torch.randn(N, 7, 2, 5), torch.tensor([7, 2, 9])),
}


def caches() -> list[LayerCache]:
    tail, seen = torch.randn(N, 3, 8), torch.tensor([4, 0, 2])
    return [
        LayerCache(make(), held_tail, held_seen)
        for make in STATES.values()
        for held_tail in (None, tail)
        for held_seen in (None, seen)
    ]


@pytest.mark.parametrize("cache", caches())
def test_save_and_load_are_exact(cache: LayerCache, tmp_path: Path):
    cache.save(tmp_path / "x")
    loaded = LayerCache.load(tmp_path / "x")
    assert type(loaded.state) is type(cache.state)
    assert_same(loaded.tensors(), cache.tensors(), 0, 0)


@pytest.mark.parametrize("cache", caches())
def test_every_tensor_is_chosen_from(cache: LayerCache):
    for rows, index in (([2, 0], [2, 0]), (slice(1, 3), [1, 2]), (torch.tensor([1, 1]), [1, 1])):
        chosen = cache.select(rows)
        assert chosen.rows == 2
        assert_same(chosen.tensors(), {name: x[index] for name, x in cache.tensors().items()}, 0, 0)


@pytest.mark.parametrize("cache", caches())
def test_a_fork_shares_nothing(cache: LayerCache):
    fork = cache.fork()
    before = {name: x.clone() for name, x in cache.tensors().items()}
    assert_same(fork.tensors(), before, 0, 0)
    for x in fork.tensors().values():
        x.add_(1)
    assert_same(cache.tensors(), before, 0, 0)


@pytest.mark.parametrize("cache", caches())
def test_counts_keep_their_dtype(cache: LayerCache):
    for name, x in cache.to(torch.float64).tensors().items():
        assert x.dtype == (torch.int64 if "seen" in name else torch.float64)
    assert all(x.is_meta for x in cache.to("meta").tensors().values())


@pytest.mark.parametrize("cache", caches())
def test_bytes_are_counted(cache: LayerCache):
    assert cache.rows == N
    assert cache.nbytes == sum(x.nbytes for x in cache.tensors().values())


def test_a_damaged_file_is_refused(tmp_path: Path):
    path = tmp_path / "x"
    caches()[3].save(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match="changed after it was written"):
        LayerCache.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    State.zeros(1, 2, 3, 4).save(tmp_path / "state")
    with pytest.raises(ValueError, match="layer_cache"):
        LayerCache.load(tmp_path / "state")


@pytest.mark.parametrize("names", [["state.keys", "state.values"], ["memory"], ["state.memory", "state.keys"], []])
def test_tensors_of_no_cache_are_refused(names: list[str], tmp_path: Path):
    tensors = {name: torch.zeros(1, 2, 3, 4) for name in names}
    with pytest.raises(ValueError, match="must be those of a layer's cache"):
        LayerCache.from_tensors(tensors)
    write_tensors(tmp_path / "x", tensors, "rebracket.layer_cache", 1, {})
    with pytest.raises(ValueError, match="must be those of a layer's cache"):
        LayerCache.load(tmp_path / "x")
