"""Parts that do not fit are refused; parts that do fit combine freely."""

import dataclasses
import itertools

import pytest
import torch

from rebracket import features, linear_attention
from rebracket.nn import (
    DeltaWrite,
    HeadNorm,
    LayerCache,
    LinearAttention,
    Projection,
    QueryCorrection,
    Rotary,
    ValueSkip,
    decays,
)
from rebracket.nn.writes.complement import ComplementWrite
from rebracket.nn.writes.delta_product import DeltaProductWrite
from rebracket.ops.convolution import short_convolution
from tests.nn.tiny import SIZE, B, assert_same, mixer, stir, tokens

IDENTITY = features.make("identity", SIZE.key_dim)


def test_a_feature_map_of_another_width_is_refused():
    with pytest.raises(ValueError, match="feature must take key_dim = 6, it takes 5"):
        LinearAttention(SIZE, feature=features.make("identity", 5))


def test_a_normalizer_needs_positive_features():
    with pytest.raises(ValueError, match="normalize needs a positive feature map, Identity"):
        LinearAttention(SIZE, feature=IDENTITY, normalize=True)


def test_a_gate_needs_a_norm():
    with pytest.raises(ValueError, match="gate needs a norm"):
        LinearAttention(SIZE, feature=IDENTITY, gate=Projection(SIZE.d_model, SIZE.heads * SIZE.value_dim))


def test_several_entries_a_token_have_no_one_value_to_skip_and_no_one_key_to_correct_by():
    several = DeltaProductWrite(SIZE.d_model, SIZE.heads, writes=3)
    with pytest.raises(ValueError, match="skip needs one value a token, DeltaProductWrite has 3"):
        LinearAttention(SIZE, feature=IDENTITY, write=several, skip=ValueSkip(SIZE.heads))
    for write in (several, ComplementWrite()):
        with pytest.raises(ValueError, match=rf"correction needs one key a token, {type(write).__name__} has"):
            LinearAttention(SIZE, feature=IDENTITY, write=write, correction=QueryCorrection(SIZE.key_heads))


def test_keys_of_its_own_need_a_decay_per_channel():
    layer = LinearAttention(SIZE, feature=IDENTITY, write=ComplementWrite(), decay=decays.make("retnet", SIZE))
    with pytest.raises(ValueError, match=r"log_decay must be per key channel, \[B,T,H,K\].*, got \[4\]"):
        layer(tokens(dtype=torch.float32))


@pytest.mark.parametrize(("convolution", "silu"), [(None, None), (None, True), (3, None), (3, False)])
def test_silu_comes_with_a_convolution_or_when_it_is_asked_for(convolution: int | None, silu: bool | None):
    layer, x = LinearAttention(SIZE, feature=IDENTITY, convolution=convolution, silu=silu).double(), tokens()
    activated = convolution is not None if silu is None else silu
    qkv = layer.project(x)
    if layer.convolution is not None:
        qkv, _ = short_convolution(qkv, layer.convolution.weight)
    qkv = qkv * qkv.sigmoid() if activated else qkv
    q, k, v = (y.unflatten(-1, (-1, n)) for y, n in zip(qkv.split(layer.widths, -1), (6, 6, 5), strict=True))
    out, _ = linear_attention(q, k, v)
    torch.testing.assert_close(layer(x)[0], out.flatten(-2) @ layer.out.weight.T, rtol=1e-9, atol=1e-9)


def test_a_delta_rule_has_no_normalizer():
    layer = LinearAttention(
        SIZE, feature=features.make("elu1", SIZE.key_dim), normalize=True, write=DeltaWrite(SIZE.d_model, SIZE.heads)
    )
    with pytest.raises(ValueError, match="normalize"):
        layer(tokens(dtype=torch.float32))


@pytest.mark.parametrize(("name", "lost"), [("gated_deltanet", "tail"), ("retnet", "seen")])
def test_a_cache_that_lacks_a_part_is_refused(name: str, lost: str):
    layer, other = mixer(name), mixer("gla")
    parts = layer.empty_cache(B).tensors()
    del parts[lost]
    with pytest.raises(ValueError, match=r"cache must come from a layer like this one, it holds state\.memory"):
        layer(tokens(), cache=LayerCache.from_tensors(parts))
    with pytest.raises(ValueError, match=rf"it holds state\.memory, {lost}"):
        other(tokens(), cache=layer.empty_cache(B))


def combinations() -> list[tuple[str, str | None, bool, int | None, bool]]:
    parts = (["identity", "dpfp"], [None, *decays.names()], [False, True], [None, 3], [False, True])
    return list(itertools.product(*parts))[::7]


@pytest.mark.parametrize(("name", "decay", "delta", "convolution", "turned"), combinations())
def test_parts_combine(name: str, decay: str | None, delta: bool, convolution: int | None, turned: bool):
    feature = features.make(name, SIZE.key_dim)
    layer = LinearAttention(
        SIZE,
        feature=feature,
        decay=None if decay is None else decays.make(decay, dataclasses.replace(SIZE, key_dim=feature.dim_out)),
        write=DeltaWrite(SIZE.d_model, SIZE.heads) if delta else None,
        convolution=convolution,
        rotary=Rotary(SIZE.key_dim) if turned else None,
    ).double()
    stir(layer)
    with torch.no_grad():
        # Keys of any length would make the delta rule grow without bound.
        layer.project.weight.mul_(0.3)
    x = tokens()
    y, cache = layer(x)
    head, past = layer(x[:, :5])
    rest, past = layer(x[:, 5:-1], cache=past)
    last, past = layer.step(x[:, -1], past)
    assert y.isfinite().all()
    torch.testing.assert_close(torch.cat([head, rest, last[:, None]], 1), y, rtol=1e-9, atol=1e-9)
    assert_same(past.tensors(), cache.tensors())


def test_the_state_is_as_wide_as_the_features():
    layer = LinearAttention(SIZE, feature=features.make("taylor2", SIZE.key_dim), normalize=True)
    _, cache = layer(tokens(dtype=torch.float32))
    assert cache.tensors()["state.memory"].shape == (B, SIZE.heads, 28, SIZE.value_dim)
    assert cache.nbytes == B * layer.state_nbytes(11)


def test_deep_models_add_less_at_first():
    torch.manual_seed(0)
    size = dataclasses.replace(SIZE, d_model=100, value_dim=50, layers=8)
    assert abs(LinearAttention(size, feature=IDENTITY).out.weight.std() * 200**0.5 - 0.5 / 10 / 4) < 0.0005


def test_without_a_norm_the_output_is_what_was_read():
    layer = LinearAttention(SIZE, feature=IDENTITY, norm=None)
    assert not any("norm" in name for name, _ in layer.named_parameters())
    normed = LinearAttention(SIZE, feature=IDENTITY, norm=HeadNorm(SIZE.value_dim))
    stir(layer)
    stir(normed)
    x = tokens(dtype=torch.float32)
    torch.testing.assert_close(layer(2 * x)[0], 8 * layer(x)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normed(20 * x)[0], normed(10 * x)[0], rtol=1e-3, atol=1e-3)
