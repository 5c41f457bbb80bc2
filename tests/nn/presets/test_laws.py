"""What every preset owes, whatever it is made of."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rebracket.nn import LayerCache, LinearAttention, Mixer, presets
from tests.nn.tiny import SIZE, B, T, assert_same, gradients, mixer, stir, tokens

NAMES = presets.names()
LINEAR = [name for name in NAMES if name != "softmax"]
MODES = ("parallel", "chunk", "recurrent")
# Longer than a chunk of 64 and off its edge.
LONG = 70

pytestmark = pytest.mark.parametrize("name", NAMES)


def whole(layer: Mixer, x: Tensor) -> dict[str, Tensor]:
    y, cache = layer(x)
    return {"y": y, **cache.tensors()}


def in_pieces(layer: Mixer, x: Tensor, cuts: list[int]) -> dict[str, Tensor]:
    cache, ys = None, []
    for begin, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        y, cache = layer(x[:, begin:end], cache=cache)
        ys.append(y)
    assert cache is not None
    return {"y": torch.cat(ys, 1), **cache.tensors()}


def by_steps(layer: Mixer, x: Tensor, inplace: bool) -> dict[str, Tensor]:
    cache, ys = layer.empty_cache(x.shape[0]), []
    for t in range(x.shape[1]):
        y, cache = layer.step(x[:, t], cache, inplace=inplace)
        ys.append(y)
    return {"y": torch.stack(ys, 1), **cache.tensors()}


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(name: str, mode: str):
    layer, x = mixer(name), tokens(2, LONG).requires_grad_()
    y, cache = layer(x)
    other, other_cache = layer(x, mode=mode)
    assert_same({"y": other, **other_cache.tensors()}, {"y": y, **cache.tensors()})
    assert_same(gradients(layer, other), gradients(layer, y))


@pytest.mark.parametrize("mode", MODES)
def test_float32_stays_within_its_rounding(name: str, mode: str):
    layer, x = mixer(name), tokens(2, LONG)
    y, _ = layer(x)
    wanted = {"y": y.detach(), **gradients(layer, y)}
    short, _ = layer.float()(x.float(), mode=mode)
    for key, found in {"y": short, **gradients(layer, short)}.items():
        error = (found.double() - wanted[key]).norm() / wanted[key].norm()
        assert error < 200 * torch.finfo(torch.float32).eps, key


@pytest.mark.parametrize("cuts", [[1], [2, 4], [5, 6, 10], list(range(1, T)), [3, 3, 8]])
def test_any_cutting_is_the_whole(name: str, cuts: list[int]):
    layer, x = mixer(name), tokens()
    assert_same(in_pieces(layer, x, cuts), whole(layer, x))


@pytest.mark.parametrize("inplace", [False, True])
def test_steps_are_the_whole(name: str, inplace: bool):
    layer, x = mixer(name), tokens()
    with torch.no_grad():
        assert_same(by_steps(layer, x, inplace), whole(layer, x))


def test_packed_is_separate(name: str):
    layer, x = mixer(name), tokens(1, 12)
    bounds = [0, 0, 5, 6, 10, 10]
    y, cache = layer(x, cu_seqlens=torch.tensor(bounds))
    assert cache.rows == len(bounds) - 1
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        alone, kept = layer(x[:, begin:end])
        torch.testing.assert_close(y[:, begin:end], alone, rtol=1e-9, atol=1e-9)
        assert_same(past_of(cache, row, end - begin), past_of(kept, 0, end - begin))


def past_of(cache: LayerCache, row: int, seen: int) -> dict[str, Tensor]:
    """One row's past; of keys and values only the `seen` last, before which others' lengths leave blanks."""
    tensors = cache.select([row]).tensors()
    for name in ("state.keys", "state.values"):
        if name in tensors:
            tensors[name] = tensors[name][:, tensors[name].shape[1] - seen :]
    return tensors


def test_packed_goes_on_from_a_cache(name: str):
    layer, x, more = mixer(name), tokens(1, 9), tokens(1, 8, seed=3)
    first, then = torch.tensor([0, 3, 3, 9]), torch.tensor([0, 4, 7, 8])
    _, cache = layer(x, cu_seqlens=first)
    y, cache = layer(more, cache=cache, cu_seqlens=then)
    for row in range(3):
        begin, end = int(then[row]), int(then[row + 1])
        text = torch.cat([x[:, first[row] : first[row + 1]], more[:, begin:end]], 1)
        alone, kept = layer(text)
        torch.testing.assert_close(y[:, begin:end], alone[:, text.shape[1] - (end - begin) :], rtol=1e-9, atol=1e-9)
        assert_same(past_of(cache, row, text.shape[1]), past_of(kept, 0, text.shape[1]))


def test_what_lies_beyond_the_last_bound_changes_nothing(name: str):
    layer, x, bounds = mixer(name), tokens(1, 9), torch.tensor([0, 4, 7])
    changed = x.clone()
    changed[:, 7:] += 5
    y, cache = layer(x, cu_seqlens=bounds)
    other, other_cache = layer(changed, cu_seqlens=bounds)
    assert_same({"y": other[:, :7], **other_cache.tensors()}, {"y": y[:, :7], **cache.tensors()}, 0, 0)


def test_the_past_does_not_know_the_future(name: str):
    layer, x = mixer(name), tokens(2, LONG)
    changed = x.clone()
    changed[:, 40:] += 1
    before, after = layer(x)[0], layer(changed)[0]
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40], after[:, 40])


def test_the_past_matters(name: str):
    layer, x = mixer(name), tokens()
    changed = x.clone()
    changed[:, 0] += 1
    assert not torch.allclose(layer(x)[0][:, -1], layer(changed)[0][:, -1], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_a_fork_goes_its_own_way(name: str):
    layer, x = mixer(name), tokens()
    _, cache = layer(x)
    kept = {key: tensor.clone() for key, tensor in cache.tensors().items()}
    branch = cache.fork()
    for t in range(3):
        _, branch = layer.step(x[:, t], branch, inplace=True)
    assert_same(cache.tensors(), kept, 0, 0)


@torch.no_grad()
def test_a_step_in_place_writes_into_the_cache_it_was_given(name: str):
    layer, x = mixer(name), tokens()
    _, cache = layer(x)
    _, after = layer.step(x[:, 0], cache, inplace=True)
    if name in LINEAR:
        written, given = after.tensors(), cache.tensors()
        assert all(written[key] is given[key] for key in given)


def test_rows_can_be_chosen_and_repeated(name: str):
    layer, x, more = mixer(name), tokens(), tokens(B, 4, seed=3)
    _, cache = layer(x)
    wanted, _ = layer(more, cache=cache)
    found, _ = layer(more[[2, 0, 2]], cache=cache.select([2, 0, 2]))
    torch.testing.assert_close(found, wanted[[2, 0, 2]], rtol=1e-9, atol=1e-9)


def test_a_saved_past_goes_on_as_if_it_had_stayed(name: str, tmp_path: Path):
    layer, x, more = mixer(name), tokens(), tokens(B, 4, seed=3)
    _, cache = layer(x)
    cache.save(tmp_path / "past")
    assert torch.equal(layer(more, cache=LayerCache.load(tmp_path / "past"))[0], layer(more, cache=cache)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_the_state_is_as_large_as_it_says(name: str, dtype: torch.dtype, count: int):
    layer = mixer(name, dtype=dtype)
    _, cache = layer(tokens(1, count, dtype=dtype))
    assert cache.nbytes == layer.state_nbytes(count)
    if name in LINEAR:
        assert layer.state_nbytes(count) == layer.state_nbytes(10**9) == layer.empty_cache(1).nbytes


def test_weights_drawn_late_are_those_drawn_at_once(name: str):
    torch.manual_seed(5)
    layer = presets.make(name, SIZE)
    layer.reset_parameters()
    with torch.device("meta"):
        late = presets.make(name, SIZE)
    assert all(p.is_meta for p in late.parameters())
    late.to_empty(device="cpu")
    stir(late)
    torch.manual_seed(6)
    late.reset_parameters()
    torch.manual_seed(6)
    layer.reset_parameters()
    assert_same(dict(late.named_parameters()), dict(layer.named_parameters()), 0, 0)
    assert_same(dict(late.named_buffers()), dict(layer.named_buffers()), 0, 0)
    x = tokens(dtype=torch.float32)
    assert torch.equal(late(x)[0], layer(x)[0])


def test_every_weight_has_a_part_in_the_output(name: str):
    layer = mixer(name)
    for key, gradient in gradients(layer, layer(tokens())[0]).items():
        assert gradient.isfinite().all(), key
        assert gradient.abs().max() > 1e-6, key


def test_grouped_heads_are_repeated_heads(name: str):
    layer, x = mixer(name), tokens()
    full = mixer(name, dataclasses.replace(SIZE, key_heads=SIZE.heads))
    own = layer.state_dict()
    full.load_state_dict({key: ungrouped(layer, own[key], p) for key, p in full.state_dict().items()})
    torch.testing.assert_close(full(x)[0], layer(x)[0], rtol=1e-9, atol=1e-9)


def ungrouped(layer: Mixer, weight: Tensor, like: Tensor) -> Tensor:
    """A weight as each head has it when none shares; copies of what there was once for each of `key_heads`."""
    if weight.shape == like.shape:
        return weight
    H, Hq, K, V = SIZE.heads, SIZE.key_heads, SIZE.key_dim, SIZE.value_dim
    if len(weight) == Hq:
        return weight.repeat_interleave(H // Hq, 0)
    if isinstance(layer, LinearAttention):
        parts = [(1, Hq, K), (layer.write.key_entries, Hq, K), (layer.write.entries, H, V)]
    else:
        parts = [(1, H, K), (1, Hq, K), (1, Hq, V)]
    rows = weight.split([entries * count * dim for entries, count, dim in parts])
    repeated = [
        part.unflatten(0, (entries, count, dim)).repeat_interleave(H // count, 1).flatten(0, 2)
        for part, (entries, count, dim) in zip(rows, parts, strict=True)
    ]
    return torch.cat(repeated)


def test_an_option_of_another_preset_is_refused(name: str):
    known = presets.options(name)
    for option in {x for other in NAMES for x in presets.options(other)} - known.keys():
        with pytest.raises(ValueError, match=f"preset '{name}' has no option '{option}'"):
            presets.make(name, SIZE, {option: 1})


def test_every_option_is_described_where_it_stands(name: str):
    build = presets.PRESETS.load(name)
    assert presets.options(name)
    for option, parameter in presets.options(name).items():
        assert parameter.kind == parameter.KEYWORD_ONLY, option
        assert f"\n        {option}: " in (build.__doc__ or ""), option


def test_every_option_changes_the_layer(name: str):
    for option, parameter in presets.options(name).items():
        other = mixer(name, chosen={option: another(parameter.default)})
        assert not torch.allclose(other(tokens())[0], mixer(name)(tokens())[0]), option


def another(default: object) -> object:
    """Another value that an option with that default may have."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return "dpfp"
    return default / 2 if isinstance(default, float) else 3


