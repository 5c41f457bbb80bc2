"""The claim about growing states holds on a tiny grid, and is refuted by other decays, states or shares."""

import pytest
import torch

from rebracket import lab
from rebracket.lab import growth
from rebracket.lab.base.experiment import mean_over_seeds
from rebracket.lab.base.text import language_model
from rebracket.nn import presets
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays.gla import GLADecay
from rebracket.nn.mixer import MixerSize
from tests.lab.drawn import assert_it_draws, measured
from tests.lab.little_text import use_little_text
from tests.lab.measuring import judged

SIZE = MixerSize(d_model=12, heads=2, key_heads=2, key_dim=4, value_dim=5)


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)
    for name, value in {"FIRST": 16, "SPAN": 64, "NEAR_END": 16, "D_MODEL": 24, "PARAMETERS": 25000}.items():
        monkeypatch.setattr(growth, name, value)
    monkeypatch.setattr(growth, "AGES", (1, 8, 64))
    monkeypatch.setattr(growth, "KEY_DIM", 12)
    monkeypatch.setattr(growth, "TOKENS", {"tiny": 1024})


def test_it_holds_and_is_drawn():
    results = measured("growth")
    verdict = lab.load("growth").verdict(mean_over_seeds(results))
    assert verdict.passed, verdict.sentence
    assert_it_draws(lab.load("growth"), results)


def linear_mixers(model):
    return [x for x in model.mixers() if isinstance(x, LinearAttention)]


def without_decays(*args, **sizes):
    model = language_model(*args, **sizes)
    for mixer in linear_mixers(model):
        mixer.decay = None
    return model


def with_decays(*args, **sizes):
    model = language_model(*args, **sizes)
    for mixer in linear_mixers(model):
        mixer.decay = mixer.decay or GLADecay(24, 2, 12)
    return model


def layer(name):
    mixer = presets.make(name, SIZE)
    assert isinstance(mixer, LinearAttention)
    return mixer, mixer.state_of(mixer.empty_cache(1), 1), torch.randn(1, 128, 12)


run = growth.run


def of_the_last_token(mixer, given, state, start, end):
    return run(mixer, given, mixer.state_of(mixer.empty_cache(1), 1), start, end)


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("language_model", without_decays, "slope of the norm with a decay"),
        ("language_model", with_decays, "slope of the norm of a sum"),
        ("run", of_the_last_token, "older part of what it reads"),
    ],
    ids=["no decays", "decays everywhere", "every piece from nothing"],
)
def test_a_planted_fault_refutes_it(monkeypatch, name, fault, what):
    monkeypatch.setattr(growth, name, fault)
    verdict = judged("growth")
    assert f"REFUTED: {what}" in verdict.sentence


@pytest.mark.parametrize("name", ["gla", "retnet", "mamba2", "linear_transformer", "rwkv6"])
def test_the_older_part_is_that_of_the_weights_of_all_tokens(name):
    """Under addition what is read is a sum over tokens; the weight of each is what its value, made 1, adds."""
    mixer, nothing, x = layer(name)
    with torch.no_grad():
        (*_, last) = growth.pieces(mixer, x)
        given = mixer.operands(x, None, None)
        whole, _ = growth.run(mixer, given, nothing, 0, 128)
        given.written.v[:, :64] = 0  # the values of the first piece, in place
        new, _ = growth.run(mixer, given, nothing, 0, 128)
    old = (whole - new)[0, 64:]
    assert torch.allclose(last.old, (old * whole[0, 64:]).sum(-1), rtol=1e-3, atol=1e-5)
    assert torch.allclose(last.whole, whole[0, 64:].square().sum(-1), rtol=1e-3, atol=1e-5)


def test_the_delta_rule_erases_what_is_old_also_where_nothing_new_is_written():
    mixer, nothing, x = layer("deltanet")
    with torch.no_grad():
        first, last = growth.pieces(mixer, x)
        given = mixer.operands(x, None, None)
        whole, _ = growth.run(mixer, given, nothing, 0, 128)
        given.written.v[:, :64] = 0
        new, _ = growth.run(mixer, given, nothing, 0, 128)
    assert (first.old == 0).all()
    assert torch.allclose(last.old, ((whole - new) * whole)[0, 64:].sum(-1), rtol=1e-3, atol=1e-5)


def test_states_are_those_after_so_many_tokens():
    mixer, _, x = layer("kda")
    with torch.no_grad():
        found = {place: state for piece in growth.pieces(mixer, x) for place, state in piece.states.items()}
        assert list(found) == [16, 32, 64, 128]
        for place, state in found.items():
            _, cache = mixer(x[:, :place])
            assert torch.allclose(state, mixer.state_of(cache, 1).memory[0], rtol=1e-3, atol=1e-5)


def test_the_effective_rank_counts_equal_directions():
    assert growth.effective_rank(torch.eye(5)[None]) == pytest.approx(5)
    assert growth.effective_rank(torch.ones(2, 3, 4)) == pytest.approx(1)
    assert growth.effective_rank(torch.stack([torch.eye(4), torch.ones(4, 4)])) == pytest.approx(2.5)
