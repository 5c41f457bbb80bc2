"""Rates are amounts over times, and a case is bounded by the slower of its two."""

import pytest
import torch

from rebracket.bench import limits
from rebracket.bench.cases import by_name
from rebracket.bench.clock import Budget, Timing
from rebracket.bench.limits import SIDE, Limits, least, measure_limits, yardstick

LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
CASE = by_name()["simple_gla"]("simple_gla", (2, 10, 3, 5), "forward")


def test_the_machine_is_measured(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 32)
    monkeypatch.setattr(limits, "LARGE", 1 << 12)
    monkeypatch.setattr(limits, "SMALL", 1 << 8)
    before = torch.get_num_threads()
    found = measure_limits(2, Budget(1, 0))
    assert found.threads == 2
    assert min(found.float32, found.bfloat16, found.copy, found.cache) > 1e5
    assert torch.get_num_threads() == before


def test_rates_are_amounts_over_medians(monkeypatch):
    timings = {"float32": 1.0, "bfloat16": 0.5, "copy": 2.0, "cache": 0.25}
    found = {name: Timing((0.1 * x, x, 9.0 * x)) for name, x in timings.items()}
    monkeypatch.setattr(limits, "measure", lambda calls, budget: (found, None))
    monkeypatch.setattr(limits, "LARGE", 1 << 12)
    operations = 2 * SIDE**3
    assert measure_limits(1, Budget(1, 0)) == Limits(1, operations, 2 * operations, 4 << 12, 32 * limits.SMALL)


def test_beside_a_sequence_stands_a_product_and_a_case_takes_its_operations_or_its_bytes():
    name, call = yardstick(CASE)
    assert name == limits.PRODUCT
    assert list(call().shape) == [SIDE, SIDE]
    slow, fast = 2 * SIDE**3 / 1e9, 2 * SIDE**3 / 1e12
    assert least(CASE, LIMITS, Timing((0.0, slow, 99.0))) == pytest.approx(CASE.work.operations / 1e9)
    assert least(CASE, LIMITS, Timing((fast,))) == CASE.work.nbytes / 1e9


def test_beside_a_token_stands_a_pass_over_its_state():
    for rule, shape, numbers in (
        ("delta", (2, 1, 3, 5), 6 * 5 * 5),
        ("linear", (2, 1, 3, 5), 6 * 5 * 6),
        ("convolution", (2, 1, 5), 2 * 3 * 5),
    ):
        token = by_name()[rule](rule, shape, "decode")
        name, call = yardstick(token)
        assert name == limits.SCALING
        assert call().numel() == numbers
        assert call().nbytes == token.work.state_nbytes
        assert least(token, LIMITS, Timing((0.25,))) == 0.25
