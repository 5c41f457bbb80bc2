"""Nobody is timed whose result is wrong, and everybody meets the same inputs."""

from dataclasses import replace

import pytest
import torch

from rebracket.bench import clock, form, limits, race
from rebracket.bench.cases import LINEAR_RULES, RULES, Case, Shape
from rebracket.bench.clock import Pace
from rebracket.bench.form import Form, Lane
from rebracket.bench.limits import Limits
from rebracket.bench.race import grounds
from tests.bench.planted import FAULTS, Failing, Planted, Refusing

LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
LONG, TOKEN = Shape(2, 6, 3, 4), Shape(2, 1, 3, 4)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 16)
    monkeypatch.setattr(clock, "SAMPLE", 0.0)


def run(case, *entrants, known=None):
    lanes = [Lane(entrant, case) for entrant in entrants]
    return race.race(lanes, grounds(lanes), LIMITS, Pace(3, 0), known or Form(longest=60))


def cases():
    over_time = [Case(rule, LONG, mode) for rule in LINEAR_RULES for mode in ("forward", "train")]
    return over_time + [Case(rule, TOKEN, "decode") for rule in LINEAR_RULES]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.rule.name} {case.mode}")
def test_what_is_right_is_timed(case):
    entrant = Planted("right")
    row, stick = run(case, entrant)
    assert row.status == "timed"
    assert row.timing is not None
    assert len(row.timing.samples) == 3
    assert row.error is not None
    assert row.error < 1e-5
    assert stick.timing is not None
    assert row.least == limits.least(case, LIMITS, stick.timing)
    assert row.fraction == limits.least(case, LIMITS, stick.timing) / row.timing.median
    assert entrant.calls == 2 + 1 + 3  # to load, to check, to see how long it takes, and the samples
    assert (stick.entrant, stick.status) == (limits.yardstick(case)[0], "yardstick")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("case", cases()[-1::-5], ids=lambda case: f"{case.rule.name} {case.mode}")
def test_what_is_wrong_is_not_timed_and_shown(case, fault):
    wrong, right = Planted("wrong", fault), Planted("right")
    found, beside, _ = run(case, wrong, right)
    assert found.status == "wrong"
    assert "is off by" in found.reason
    assert found.timing is None
    assert wrong.calls == 2
    assert beside.status == "timed"


def test_who_does_not_cover_a_case_or_fails_says_why_and_the_others_run_on():
    refused, failed, right, _ = run(Case(RULES["kda"], LONG, "forward"), Refusing(), Failing(), Planted("right"))
    assert (refused.status, refused.reason) == ("refused", "not today")
    assert (failed.status, failed.reason) == ("failed", "RuntimeError: out of order")
    assert right.status == "timed"
    assert refused.error is failed.error is None


def test_who_would_take_too_long_does_not_run(monkeypatch):
    monkeypatch.setattr(race, "Truth", None)  # nor is there a truth to be had, which may take as long
    known, entrant, case = Form(longest=10), Planted("slow"), Case(RULES["kda"], LONG, "forward")
    known.note(Lane(entrant, Case(RULES["kda"], Shape(1, 1, 1, 4), "forward")), 5.0, 0)
    row, _ = run(case, entrant, known=known)
    assert (row.status, row.reason) == ("large", "about 180 s a call, over 10 s")
    assert entrant.calls == 0


@pytest.mark.parametrize(
    ("seconds", "samples"),
    [((0.4, 0.1), (3, 3)), ((0.6, 0.3), (3, 3)), ((0.6, 0.1), (1, 3)), ((1.9, 1.8), (3, 3)), ((2.1, 2.0), (1, 1))],
)
def test_one_call_is_enough_of_who_is_slow_and_far_behind(monkeypatch, seconds, samples):
    took = iter(seconds)
    made = race.first_call
    monkeypatch.setattr(race, "first_call", lambda call: replace(made(call), seconds=next(took)))
    rows = run(Case(RULES["kda"], LONG, "forward"), Planted("a"), Planted("b"))[:2]
    assert tuple(len(row.timing.samples) for row in rows if row.timing is not None) == samples
    assert all(row.status == "timed" for row in rows)
    assert [row.timing.median == told for row, told in zip(rows, seconds, strict=True) if row.timing] == [
        count == 1 for count in samples
    ]


def test_what_was_timed_is_known_afterwards(monkeypatch):
    monkeypatch.setattr(form, "available_nbytes", lambda: None)
    known, entrant = Form(longest=1e-9), Planted("known")
    run(Case(RULES["kda"], LONG, "forward"), entrant, known=known)
    larger = Lane(entrant, Case(RULES["kda"], Shape(2, 12, 3, 4), "forward"))
    assert known.knows(larger)
    assert "over 1e-09 s" in (known.objection(larger) or "")


def test_threads_are_set_and_told():
    seen = []
    entrant = Planted("threads", lambda results: seen.append(torch.get_num_threads()) or results)
    lanes = [Lane(entrant, Case(RULES["kda"], LONG, "forward"))]
    two = Limits(threads=2, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
    row, _ = race.race(lanes, grounds(lanes), two, Pace(1, 0), Form(60))
    assert seen == [2]
    assert {threads for _, threads in entrant.prepared} == {row.threads} == {2}


def test_lanes_of_several_cases_meet_in_one_race():
    short, long = Case(RULES["gla"], Shape(1, 3, 2, 4), "forward"), Case(RULES["gla"], Shape(1, 5, 2, 4), "forward")
    lanes = [Lane(Planted("a"), short), Lane(Planted("b"), long)]
    rows = race.race(lanes, grounds(lanes), LIMITS, Pace(1, 0), Form(60))
    assert [(row.entrant, row.case, row.status) for row in rows[:2]] == [("a", short, "timed"), ("b", long, "timed")]
