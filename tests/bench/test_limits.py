"""Rates are amounts over times, and a case is bounded by the slower of its two."""

import torch

from rebracket.bench import limits
from rebracket.bench.cases import RULES, Case, Shape
from rebracket.bench.clock import Pace, Timing
from rebracket.bench.limits import SIDE, Limits, least, measure, yardstick

LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
CASE = Case(RULES["simple_gla"], Shape(2, 10, 3, 5), "forward")


def test_the_machine_is_measured(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 32)
    monkeypatch.setattr(limits, "LARGE", 1 << 12)
    monkeypatch.setattr(limits, "SMALL", 1 << 8)
    before = torch.get_num_threads()
    found = measure(2, Pace(1, 0))
    assert found.threads == 2
    assert min(found.float32, found.bfloat16, found.copy, found.cache) > 1e5
    assert torch.get_num_threads() == before


def test_a_rate_is_an_amount_over_the_median():
    assert limits.rate(12.0, Timing((1.0, 3.0, 100.0))) == 4.0


def test_a_case_takes_its_operations_or_its_bytes_whichever_is_longer():
    assert LIMITS.seconds(CASE) == CASE.operations / 1e9
    assert LIMITS.seconds(CASE, rate=1e12) == CASE.nbytes / 1e9


def test_beside_a_sequence_stands_a_product_and_beside_a_token_a_pass_over_its_state():
    name, call = yardstick(CASE)
    assert name == limits.PRODUCT
    assert list(call().shape) == [SIDE, SIDE]
    assert least(CASE, LIMITS, Timing((1e-3,))) == max(CASE.operations / (2 * SIDE**3 / 1e-3), CASE.nbytes / 1e9)
    for rule, columns in (("delta", 5), ("linear", 6)):
        token = Case(RULES[rule], Shape(2, 1, 3, 5), "decode")
        name, call = yardstick(token)
        assert name == limits.SCALING
        assert list(call().shape) == [2, 3, 5, columns]
        assert call().nbytes == token.state_nbytes
        assert least(token, LIMITS, Timing((0.25,))) == 0.25
