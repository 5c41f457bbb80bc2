"""A model's past: held, chosen from and saved as a whole, and never given to another model."""

from pathlib import Path

import pytest
import torch

from rebracket.base.files import write_tensors
from rebracket.lm import ModelCache, model_id
from rebracket.nn import LayerCache
from rebracket.ops.state import State
from tests.lm.tiny import B, language_model, text
from tests.nn.tiny import assert_same


@pytest.fixture
def cache() -> ModelCache:
    return language_model("mixed")(text()).cache


def test_save_and_load_are_exact(cache: ModelCache, tmp_path: Path):
    cache.save(tmp_path / "x", "abc")
    assert_same(ModelCache.load(tmp_path / "x", "abc").tensors(), cache.tensors(), 0, 0)


def test_the_past_of_another_model_is_refused_by_both_names(cache: ModelCache, tmp_path: Path):
    cache.save(tmp_path / "x", "abc")
    with pytest.raises(ValueError, match="state from another model: it was made by abc, this is abd"):
        ModelCache.load(tmp_path / "x", "abd")


def test_a_changed_weight_makes_another_model(tmp_path: Path):
    model = language_model("mixed")
    model(text()).cache.save(tmp_path / "x", model_id(model))
    assert ModelCache.load(tmp_path / "x", model_id(model)).rows == B
    with torch.no_grad():
        model.embed.weight[0, 0] += 1
    with pytest.raises(ValueError, match="state from another model"):
        ModelCache.load(tmp_path / "x", model_id(model))


def test_every_layer_is_chosen_from(cache: ModelCache):
    chosen = cache.select([2, 0])
    assert chosen.rows == 2
    assert_same(chosen.tensors(), {name: x[[2, 0]] for name, x in cache.tensors().items()}, 0, 0)


def test_a_fork_shares_nothing(cache: ModelCache):
    before = {name: x.clone() for name, x in cache.tensors().items()}
    for x in cache.fork().tensors().values():
        x.detach().add_(1)
    assert_same(cache.tensors(), before, 0, 0)


def test_bytes_and_devices(cache: ModelCache):
    assert cache.nbytes == sum(x.nbytes for x in cache.tensors().values())
    assert all(x.is_meta for x in cache.to("meta").tensors().values())


def test_more_than_nine_layers_keep_their_order():
    layers = tuple(LayerCache(State(torch.full((1, 1, 1, 1), float(i)))) for i in range(12))
    back = ModelCache.from_tensors(ModelCache(layers).tensors())
    assert [layer.tensors()["state.memory"].item() for layer in back.layers] == list(range(12))


def test_damaged_and_foreign_files_are_refused(cache: ModelCache, tmp_path: Path):
    path = tmp_path / "x"
    cache.save(path, "abc")
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="changed after it was written"):
        ModelCache.load(path, "abc")
    cache.layers[0].save(path)
    with pytest.raises(ValueError, match=r"expected a 'rebracket\.model_cache' file, found a 'rebracket\.layer_cache'"):
        ModelCache.load(path, "abc")
    write_tensors(path, {"1.tail": torch.zeros(1)}, "rebracket.model_cache", 1, {"model": "abc"})
    with pytest.raises(ValueError, match="must be those of a layer's cache"):
        ModelCache.load(path, "abc")
