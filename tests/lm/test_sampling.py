"""Tokens come from the distribution that the settings describe, and a row's come from the row alone."""

import math
import re
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from rebracket.base.random import uniform
from rebracket.lm.sampling import Sampler

VOCAB = 9
DRAWS = 4000


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def literal(row: list[float], sampler: Sampler) -> dict[int, float]:
    """The distribution in plain words: sharpen, keep the k likeliest, keep the fewest that hold top_p, share out."""
    weight = {i: math.exp(x / sampler.temperature) for i, x in enumerate(row)}
    kept = sorted(weight, key=lambda i: -weight[i])[: sampler.top_k or VOCAB]
    total, held = sum(weight[i] for i in kept), 0.0
    nucleus = []
    for i in kept:
        if held < sampler.top_p * total:
            nucleus.append(i)
            held += weight[i]
    return {i: weight[i] / held for i in nucleus}


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(temperature=1.0),
        Sampler(temperature=0.5),
        Sampler(temperature=1.0, top_k=3),
        Sampler(temperature=1.5, top_p=0.7),
        Sampler(temperature=1.0, top_k=4, top_p=0.6),
        Sampler(temperature=1.0, top_k=100, top_p=1e-9),
    ],
)
def test_frequencies_are_the_probabilities(sampler: Sampler):
    row = logits()
    chosen = sampler.choose(row.expand(DRAWS, -1), [uniform(0, place) for place in range(DRAWS)])
    wanted, found = literal(row[0].tolist(), sampler), Counter(chosen)
    assert found.keys() <= wanted.keys()
    for token, probability in wanted.items():
        error = 5 * math.sqrt(probability * (1 - probability) / DRAWS) + 1e-9
        assert abs(found[token] / DRAWS - probability) < error, token


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 1e-308, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_temperature_next_to_0_takes_one_of_the_likeliest(temperature: float, options: dict[str, float]):
    logits = torch.tensor([[-1e30, 2.0, 1.0, 2.0], [3.0, 2.0, 1.0, -math.inf]])
    sampler = replace(Sampler(temperature=temperature), **options)
    chosen = {tuple(sampler.choose(logits, [number, number])) for number in (0.0, 0.3, 0.7, 0.999)}
    assert chosen <= {(1, 0), (3, 0)}


def test_temperature_0_takes_the_likeliest():
    row = logits(5)
    assert Sampler(temperature=0).choose(row, []) == row.argmax(-1).tolist()
    assert Sampler(temperature=1e-3).choose(row, [0.999] * 5) == row.argmax(-1).tolist()
    assert Sampler(top_k=1).choose(row, [0.999] * 5) == row.argmax(-1).tolist()


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.sampled_from([None, 2, 5]), st.sampled_from([0.3, 1.0]))
@settings(max_examples=50, deadline=None)
def test_rows_do_not_see_each_other(seed: int, place: int, top_k: int | None, top_p: float):
    sampler, rows = Sampler(temperature=0.9, top_k=top_k, top_p=top_p), logits(4)
    numbers = [uniform(seed + n, place) for n in range(4)]
    apart = [sampler.choose(rows[n : n + 1], numbers[n : n + 1])[0] for n in range(4)]
    assert sampler.choose(rows, numbers) == apart


def test_every_number_chooses_a_possible_token():
    row = torch.tensor([[-math.inf, 1.0, 0.0, -math.inf]])
    for sampler in (Sampler(temperature=1.0), Sampler(temperature=1.0, top_k=3), Sampler(temperature=1.0, top_p=0.99)):
        assert sampler.choose(row.expand(2, -1), [0.0, 1 - 2**-52]) == [1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_logits_of_any_dtype_are_taken(dtype: torch.dtype):
    row = logits(1).to(dtype)
    assert Sampler(temperature=1.0).choose(row, [0.5]) == Sampler(temperature=1.0).choose(row.double(), [0.5])


def test_numbers_are_uniform_and_depend_on_both_arguments():
    found = torch.tensor([[uniform(seed, place) for place in range(500)] for seed in range(20)])
    assert found.min() >= 0
    assert found.max() < 1
    assert len(found.unique()) > 0.999 * found.numel()
    counts = torch.histc(found, 10, 0, 1)
    assert (counts - 1000).abs().max() < 5 * math.sqrt(900)
    rows = torch.corrcoef(torch.cat([found, found[:, 1:].roll(1, 1)[:, :1].expand(-1, 500) * 0 + found.roll(1, 1)]))
    assert (rows - torch.eye(40)).abs().max() < 5 / math.sqrt(500)


def test_numbers_are_the_same_on_every_machine():
    """SplitMix64's own first output for seed 0 is 0xE220A8397B1DCDAF; here it seeds the stream."""
    word = (1 << 64) - 1
    state = 0xE220A8397B1DCDAF + 3 * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15 & word
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & word
    state = (state ^ state >> 27) * 0x94D049BB133111EB & word
    assert uniform(0, 3) == ((state ^ state >> 31) >> 12) / 2**52


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_said_to_be_so(bad: float):
    row = logits()
    row[0, 3] = bad
    for sampler in (Sampler(temperature=0), Sampler(temperature=1.0), Sampler(top_k=2), Sampler(top_p=0.5)):
        with pytest.raises(FloatingPointError, match="logits hold NaN or infinity"):
            sampler.choose(torch.cat([logits(), row]), [0.5, 0.5])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -1.0, "temperature must be a number of at least 0, got -1.0"),
        ("temperature", math.nan, "temperature must be a number of at least 0, got nan"),
        ("temperature", "hot", "temperature must be a number of at least 0, got 'hot'"),
        ("top_k", 0, "top_k must be a whole number of at least 1, got 0"),
        ("top_k", 2.0, "top_k must be a whole number of at least 1, got 2.0"),
        ("top_p", 0.0, "top_p must lie in (0, 1], got 0.0"),
        ("top_p", 1.5, "top_p must lie in (0, 1], got 1.5"),
        ("seed", -1, "seed must be a whole number in [0, 18446744073709551615], got -1"),
        ("seed", True, "seed must be a whole number in [0, 18446744073709551615], got True"),
    ],
)
def test_bad_settings_are_refused(name: str, value: object, words: str):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Sampler(**{name: value})  # type: ignore[arg-type]
