"""What pairs leave in a memory, against loops over them."""

import torch

from rebracket.lab.base.pairs import accuracy, generator, recall_scores, squared_error, stored, unit_vectors
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta

N, n, K, V = 2, 3, 4, 5


def pairs():
    draw = generator(1)
    return unit_vectors(draw, N, n, K), unit_vectors(draw, N, n, V)


def test_additive_memories_are_sums_of_outer_products():
    k, v = pairs()
    expected = sum(k[:, t, :, None] * v[:, t, None] for t in range(n))
    torch.testing.assert_close(stored(k, v, Additive()), expected)
    torch.testing.assert_close(stored(k, v, Additive(), passes=3), 3 * expected)


def test_decays_weigh_by_age():
    k, v = pairs()
    expected = sum(0.5 ** (n - 1 - t) * k[:, t, :, None] * v[:, t, None] for t in range(n))
    torch.testing.assert_close(stored(k, v, Additive(), torch.tensor([0.5]).log()), expected)


def test_the_last_pair_of_a_delta_memory_is_exact():
    k, v = pairs()
    assert squared_error((k @ stored(k, v, Delta(1.0)))[:, -1:], v[:, -1:]) < 1e-10
    assert squared_error((k @ stored(k, v, Delta(1.0)))[:, :1], v[:, :1]) > 1e-3


def test_accuracy_counts_the_nearest():
    values = torch.eye(3)[None]
    read = torch.tensor([[[0.9, 1.0, 0.0], [0.0, 1.0, 0.0]]])
    assert accuracy(read, values, torch.tensor([1, 1])) == 1.0
    assert accuracy(read, values, torch.tensor([0, 1])) == 0.5


def test_draws_differ_by_any_number_and_have_length_one():
    first, same, other = (unit_vectors(generator(*seeds), 50, K) for seeds in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(50))


def test_scores_are_of_the_values_asked_for():
    (k, v), answers = pairs(), torch.tensor([2, 0])
    memory = stored(k, v, Delta(1.0))
    read = (k @ memory)[:, [2, 0]]
    assert recall_scores({"delta": memory, "none": 0 * memory}, k[:, [2, 0]], v, answers) == {
        "delta error": squared_error(read, v[:, [2, 0]]),
        "none error": 1.0,
        "delta accuracy": accuracy(read, v, answers),
        "none accuracy": accuracy(0 * read, v, answers),
    }
