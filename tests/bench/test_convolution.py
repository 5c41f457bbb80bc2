"""The short convolution is raced as the rules are: checked, then timed, and shown beside torch's."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rebracket.bench import clock, convolution, grid, limits, report
from rebracket.bench.cases import MODES
from rebracket.bench.clock import Pace
from rebracket.bench.convolution import Case, Entrant, Form, Ground, Inputs, Ours, Shape, Torch, entrants, prepare, race
from rebracket.bench.limits import Limits
from rebracket.bench.program import QUICK, Outcome, run
from rebracket.ops.backend import INSTALLED

LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
LONG, TOKEN = Shape(2, 9, 5), Shape(3, 1, 5)
CASES = [Case(LONG, "forward"), Case(LONG, "train"), Case(TOKEN, "decode")]
Change = Callable[[Inputs, Tensor, Tensor], tuple[Tensor, Tensor]]


def next_channel(x: Inputs, y: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    return y.roll(1, -1), tail


def echoed(x: Inputs, y: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    return y + 1e-3 * y.roll(1, 1) if y.shape[1] > 1 else y * 1.001, tail


def without_gradient(x: Inputs, y: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """Right forward, and the filters' gradient halved."""
    return y if not y.requires_grad else y - 0 * y.detach() + (y.detach() - y) / 2, tail


def old_tail(x: Inputs, y: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    return y, tail.flip(1)


class Wrong(Entrant):
    """The reference with a fault."""

    name = "wrong"

    def __init__(self, change: Change = next_channel, is_peer: bool = True) -> None:
        self.change, self.is_peer, self.calls = change, is_peer, 0

    def convolve(self, x: Inputs) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return self.change(x, *Ours("reference").convolve(x))


class Refusing(Wrong):
    name = "refusing"

    def refusal(self, x: Inputs) -> str | None:
        return "not today"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 16)
    monkeypatch.setattr(limits, "LARGE", 1 << 10)
    monkeypatch.setattr(clock, "SAMPLE", 0.0)


def raced(monkeypatch, case: Case, *who: Entrant, form: Form | None = None):
    monkeypatch.setattr(convolution, "entrants", lambda: who)
    return race(case, Ground(case), LIMITS, Pace(3, 0), form or Form(longest=60))


def test_the_backends_and_torch_take_part():
    assert [(entrant.name, entrant.is_peer) for entrant in entrants()] == [
        *((name, False) for name in INSTALLED),
        ("torch conv1d", True),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whoever_takes_part_is_right_and_timed(case, dtype):
    case = replace(case, dtype=dtype)
    for row in race(case, Ground(case), LIMITS, Pace(3, 0), Form(longest=60)):
        assert row.status == "timed", row.reason
        assert row.timing is not None
        assert len(row.timing.samples) == 3
        assert row.error is not None
        assert row.error < (1e-6 if dtype == torch.float32 else 1e-2)
        assert row.least == case.least(LIMITS)


@pytest.mark.parametrize(
    ("mode", "change", "name"),
    [
        ("forward", next_channel, "out"),
        ("forward", echoed, "out"),
        ("train", echoed, "grad"),
        ("train", without_gradient, "grad"),
        ("decode", echoed, "out"),
        ("decode", old_tail, "tail"),
    ],
)
def test_what_is_wrong_is_not_timed_and_shown(monkeypatch, mode, change, name):
    wrong, (case,) = Wrong(change), (case for case in CASES if case.mode == mode)
    found, beside = raced(monkeypatch, case, wrong, Torch())
    assert found.status == "wrong"
    assert name in found.reason
    assert "is off by" in found.reason
    assert found.timing is None
    assert wrong.calls == 2  # to load, and to check
    assert beside.status == "timed"


def test_who_does_not_cover_a_case_says_why(monkeypatch):
    refused, right = raced(monkeypatch, CASES[0], Refusing(), Torch())
    assert (refused.status, refused.reason) == ("refused", "not today")
    assert right.status == "timed"


def test_who_would_take_too_long_for_a_larger_shape_does_not_run(monkeypatch):
    form, entrant = Form(longest=0.0), Wrong(lambda x, y, tail: (y, tail))
    first, second = (raced(monkeypatch, CASES[0], entrant, form=form)[0] for _ in range(2))
    assert first.status == "timed"
    calls = entrant.calls
    assert second.status == "large"
    assert second.reason.endswith("s a call, over 0 s")
    assert entrant.calls == calls
    assert raced(monkeypatch, CASES[1], entrant, form=form)[0].status == "timed"  # nothing is known of training


def test_the_limit_is_what_must_be_moved_at_the_rate_of_a_copy():
    numbers = 2 * 9 * 5
    assert [case.least(LIMITS) for case in CASES] == [2 * 4 * numbers / 1e9, 5 * 4 * numbers / 1e9, None]
    assert replace(CASES[0], dtype=torch.bfloat16).least(LIMITS) == 2 * 2 * numbers / 1e9


def test_inputs_have_a_tail_where_they_are_decoded():
    token, long = Inputs.of(CASES[2]), Inputs.of(CASES[0])
    assert token.tail is not None
    assert token.tail.shape == (3, convolution.WIDTH - 1, 5)
    assert long.tail is None
    attempt = prepare(Torch(), CASES[2], token)
    assert torch.equal(attempt.results(attempt.run())["tail"], torch.cat([token.tail[:, 1:], token.x], 1))


def test_the_quick_program_has_a_table_of_it_for_every_thread_count():
    said: list[str] = []
    outcome = run(replace(QUICK, rules=(), threads=(1, 2), rounds=1, seconds=0.0), said.append)
    assert said[0] == "short convolution, 1x256x64, forward"
    assert len(said) == 5
    one, two = grid.convolutions(outcome)
    assert (one.title, two.title) == ("Short convolution, 1 thread", "Short convolution, 2 threads")
    assert list(one.head) == ["mode", "", "1x256x64", "2x512x64", "1x1x64"]
    names = [*INSTALLED, "torch conv1d", "fastest peer / ours"]
    modes = [grid.TITLES[mode].lower() for mode in MODES]
    assert [line[0] for line in one.rows if line[0]] == modes
    assert [line[1] for line in one.rows] == names * 3
    assert all((line[4] == grid.NONE) == (place < 2 * len(names)) for place, line in enumerate(one.rows))
    assert {row["mode"] for row in report.figures(outcome, "command")["convolutions"]} == set(MODES)
    assert "## Short convolution, 2 threads" in report.page(outcome, "command", None)


def test_a_wrong_one_is_loud_in_the_table(monkeypatch):
    rows = raced(monkeypatch, CASES[0], Wrong(), Torch())
    outcome = Outcome(QUICK, [LIMITS], [], [], rows)
    (table,) = grid.convolutions(outcome)
    assert list(table.rows[0]) == ["forward", "wrong", "WRONG"]
    assert grid.notes(outcome)[0].startswith("wrong: wrong: out is off by")
    assert grid.notes(outcome)[0].endswith("(short convolution forward 2x9x5)")
    assert list(grid.worst_errors(outcome).head) == ["", "forward"]
