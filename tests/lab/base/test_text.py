"""Long texts are read on and afresh as the whole is, and models have the size that was asked for."""

import math

import pytest
import torch
from torch.nn import functional as F

from rebracket.lab.base import text
from rebracket.lab.base.text import (
    CHOICE,
    RESULT,
    bits_per_byte,
    by_position,
    corpus,
    doubled,
    held_out_bits,
    language_model,
    long_texts,
    longest_document,
    read_afresh,
    read_on,
    slope,
    state_norm,
    train,
)
from tests.lab.little_text import use_little_text


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path_factory):
    use_little_text(monkeypatch, tmp_path_factory)


def model_of(mixer, parameters=30000, seed=3, change=lambda model: None):
    layers = 2 * [{"mixer": mixer, "heads": 2, "key_dim": 6}]
    return language_model(layers, d_model=24, parameters=parameters, seed=seed, change=change)


def whole(model, texts):
    with torch.no_grad():
        logits = model(texts[:, :-1]).logits
    return F.cross_entropy(logits.mT, texts[:, 1:], reduction="none")


@pytest.mark.parametrize("mixer", ["gla", "deltanet", "linear_transformer", "softmax", "retnet"])
@pytest.mark.parametrize("piece", [1, 7, 64])
def test_reading_on_in_pieces_is_reading_the_whole(mixer, piece):
    model, texts = model_of(mixer), long_texts(3, 64)
    pieces = list(read_on(model, texts, piece))
    assert len(pieces) == math.ceil(64 / piece)
    assert torch.allclose(torch.cat([nats for nats, _ in pieces], 1), whole(model, texts), rtol=1e-3, atol=1e-4)


def test_the_cache_goes_through_the_change():
    model, texts = model_of("gla"), long_texts(2, 64)
    forgotten = [nats for nats, _ in read_on(model, texts, 16, lambda cache: model.empty_cache(2))]
    separate = [whole(model, texts[:, a : a + 17]) for a in (0, 16, 32, 48)]
    assert torch.allclose(torch.cat(forgotten, 1), torch.cat(separate, 1), rtol=1e-3, atol=1e-4)


def test_reading_afresh_forgets_at_every_context():
    model, texts = model_of("gated_deltanet"), long_texts(3, 2 * text.CONTEXT)
    separate = [whole(model, x) for x in (texts[:, : text.CONTEXT + 1], texts[:, text.CONTEXT :])]
    assert torch.allclose(read_afresh(model, texts), torch.cat(separate, 1), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(read_afresh(model, texts), whole(model, texts), rtol=1e-3)


@pytest.mark.parametrize("mixer", ["softmax", "kda", "rwkv6"])
def test_models_have_the_parameters_asked_for(mixer):
    count = model_of(mixer, parameters=40000).parameter_count()
    assert abs(count - 40000) <= 3 * 24  # half a unit of each of two MLPs


def test_a_part_that_is_exchanged_is_counted_and_drawn():
    def without_gate(model):
        for mixer in model.mixers():
            mixer.gate, mixer.norm = None, None

    bare, whole_ = model_of("gla", change=without_gate), model_of("gla")
    assert bare.config.mlp_dim > whole_.config.mlp_dim
    again = model_of("gla", change=without_gate)
    assert all(torch.equal(x, y) for x, y in zip(bare.parameters(), again.parameters(), strict=True))


def test_training_lowers_the_bits_and_repeats():
    one, other = model_of("gla"), model_of("gla")
    before = held_out_bits(one, RESULT)
    assert train(one, 30, 1e-2, 5)
    assert train(other, 30, 1e-2, 5)
    assert held_out_bits(one, RESULT) == held_out_bits(other, RESULT) < before - 0.5


def test_a_training_that_breaks_says_so():
    model = model_of("gla")
    assert not train(model, 30, 1e30, 5)


def test_choices_and_results_are_of_other_text():
    model = model_of("gla")
    assert held_out_bits(model, CHOICE) != held_out_bits(model, RESULT)


def test_texts_hold_no_marks_and_begin_evenly_apart():
    stream = corpus(text.TEXT, text.VOCABULARY).held_out
    texts, plain = long_texts(3, 50), stream.tokens[stream.tokens != stream.mark]
    assert texts.shape == (3, 51)
    assert (texts[1] == torch.from_numpy(plain[len(plain) // 3 :][:51].astype("int64"))).all()
    assert not (long_texts(2, 2 * len(plain)) == stream.mark).any()


def test_the_longest_document_is_whole():
    stream, found = corpus(text.TEXT, text.VOCABULARY).held_out, longest_document()
    assert found[0] == stream.mark
    assert (found[1:] != stream.mark).all()
    assert len(found) >= len(stream) / stream.documents


def test_bits_are_those_of_the_bytes_of_the_targets():
    tokens = torch.tensor([[72, 105, 33, 10]])  # bytes are tokens of their own
    nats = torch.full((1, 4), math.log(2.0))
    assert bits_per_byte(nats, tokens) == pytest.approx(1.0)
    assert by_position(nats * torch.tensor([1, 2, 3, 5]), tokens, (2, 4)) == pytest.approx([1.5, 4.0])


def test_the_norm_is_that_of_linear_states():
    model, texts = model_of("gla"), long_texts(2, 16)
    ((_, cache),) = read_on(model, texts, 16)
    memories = [x for name, x in cache.tensors().items() if name.endswith("state.memory")]
    norms = [x[n, h].norm() for x in memories for n in range(2) for h in range(2)]
    assert len(norms) == 8
    assert state_norm(cache) == pytest.approx(float(torch.stack(norms).mean()))
    assert state_norm(model_of("softmax").empty_cache(1)) == 0


def test_slopes_and_doublings():
    assert doubled(5, 79) == (5, 10, 20, 40)
    assert slope([3.0, 3.0, 3.0, 3.0]) == 0
    assert slope([1.0, 2**0.5, 2.0, 2**1.5]) == pytest.approx(0.5)
