"""Cells say what rows hold; what is missing is a dash, what is wrong is loud."""

from dataclasses import replace

import pytest

from rebracket.bench import tables
from rebracket.bench.benchmark import Row, Status
from rebracket.bench.case import Mode
from rebracket.bench.cases import by_name
from rebracket.bench.clock import Timing
from rebracket.bench.limits import PRODUCT, Limits
from rebracket.bench.suite import FULL, SuiteResult

A, B, TOKEN = (1, 8, 2, 4), (3, 8, 2, 4), (2, 1, 3, 4)
LIMITS = [Limits(threads, 90e9, 200e9, 20e9, 80e9) for threads in (1, 2)]
SUITE = replace(FULL, modes=["forward", "decode"], threads=(1, 2))


def row(
    name: str,
    rule: str = "kda",
    shape: tuple[int, ...] = A,
    seconds: float | None = None,
    least: float = 1e-3,
    mode: Mode = "forward",
    threads: int = 1,
    status: Status = "timed",
    reason: str = "",
) -> Row:
    timing = None if seconds is None else Timing((seconds, seconds * 1.1, seconds * 0.9, seconds, seconds))
    case = by_name()[rule](rule, shape, mode)
    return Row(name, name.startswith("peer"), case, threads, status, reason, timing, 1e-6, 12_300_000, 302, least, 0.25)


ROWS = [
    row("cpu", seconds=0.002),
    row("cpu", shape=B, seconds=0.004),
    row("reference", seconds=0.008),
    row("reference", shape=B, status="large", reason="about 31 s a call, over 8 s"),
    row("peer one", seconds=0.003),
    row("peer one", shape=B, status="failed", reason="RuntimeError: no"),
    row("peer two", seconds=0.005),
    row("peer two", shape=B, seconds=0.002),
    row("peer three", status="refused", reason="not today"),
    row("peer three", shape=B, status="refused", reason="not today"),
    row("peer four", status="wrong", reason="out is off by 3.0e-01 of the largest"),
    row(PRODUCT, seconds=1.0, status="yardstick"),
    row("cpu", seconds=0.001, threads=2),
    row("cpu", shape=TOKEN, seconds=30e-6, least=20e-6, mode="decode"),
]
RESULT = SuiteResult(SUITE, LIMITS, ROWS, [])


def test_times():
    forward, decode, two = tables.times(RESULT)
    assert [forward.title, decode.title, two.title] == [
        "Forward, 1 thread", "Decode, one token, 1 thread", "Forward, 2 threads",
    ]  # fmt: skip
    assert list(forward.head) == ["rule", "", "1x8x2x4", "3x8x2x4"]
    assert [list(line) for line in forward.rows] == [
        ["KDA", "cpu", "2 ms ±0% 0.50", "4 ms ±0% 0.25"],
        ["", "reference", "8 ms ±0% 0.12", "about 31 s"],
        ["", "peer one", "3 ms ±0% 0.33", "FAILED"],
        ["", "peer two", "5 ms ±0% 0.20", "2 ms ±0% 0.50"],
        ["", "peer four", "WRONG", "–"],
        ["", "fastest peer / ours", "1.50x peer one", "0.50x peer two"],
    ]
    assert [list(line) for line in decode.rows] == [["KDA", "cpu", "30 us ±0% 1.50x"]]


def test_a_spread_is_half_the_distance_of_the_quartiles():
    uneven = replace(row("cpu"), timing=Timing((1.0, 2.0, 3.0, 4.0, 5.0)), least=None)
    assert tables.time_cell(uneven) == "3 s ±33%"
    assert tables.time_cell(replace(uneven, timing=Timing((3.0,)))) == "3 s"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (123.4, "123 s"),
        (1.0, "1 s"),
        (0.9996, "1e+03 ms"),
        (0.0123, "12.3 ms"),
        (57.1e-6, "57.1 us"),
        (4e-8, "0.04 us"),
    ],
)
def test_seconds(value, shown):
    assert tables.seconds(value) == shown


def test_memory_is_that_of_the_first_thread_count():
    (only,) = tables.memory(RESULT)
    assert only.title == "Memory added, forward"
    assert list(only.rows[0]) == ["KDA", "cpu", "12.3 MB", "12.3 MB"]


