"""Where lines cross, on their logarithms."""

import math

import pytest

from rebracket.bench.benchmark import Row, Status
from rebracket.bench.case import Mode
from rebracket.bench.cases import by_name
from rebracket.bench.clock import Timing
from rebracket.bench.crossover import SOFTMAX, crossover, lines, softmax_of

SQUARE = {T: T**2 / 1000 for T in (100, 200, 400, 800, 1600)}


@pytest.mark.parametrize("at", [150, 399, 401, 800, 1599])
def test_powers_cross_where_they_are_equal(at):
    straight = {T: at * T / 1000 for T in SQUARE}
    assert crossover(straight, SQUARE) == pytest.approx(at)


def test_the_last_crossing_counts():
    share = math.log(3 / 2) / (math.log(3 / 2) + math.log(2 / 1))
    waves = {1: 3.0, 2: 1.0, 4: 3.0, 8: 1.0}
    assert crossover(waves, dict.fromkeys(waves, 2.0)) == pytest.approx(4 * 2**share)


def test_faster_everywhere_and_nowhere():
    assert crossover(dict.fromkeys(SQUARE, 0.0001), SQUARE) == 0
    assert crossover(dict.fromkeys(SQUARE, 1000000000.0), SQUARE) is None
    assert crossover({1: 1.0}, {2: 5.0}) is None


def test_only_the_lengths_that_both_have_are_compared():
    straight = {T: 300 * T / 1000 for T in SQUARE}
    short = {T: SQUARE[T] for T in (100, 200)}
    assert crossover(straight, short) is None
    assert crossover({T: straight[T] for T in (200, 400)}, SQUARE) == pytest.approx(300)


def row(
    rule: str, T: int, seconds: float | None, mode: Mode = "forward", threads: int = 1, status: Status = "timed"
) -> Row:
    timing = None if seconds is None else Timing((seconds,))
    return Row("auto", False, by_name()[rule](rule, (1, T, 8, 64), mode), threads, status, timing=timing)


def test_lines_are_made_of_timed_rows_of_one_rule_mode_and_thread_count():
    found = lines(
        [
            row("kda", 1, 1.0),
            row("kda", 2, 2.0),
            row("kda", 2, 3.0, threads=2),
            row("softmax", 2, 9.0, "train"),
            row("softmax", 2, 4.0),
            row("kda", 4, None, status="large"),
            row("kda", 8, 7.0, status="yardstick"),
        ]
    )
    assert [(x.rule, x.mode, x.threads, x.seconds) for x in found] == [
        ("kda", "forward", 1, {1: 1.0, 2: 2.0}),
        ("kda", "forward", 2, {2: 3.0}),
        ("softmax", "train", 1, {2: 9.0}),
        ("softmax", "forward", 1, {2: 4.0}),
    ]
    assert softmax_of(found, found[0]) is found[3].seconds
    assert found[3].rule == SOFTMAX
    assert softmax_of(found, found[1]) == {}
