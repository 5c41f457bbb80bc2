"""A config says what every layer is, in one form however it was written, and refuses what it does not know."""

import dataclasses
import json
import tomllib
from typing import Any

import pytest
import torch

from rebracket.lm import Config, LanguageModel, LayerConfig
from rebracket.nn import SoftmaxAttention, presets
from tests.lm.tiny import CONFIGS, MIXED, config

PATTERN = """
vocab_size = 257
d_model = 32
mlp_dim = 48
context = 64
depth = 5
pattern = ["gated_deltanet", "wide", "gated_deltanet"]

[mixers.gated_deltanet]
heads = 2
key_dim = 8
value_dim = 12
beta_max = 2.0

[mixers.wide]
mixer = "softmax"
heads = 4
key_heads = 2
window = 16
"""


def pattern() -> dict[str, Any]:
    return tomllib.loads(PATTERN)


def explicit() -> dict[str, Any]:
    linear = {"mixer": "gated_deltanet", "heads": 2, "key_dim": 8, "value_dim": 12, "beta_max": 2.0}
    wide = {"mixer": "softmax", "heads": 4, "key_heads": 2, "window": 16}
    return {
        "vocab_size": 257,
        "d_model": 32,
        "mlp_dim": 48,
        "context": 64,
        "layers": [linear, wide, linear, linear, wide],
    }


def test_a_pattern_is_its_layers():
    assert Config.from_dict(pattern()) == Config.from_dict(explicit())


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip(name: str):
    made = config(name)
    assert Config.from_dict(made.to_dict()) == made
    assert Config.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_the_explicit_form_spells_out_every_size():
    for layer in Config.from_dict(pattern()).to_dict()["layers"]:
        assert {"mixer", "heads", "key_heads", "key_dim", "value_dim"} <= layer.keys()
        assert None not in layer.values()


def test_defaults_follow_from_what_is_given():
    layer = LayerConfig.from_dict({"mixer": "gla", "heads": 4}, d_model=32)
    assert (layer.key_heads, layer.key_dim, layer.value_dim) == (4, 8, 8)
    layer = LayerConfig.from_dict({"mixer": "gla", "heads": 4, "key_dim": 3}, d_model=32)
    assert (layer.key_heads, layer.key_dim, layer.value_dim) == (4, 3, 3)
    values = explicit()
    del values["mlp_dim"]
    made = Config.from_dict(values)
    assert (made.mlp_dim, made.norm_eps, made.tie_embeddings) == (88, 1e-5, True)


def test_layers_know_their_place():
    sizes = config("mixed").sizes()
    assert [size.layer for size in sizes] == [0, 1, 2, 3]
    assert {(size.layers, size.d_model, size.norm_eps) for size in sizes} == {(4, 8, 1e-5)}


def test_a_layer_keeps_the_options_that_were_chosen_and_no_others():
    assert [layer.options for layer in config("mixed").layers] == [(), (("window", 4),), (), (("feature", "dpfp"),)]
    windows = [mixer.window for mixer in LanguageModel(config("mixed")).mixers() if isinstance(mixer, SoftmaxAttention)]
    assert windows == [4]
    layer = LayerConfig.from_dict({"mixer": "deltanet", "heads": 2, "convolution": 3, "beta_max": None}, d_model=8)
    assert layer.options == (("convolution", 3),)
    swapped = LayerConfig.from_dict({"beta_max": 2.0, "convolution": 3, "heads": 2, "mixer": "deltanet"}, d_model=8)
    assert swapped == LayerConfig.from_dict(
        {"mixer": "deltanet", "heads": 2, "convolution": 3, "beta_max": 2.0}, d_model=8
    )