def test_notes_say_why_once_for_every_reason():
    assert tables.notes(RESULT) == [
        "peer one: failed: RuntimeError: no (KDA, 3x8x2x4, forward)",
        "peer three: not today (2 cases)",
        "peer four: wrong: out is off by 3.0e-01 of the largest (KDA, 1x8x2x4, forward)",
    ]


def test_the_largest_error_and_the_fewest_functions_of_each():
    worse = replace(ROWS[1], error=2e-5, functions=81)
    *_, functions, errors = tables.tables(replace(RESULT, rows=[*ROWS, worse]))
    assert (functions.title, errors.title) == ("Functions called", "Largest error")
    assert list(functions.head) == list(errors.head) == ["", "Forward", "Decode, one token"]
    assert list(functions.rows[0]) == ["cpu", "81", "302"]
    assert list(errors.rows[0]) == ["cpu", "2.0e-05", "1.0e-06"]
    assert list(errors.rows[1]) == ["reference", "1.0e-06", "–"]


def test_an_operator_of_its_own_has_a_table_with_a_group_for_each_mode():
    rows = [
        row("cpu", "convolution", (1, 8, 4), 0.002),
        row("peer", "convolution", (1, 8, 4), 0.004),
        row("cpu", "convolution", (3, 8, 4), 0.002, mode="train"),
        row("peer", "convolution", (3, 8, 4), status="wrong", mode="train"),
        row("cpu", "convolution", (2, 1, 4), 30e-6, 20e-6, mode="decode"),
    ]
    (found,) = tables.times(replace(RESULT, rows=rows))
    assert found.title == "Short convolution, 1 thread"
    assert list(found.head) == ["mode", "", "1x8x4", "3x8x4", "2x1x4"]
    assert [list(line) for line in found.rows] == [
        ["forward", "cpu", "2 ms ±0% 0.50", "–", "–"],
        ["", "peer", "4 ms ±0% 0.25", "–", "–"],
        ["", "fastest peer / ours", "2.00x peer", "–", "–"],
        ["forward and backward", "cpu", "–", "2 ms ±0% 0.50", "–"],
        ["", "peer", "–", "WRONG", "–"],
        ["decode, one token", "cpu", "–", "–", "30 us ±0% 1.50x"],
    ]
    (memory,) = tables.memory(replace(RESULT, rows=rows))
    assert memory.title == "Memory added, short convolution"
    assert [line[:2] for line in memory.rows] == [
        ["forward", "cpu"], ["", "peer"], ["forward and backward", "cpu"], ["", "peer"],
    ]  # fmt: skip


def test_the_machine():
    found = tables.machine_limits(LIMITS)
    assert [list(line) for line in found.rows] == [
        [threads, "90.0 GFLOP/s", "200.0 GFLOP/s", "20.0 GB/s", "80.0 GB/s"] for threads in "12"
    ]


def test_how_busy_the_machine_was():
    assert tables.busy(RESULT).startswith("Other processes kept 0.25 cores busy")
    assert "does not tell" in tables.busy(replace(RESULT, rows=[replace(ROWS[0], others=None)]))


def test_a_bar_in_a_cell_makes_no_column():
    assert tables.Table("title", ["a|b", "c"], []).markdown() == "## title\n\n| a/b | c |\n| --- | --- |"


def test_crossovers():
    def swept(rule, seconds):
        return [row("auto", rule, (1, T, 8, 64), seconds(T)) for T in (64, 128, 256)]

    sweep = [
        *swept("gla", lambda T: T / 1000),
        *swept("kda", lambda T: T / 10),
        *swept("delta", lambda T: T / 1e6),
        *swept("softmax", lambda T: T * T / 1e5),
    ]
    found = tables.softmax_crossovers(replace(RESULT, sweep=sweep))
    assert found is not None
    assert list(found.head) == ["rule", "forward, 1 thread"]
    assert [list(line) for line in found.rows] == [["GLA", "100"], ["KDA", "over 256"], ["delta", "below 64"]]
    assert tables.softmax_crossovers(RESULT) is None
