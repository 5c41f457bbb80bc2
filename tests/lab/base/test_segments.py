"""The labels are those of a plain count; the constant decay sees no token."""

import collections

import torch

from rebracket.lab.base.learning import UNLABELLED
from rebracket.lab.base.memories import generator
from rebracket.lab.base.segments import DELIMITER, FIRST, MARKED, MOST, SYMBOLS, log_decays, only, reader, segments


def answers(tokens: list[int]) -> list[int]:
    """One text, read token by token."""
    counts, marked, found = collections.Counter(), UNLABELLED, []
    for token in tokens:
        if token == DELIMITER:
            counts.clear()
        elif FIRST <= token < FIRST + SYMBOLS:
            counts[token] += 1
        elif token >= FIRST + SYMBOLS:
            marked = token
        ranked = [*counts.most_common(2), (UNLABELLED, 0), (UNLABELLED, 0)]
        most = ranked[0][0] if ranked[0][1] > ranked[1][1] else UNLABELLED
        found.append({MOST: most, MARKED: marked}.get(token, UNLABELLED))
    return found


def test_labels_are_those_of_a_count():
    examples = segments(77, 13, generator(5))
    assert examples.labels.tolist() == [answers(row) for row in examples.tokens.tolist()]
    assert set(segments(77, 99, generator(5)).tokens.unique().tolist()) == set(range(FIRST + 2 * SYMBOLS))


def test_the_questions_are_apart():
    examples = segments(77, 13, generator(5))
    most, marked = only(examples, MOST), only(examples, MARKED)
    assert torch.equal(most.labels.maximum(marked.labels), examples.labels)
    late = only(examples, MARKED, 50).labels
    assert (late[:, :50] == UNLABELLED).all()
    assert torch.equal(late[:, 50:], marked.labels[:, 50:])


def test_only_the_learned_decay_sees_the_tokens():
    tokens = segments(33, 2, generator(5)).tokens
    constant, learned = (log_decays(reader(gate, 33, seed=1), tokens) for gate in ("constant", "learned"))
    torch.testing.assert_close(constant, constant[:, :1].expand_as(constant))
    assert (learned / learned[:, :1] - 1).abs().max() > 0.01