SAVED = {
    "vocab_size": 13,
    "d_model": 8,
    "layers": [
        {
            "mixer": "cosformer",
            "heads": 2,
            "key_heads": 1,
            "key_dim": 6,
            "value_dim": 5,
            "feature": "elu1",
            "horizon": 9,
        },
        {"mixer": "gated_deltanet", "heads": 2, "key_heads": 2, "key_dim": 4, "value_dim": 4, "convolution": 3}
        | {"feature": "dpfp", "beta_max": 2.0},
        {
            "mixer": "softmax",
            "heads": 2,
            "key_heads": 2,
            "key_dim": 4,
            "value_dim": 4,
            "window": 4,
            "rotary_base": 50.0,
        },
        {"mixer": "retnet", "heads": 2, "key_heads": 2, "key_dim": 4, "value_dim": 4},
    ],
    "mlp_dim": 10,
    "context": 16,
    "norm_eps": 1e-5,
    "tie_embeddings": True,
}
"""A config as version 0.1 wrote it beside a checkpoint."""


def test_a_saved_config_is_read_and_written_as_it_was():
    assert Config.from_dict(SAVED).to_dict() == SAVED


def test_softmax_in_the_place_of_a_window_holds_a_window():
    made = Config.from_dict(SAVED)
    assert made.kv_cache_nbytes(100) == 4 * (100 * (11 + 16 + 16) + 3 * 16)


UNKNOWN = [
    ({"vocabsize": 3}, "config: 'vocabsize' is unknown, did you mean 'vocab_size'"),
    ({"contxt": 3}, "'contxt' is unknown, did you mean 'context'"),
    ({"layers": [{"mixer": "gla", "heds": 2}]}, r"layers\[0\]: 'heds' is unknown, did you mean 'heads'"),
    (
        {"layers": [{"mixer": "delta_net", "heads": 2}]},
        r"layers\[0\]: preset 'delta_net' is unknown, did you mean 'deltanet'",
    ),
    (
        {"layers": [{"mixer": "softmax", "heads": 2, "windw": 3}]},
        r"layers\[0\]: 'windw' is unknown, did you mean 'window'\?; known are heads, .*_base, value_dim, window$",
    ),
    (
        {"layers": [{"mixer": "gla", "heads": 2, "window": 4}]},
        r"layers\[0\]: 'window' is unknown; known are convolution, f",
    ),
]


