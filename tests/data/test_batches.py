"""Packed rows: every token asked for once, from its own document only, in an order that needs no memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rebracket.data.batches import Batches, gather, order, ordered, splitmix
from rebracket.data.tokens import TokenStream

MARK = 99


def stream(*documents):
    """A stream whose tokens are all different, so that each can be found again."""
    numbers = iter(range(100, 10_000))
    row = [number for length in documents for number in (MARK, *(next(numbers) for _ in range(length)))]
    return TokenStream(np.array(row, np.uint16), MARK, len(documents), sum(documents), "")


def successors(of):
    """What follows each place of the ring."""
    return np.roll(of.tokens, -1).tolist()


STREAMS = st.lists(st.integers(1, 12), min_size=1, max_size=8).map(lambda lengths: stream(*lengths))


@settings(deadline=None)
@given(of=STREAMS, context=st.integers(1, 9), rows=st.integers(1, 4))
def test_ordered_asks_for_every_token_and_every_end_exactly_once(of, context, rows):
    batches = list(ordered(of, context, context * rows))
    assert torch.cat([batch.tokens[0] for batch in batches]).tolist() == of.tokens.tolist()
    assert torch.cat([batch.targets[0] for batch in batches]).tolist() == successors(of)


@settings(deadline=None)
@given(of=STREAMS, context=st.integers(1, 9), rows=st.integers(1, 4))
def test_sequences_begin_at_marks_and_contexts_and_nowhere_else(of, context, rows):
    for batch in ordered(of, context, context * rows):
        tokens, bounds = batch.tokens[0].tolist(), batch.cu_seqlens.tolist()
        begins = {place for place, token in enumerate(tokens) if token == MARK or place % context == 0}
        assert bounds == [*sorted(begins), len(tokens)]
        assert max(np.diff(bounds)) <= context


def test_a_document_is_predicted_from_its_mark_to_its_end():
    (batch,) = ordered(stream(2, 3), context=100, batch_tokens=100)
    assert batch.tokens.tolist() == [[MARK, 100, 101, MARK, 102, 103, 104]]
    assert batch.targets.tolist() == [[100, 101, MARK, 102, 103, 104, MARK]]
    assert batch.cu_seqlens.tolist() == [0, 3, 7]


def test_a_limit_gives_whole_rows_spread_over_the_stream():
    of = stream(*[9] * 40)
    rows = [batch.tokens[0].tolist() for batch in ordered(of, 5, 20)]
    assert [batch.tokens[0].tolist() for batch in ordered(of, 5, 20, limit=80)] == rows[::5]
    assert [batch.tokens[0].tolist() for batch in ordered(of, 5, 20, limit=1)] == rows[:1]
    assert len(list(ordered(of, 5, 20, limit=10**9))) == len(rows)


def epoch(batches, number):
    """The tokens that the batches of an epoch ask for."""
    per_epoch, rest = divmod(batches.contexts, batches.batch_tokens // batches.context)
    assert not rest
    return [token for n in range(per_epoch) for token in batches[number * per_epoch + n].targets[0].tolist()]


def test_an_epoch_visits_every_context_once_and_the_next_one_otherwise():
    batches = Batches(stream(*[7] * 8), context=8, batch_tokens=16, seed=0)
    first, second = epoch(batches, 0), epoch(batches, 1)
    assert sorted(first) == sorted(second) == sorted(successors(batches.stream))
    assert first != second


def test_a_row_is_cut_from_the_ring_and_shifted_inside_it():
    of = stream(5, 9, 4)
    following = dict(zip(of.tokens.tolist(), successors(of), strict=True))
    batches = Batches(of, context=4, batch_tokens=12, seed=3)
    for number in range(50):
        batch = batches[number]
        pairs = zip(batch.tokens[0].tolist(), batch.targets[0].tolist(), strict=True)
        assert all(target == following[token] for token, target in pairs if token != MARK)
        assert batch.tokens.shape == (1, 12)
        assert set(range(0, 12, 4)) < set(batch.cu_seqlens.tolist())


def test_each_epoch_and_each_seed_has_a_shuffle_of_its_own():
    shuffles = [order(seed, epoch, 50).tolist() for seed in range(3) for epoch in range(3)]
    assert all(sorted(one) == list(range(50)) for one in shuffles)
    assert len(set(map(tuple, shuffles))) == 9


def test_cuts_move_from_epoch_to_epoch():
    batches = Batches(stream(255), context=16, batch_tokens=16, seed=0)
    firsts = {epoch: {int(batches[epoch * 16 + n].tokens[0, 0]) for n in range(16)} for epoch in range(4)}
    assert len(set(map(frozenset, firsts.values()))) == 4


def test_batch_n_needs_nothing_before_it_and_hangs_on_the_seed():
    of = stream(*[30] * 30)

    def read(seed, number):
        return Batches(of, context=10, batch_tokens=40, seed=seed)[number].tokens.tolist()

    forward = [read(7, number) for number in range(40)]
    assert [read(7, number) for number in reversed(range(40))] == forward[::-1]
    assert read(8, 0) != forward[0]


def test_the_order_is_the_published_splitmix64():
    states = np.uint64(1234567) + np.uint64(0x9E3779B97F4A7C15) * np.arange(3, dtype=np.uint64)
    assert splitmix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_stream_of_one_context_and_one_token_is_the_shortest():
    assert Batches(stream(4), context=4, batch_tokens=4, seed=0)[0].tokens.shape == (1, 4)
    with pytest.raises(ValueError, match="text must be longer than one context of 5 tokens, got 5"):
        Batches(stream(4), context=5, batch_tokens=5, seed=0)


def test_a_row_that_is_no_whole_number_of_contexts_is_refused():
    with pytest.raises(ValueError, match="batch_tokens must be a multiple of the context 4, got 6"):
        Batches(stream(40), context=4, batch_tokens=6, seed=0)


def test_gather_wraps_around_the_end():
    of = stream(2)
    batch = gather(of, np.array([2]), 3)
    assert batch.tokens.tolist() == [[101, MARK, 100]]
    assert batch.targets.tolist() == [[MARK, 100, 101]]
    assert batch.cu_seqlens.tolist() == [0, 1, 3]
