"""Multi-query recall: every question has one answer, the texts are as the task's authors define them."""

import pytest
import torch

from rebracket.lab.base.learning import UNLABELLED
from rebracket.lab.base.multi_query import multi_query_recall
from rebracket.lab.base.pairs import generator

B, T, PAIRS, V = 700, 42, 5, 23
CONTEXT = 2 * PAIRS


def sample(power: float = 0.01):
    return multi_query_recall(generator(3), B, T, PAIRS, V, power)


def test_keys_and_values_alternate_and_never_repeat():
    context = sample().tokens[:, :CONTEXT]
    keys, values = context[:, ::2], context[:, 1::2]
    assert keys.min() == 1
    assert keys.max() == V // 2 - 1
    assert values.min() == V // 2
    assert values.max() == V - 1
    for x in (keys, values):
        assert (x.sort(-1).values.diff(dim=-1) > 0).all()


def test_every_key_is_asked_once_at_the_first_place_of_a_slot_and_its_label_there_is_its_value():
    found = sample()
    keys, values = found.tokens[:, :CONTEXT:2], found.tokens[:, 1:CONTEXT:2]
    asked = found.labels != UNLABELLED
    assert (asked.sum(-1) == PAIRS).all()
    assert not asked[:, :CONTEXT].any()
    assert not asked[:, 1::2].any()
    for row in range(50):
        pairs = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        places = asked[row]
        questions, answers = found.tokens[row, places].tolist(), found.labels[row, places].tolist()
        assert dict(zip(questions, answers, strict=True)) == pairs


def test_filler_is_any_token():
    found = sample()
    filler = found.tokens[:, CONTEXT:][found.labels[:, CONTEXT:] == UNLABELLED]
    counts = filler.bincount(minlength=V).double()
    assert counts.numel() == V
    assert ((counts / counts.mean() - 1).abs() < 0.15).all()


def test_slots_are_drawn_by_the_power_law_the_first_key_by_exactly_that():
    found = sample()
    slots = torch.arange(1, (T - CONTEXT) // 2 + 1).double()
    expected = slots**-0.99 / (slots**-0.99).sum()
    first = ((found.labels == found.tokens[:, 1:2])[:, CONTEXT::2]).double().mean(0)
    assert (first - expected).abs().max() < 4 * (expected * (1 - expected) / B).sqrt().max()
    nearest, even = (x.labels[:, CONTEXT] != UNLABELLED for x in (found, sample(power=1.0)))
    assert nearest.double().mean() > 0.7
    assert abs(even.double().mean() - PAIRS / len(slots)) < 0.06


def test_the_same_generator_draws_the_same():
    one, other = (multi_query_recall(generator(5), 3, 20, 2, 9) for _ in range(2))
    assert one.tokens.equal(other.tokens)
    assert one.labels.equal(other.labels)


def test_a_rewritten_key_is_asked_for_its_newest_value():
    found = multi_query_recall(generator(3), 50, 40, 4, 31, writes=3)
    context, asked = found.tokens[:, :24], found.labels != UNLABELLED
    assert (asked.sum(-1) == 4).all()
    assert not asked[:, :24].any()
    orders = set()
    for row in range(50):
        keys, values = context[row, ::2].tolist(), context[row, 1::2].tolist()
        assert sorted(keys.count(key) for key in set(keys)) == [3, 3, 3, 3]
        assert len(set(values)) == 12
        newest = dict(zip(keys, values, strict=True))  # later ones replace earlier ones
        questions, answers = found.tokens[row, asked[row]].tolist(), found.labels[row, asked[row]].tolist()
        assert dict(zip(questions, answers, strict=True)) == newest
        orders.add(tuple(keys.index(key) for key in keys))
    assert len(orders) > 40  # keys come again in any order


@pytest.mark.parametrize(
    ("tokens", "pairs", "vocabulary", "what"),
    [(19, 2, 9, "tokens"), (18, 5, 90, "tokens"), (99, 0, 9, "tokens"), (40, 4, 9, "pairs"), (40, 0, 9, "pairs")],
)
def test_what_does_not_fit_is_refused(tokens, pairs, vocabulary, what):
    with pytest.raises(ValueError, match=f"^{what} must"):
        multi_query_recall(generator(0), 1, tokens, pairs, vocabulary)