@pytest.mark.parametrize(("change", "message"), UNKNOWN)
def test_unknown_keys_are_refused_with_the_nearest(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Config.from_dict(MIXED | change)


PATTERNS = [
    ({"pattern": ["gated_deltanet", "wode"]}, "pattern: 'wode' is unknown, did you mean 'wide'"),
    ({"pattern": []}, "pattern must be a list of at least one name"),
    ({"pattern": "wide"}, "pattern must be a list"),
    ({"depth": 0}, "depth must be a whole number of at least 1"),
    ({"layers": []}, "leave depth, pattern, mixers out"),
    ({"mixers": {"wide": {"mixer": "softmax", "heads": 4, "windw": 3}}}, "'gated_deltanet' is unknown"),
]


@pytest.mark.parametrize(("change", "message"), PATTERNS)
def test_wrong_patterns_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Config.from_dict(pattern() | change)


def test_sizes_that_a_pattern_leaves_unused_are_kept_for_another_pattern():
    values = pattern()
    values["pattern"] = ["wide"]
    assert {layer.mixer for layer in Config.from_dict(values).layers} == {values["mixers"]["wide"]["mixer"]}
    values["mixers"]["gated_deltanett"] = {"heads": 2}
    with pytest.raises(ValueError, match="gated_deltanett"):
        Config.from_dict(values)


def test_an_unknown_key_of_a_pattern_is_refused_where_it_stands():
    values = pattern()
    values["mixers"]["wide"]["windw"] = 3
    with pytest.raises(ValueError, match=r"mixers\.wide: 'windw' is unknown, did you mean 'window'"):
        Config.from_dict(values)


@pytest.mark.parametrize("key", ["vocab_size", "d_model", "context"])
def test_missing_keys_are_named(key: str):
    with pytest.raises(ValueError, match=f"config: {key} must be given"):
        Config.from_dict({name: value for name, value in MIXED.items() if name != key})
    with pytest.raises(ValueError, match=r"depth, pattern, mixers must be given"):
        Config.from_dict({name: value for name, value in MIXED.items() if name != "layers"})


@pytest.mark.parametrize("key", ["mixer", "heads"])
def test_missing_keys_of_a_layer_are_named(key: str):
    layer = {name: value for name, value in {"mixer": "gla", "heads": 2}.items() if name != key}
    with pytest.raises(ValueError, match=rf"layers\[0\]: {key} must be given"):
        Config.from_dict(MIXED | {"layers": [layer]})


OUT_OF_RANGE = [
    {"vocab_size": 0},
    {"d_model": 8.0},
    {"d_model": True},
    {"mlp_dim": -1},
    {"context": 0},
    {"norm_eps": 0},
    {"layers": []},
    {"layers": [{"mixer": "gla", "heads": 0}]},
    {"layers": [{"mixer": "gla", "heads": 4, "key_heads": 3}]},
    {"layers": [{"mixer": "gla", "heads": 9}]},
    {"layers": [{"mixer": "softmax", "heads": 2, "window": 0}]},
]


@pytest.mark.parametrize("change", OUT_OF_RANGE)
def test_sizes_out_of_range_are_refused(change: dict[str, Any]):
    with pytest.raises(ValueError, match="must"):
        Config.from_dict(MIXED | change)


WRONG_KINDS = [
    ({"tie_embeddings": "yes"}, "tie_embeddings must be True or False"),
    ({"layers": 4}, "layers must be a list of tables, got int; for a pattern give depth"),
    ({"layers": ["gla"]}, r"layers\[0\] must be a table, got str"),
    ({"layers": {"mixer": "gla"}}, "layers must be a list of tables"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_KINDS)
def test_wrong_kinds_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(TypeError, match=message):
        Config.from_dict(MIXED | change)
    with pytest.raises(TypeError, match="config must be a table, got list"):
        Config.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mixers\.wide must be a table"):
        Config.from_dict(pattern() | {"mixers": {"gated_deltanet": {"heads": 2}, "wide": 3}})


def test_a_layer_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"layers\[1\] \(softmax\): window must be"):
        Config.from_dict(MIXED | {"layers": [MIXED["layers"][0], {"mixer": "softmax", "heads": 2, "window": -1}]})
    with pytest.raises(ValueError, match=r"layers\[0\] \(gla\): preset 'gla' has no option 'window'"):
        Config(13, 8, (LayerConfig("gla", 2, 2, 4, 4, (("window", 4),)),), 10, 16)
    with pytest.raises(ValueError, match=r"layers\[0\] \(retnet\): dim must be even"):
        Config(13, 8, (LayerConfig("retnet", 2, 2, 3, 3),), 10, 16)


@pytest.mark.parametrize(
    ("mixer", "option", "value"),
    [
        ("deltanet", "beta_max", 2.5),
        ("deltanet", "convolution", 0),
        ("cosformer", "horizon", 0),
        ("retnet", "rotary_base", 1),
        ("gla", "feature", "elu2"),
        ("gla", "feature", 2),
        ("deltaproduct", "writes", 0),
        ("deltaproduct", "gated", 1),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_layer(mixer: str, option: str, value: object):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"layers\[0\] \({mixer}\): .*{option.replace('_', '.')}"):
        Config.from_dict(MIXED | {"layers": [{"mixer": mixer, "heads": 2, option: value}]})
    assert torch.equal(torch.get_rng_state(), state)


def test_a_config_is_a_value():
    assert {config("gla"), config("gla")} == {config("gla")}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config("gla").d_model = 3  # type: ignore[misc]


def test_every_preset_can_be_named():
    for name in presets.names():
        assert Config.from_dict(MIXED | {"layers": [{"mixer": name, "heads": 2}]}).layers[0].mixer == name