@pytest.mark.parametrize("value", ["x", (2,), 2j])
def test_an_option_of_a_wrong_kind_is_refused_by_name(name: str, value: object):
    for option in presets.options(name):
        with pytest.raises((TypeError, ValueError), match=option.replace("_", ".")):
            presets.make(name, SIZE, {option: value})


def test_a_foreign_cache_is_refused(name: str):
    layer, x = mixer(name), tokens()
    foreign = mixer("retnet" if name in ("softmax", "gla", "kda") else "softmax")
    with pytest.raises(ValueError, match="cache"):
        layer(x, cache=foreign.empty_cache(B))
    with pytest.raises(ValueError, match="row"):
        layer(x, cache=layer.empty_cache(B + 1))
    with pytest.raises(ValueError, match="row"):
        layer.step(x[:, 0], layer.empty_cache(1))


def test_a_misshapen_input_is_refused(name: str):
    layer = mixer(name)
    for wrong in (tokens()[0], tokens()[..., :-1]):
        with pytest.raises(ValueError, match=r"x must be \[B,T,d_model\] with d_model 7"):
            layer(wrong)
    with pytest.raises(ValueError, match=r"x must be \[B,d_model\]"):
        layer.step(tokens(), layer.empty_cache(B))


def test_autocast_rounds_what_is_wide_and_no_gate(name: str):
    layer, x = mixer(name, dtype=torch.float32), tokens(dtype=torch.float32)
    y, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, cache = layer(x)
        later, cache = layer(x, cache=cache)
        stepped, _ = layer.step(x[:, 0], cache)
        mixed, _ = layer(x, cache=layer.empty_cache(B))
    assert rounded.dtype == later.dtype == stepped.dtype == torch.bfloat16
    assert torch.equal(mixed, rounded)
    assert 0 < (rounded.float() - y).norm() / y.norm() < 0.03


def test_it_works_in_bfloat16(name: str):
    layer, x = mixer(name, dtype=torch.float32), tokens(dtype=torch.float32)
    y, _ = layer(x)
    rounded, cache = layer.to(torch.bfloat16)(x.to(torch.bfloat16))
    stepped, _ = layer.step(x[:, 0].to(torch.bfloat16), cache)
    assert rounded.dtype == stepped.dtype == torch.bfloat16
    assert (rounded.float() - y).norm() / y.norm() < 0.05
