"""A program is every rule at every shape in every mode that they fit, within its time."""

from dataclasses import replace

import pytest

from rebracket.bench import clock, limits, peers, program
from rebracket.bench.cases import LINEAR_RULES, RULES, SOFTMAX, Shape
from rebracket.bench.program import FULL, QUICK, Budget, run
from tests.bench.planted import Planted, slightly_off

LONG, TOKEN = Shape(2, 6, 3, 4), Shape(2, 1, 3, 4)
RULE_AND_SOFTMAX = [RULES["kda"], SOFTMAX]
SMALL = replace(
    FULL, rules=RULE_AND_SOFTMAX, shapes=[LONG, TOKEN], sweep=(2, 4), convolutions=(), rounds=1, seconds=0.0
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 16)
    monkeypatch.setattr(limits, "LARGE", 1 << 10)
    monkeypatch.setattr(clock, "SAMPLE", 0.0)


def names(lanes):
    return [lane.entrant.name for lane in lanes]


def test_decode_is_for_one_token_and_the_rest_for_more():
    met = [(str(lanes[0].case.shape), lanes[0].case.mode, lanes[0].case.rule.name) for lanes in SMALL.meets()]
    assert met == [
        ("2x6x3x4", "forward", "kda"),
        ("2x6x3x4", "train", "kda"),
        ("2x1x3x4", "decode", "kda"),
        ("2x6x3x4", "forward", "softmax"),
        ("2x6x3x4", "train", "softmax"),
    ]


def test_backends_run_rules_and_peers_only_when_asked_for():
    lanes, softmax = next(SMALL.meets()), list(SMALL.meets())[-1]
    assert "reference" in names(lanes)
    assert names(softmax) == ["softmax_attention"]
    assert not any(lane.entrant.is_peer for lane in lanes)
    with_peers = next(replace(SMALL, peers=True).meets())
    assert names(with_peers)[: len(lanes)] == names(lanes)
    assert [lane.entrant for lane in with_peers[len(lanes) :]] == list(peers.found())


def test_the_sweep_races_every_rule_with_softmax_at_the_same_length():
    swept = list(SMALL.sweeps())
    assert [(lanes[0].case.shape.T, lanes[0].case.mode) for lanes in swept] == [
        (2, "forward"), (2, "train"), (4, "forward"), (4, "train"),
    ]  # fmt: skip
    assert all(names(lanes) == ["auto", "softmax_attention"] for lanes in swept)
    assert all({str(lane.case.shape) for lane in lanes} == {f"1x{lanes[0].case.shape.T}x8x64"} for lanes in swept)


def test_nothing_to_race_is_an_error():
    with pytest.raises(ValueError, match="nothing to race"):
        replace(SMALL, modes=["decode"], shapes=[LONG])


@pytest.mark.parametrize("known", [FULL, QUICK])
def test_the_programs_have_everything_in_them(known):
    met = [lanes[0].case for lanes in known.meets()]
    assert {case.rule for case in met} == {*LINEAR_RULES, SOFTMAX}
    assert {case.mode for case in met} == {"forward", "train", "decode"}
    assert known.sweep
    assert {case.mode for case in known.convolved()} == {"forward", "train", "decode"}


def test_it_runs_and_says_what(monkeypatch):
    right, wrong = Planted("right"), Planted("wrong", slightly_off)
    monkeypatch.setattr(peers, "found", lambda: (right, wrong))
    said: list[str] = []
    outcome = run(replace(SMALL, peers=True, threads=(1, 2)), said.append)
    assert [bound.threads for bound in outcome.limits] == [1, 2]
    assert len(said) == len(list(SMALL.meets())) + len(list(SMALL.sweeps()))
    assert said[0] == "KDA, 2x6x3x4, forward"
    assert said[-1] == "all, 1x4x8x64, train"
    of = {(row.entrant, row.case.mode, row.threads): row.status for row in outcome.rows if row.case.rule.name == "kda"}
    for mode in FULL.modes:
        for count in (1, 2):
            assert of["right", mode, count] == of["reference", mode, count] == "timed"
            assert of["wrong", mode, count] == "wrong"
    assert {row.status for row in outcome.sweep} == {"timed", "yardstick"}
    assert {threads for _, threads in right.prepared} == {1, 2}


def test_the_time_that_is_left_is_shared_among_the_races_that_are_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(program.time, "perf_counter", lambda: now[0])
    budget = Budget(replace(SMALL, seconds=100.0, quiet=7.0))  # 9 races, and the machine before them
    first = budget.pace()
    assert (first.rounds, first.seconds, first.quiet) == (1, 5.0, 7.0)
    now[0] = 55.0
    assert budget.pace().seconds == 2.5
    now[0] = 99.0
    assert budget.pace().seconds == pytest.approx(1 / 16)
    now[0] = 200.0
    assert budget.pace().seconds == 0.0
