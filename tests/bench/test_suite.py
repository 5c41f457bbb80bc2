"""A suite is every case at every shape in every mode that they fit, within its time."""

from dataclasses import replace

import pytest

from rebracket.bench import cases, peers, suite
from rebracket.bench.cases.linear_attention import RULES
from rebracket.bench.suite import FULL, QUICK, run
from tests.bench.planted import Planted, measure_little, slightly_off

LONG, TOKEN = (2, 6, 3, 4), (2, 1, 3, 4)
SMALL = replace(FULL, rules=["kda", "softmax"], shapes=[LONG, TOKEN], sweep=(2, 4), rounds=1, seconds=0.0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    measure_little(monkeypatch)


def names(runs):
    return [run.implementation.name for run in runs]


def test_decode_is_for_one_token_and_the_rest_for_more():
    assert [(case.name, case.size, case.mode) for case in SMALL.cases()] == [
        ("kda", "2x6x3x4", "forward"),
        ("kda", "2x6x3x4", "train"),
        ("kda", "2x1x3x4", "decode"),
        ("softmax", "2x6x3x4", "forward"),
        ("softmax", "2x6x3x4", "train"),
    ]


def test_shapes_are_for_the_operators_that_have_as_many_numbers():
    found = replace(
        SMALL, rules=[*RULES, "softmax", "convolution"], shapes=[LONG, (2, 6, 5)], modes=["forward"], sweep=()
    )
    assert {(case.name, case.size) for case in found.cases()} == {
        *((name, "2x6x3x4") for name in (*RULES, "softmax")),
        ("convolution", "2x6x5"),
    }


def test_backends_run_everything_and_peers_only_what_they_know_when_asked_for():
    by_case = {runs[0].case.name: names(runs) for runs in replace(SMALL, rules=None, shapes=None).benchmarks()}
    asked = {
        runs[0].case.name: names(runs) for runs in replace(SMALL, rules=None, shapes=None, peers=True).benchmarks()
    }
    assert "reference" in by_case["kda"]
    assert "torch conv1d" not in by_case["kda"]
    assert by_case["softmax"] == asked["softmax"] == ["softmax_attention"]
    assert by_case["convolution"] == asked["convolution"]
    assert by_case["convolution"][-1] == "torch conv1d"
    others = [peer.name for peer in peers.found() if peer.is_optional]
    assert asked["kda"] == [*by_case["kda"], *others]


def test_the_sweep_compares_every_rule_with_softmax_at_the_same_length():
    swept = list(SMALL.sweeps())
    assert [(runs[0].case.shape, runs[0].case.mode) for runs in swept] == [
        ((1, T, 8, 64), mode) for T in (2, 4) for mode in ("forward", "train")
    ]
    assert all(names(runs) == ["auto", "softmax_attention"] for runs in swept)
    assert all({run.case.shape for run in runs} == {runs[0].case.shape} for runs in swept)
    assert not list(replace(QUICK, rules=["convolution"]).sweeps())


def test_nothing_to_benchmark_is_an_error():
    with pytest.raises(ValueError, match="nothing to benchmark"):
        replace(SMALL, modes=["decode"], shapes=[LONG])


def test_an_unknown_rule_is_an_error_with_the_nearest():
    with pytest.raises(ValueError, match="rule 'kdaa' is unknown, did you mean 'kda'"):
        replace(SMALL, rules=["linear", "kdaa"])


@pytest.mark.parametrize("known", [FULL, QUICK])
def test_the_suites_have_everything_in_them(known):
    found = list(known.cases())
    assert {(case.name, case.mode) for case in found} == {
        (name, mode) for name, operator in cases.by_name().items() for mode in operator.modes
    }
    assert known.sweep


def test_it_runs_and_reports_how_far_it_is(monkeypatch):
    right, wrong = Planted("right"), Planted("wrong", slightly_off)
    monkeypatch.setattr(peers, "found", lambda: (right, wrong))
    said: list[tuple[int, int, str]] = []
    result = run(replace(SMALL, peers=True, threads=(1, 2)), lambda *told: said.append(told))
    assert [bound.threads for bound in result.limits] == [1, 2]
    assert [done for done, _, _ in said] == list(range(9))
    assert {total for _, total, _ in said} == {9}
    assert said[0][2] == "KDA, 2x6x3x4, forward"
    assert said[-1][2] == "all, 1x4x8x64, train"
    of = {(row.implementation, row.case.mode, row.threads): row.status for row in result.rows if row.case.name == "kda"}
    for mode in FULL.modes:
        for count in (1, 2):
            assert of["right", mode, count] == of["reference", mode, count] == "timed"
            assert of["wrong", mode, count] == "wrong"
    assert {row.status for row in result.sweep} == {"timed", "yardstick"}
    assert {threads for _, threads in right.prepared} == {1, 2}


def test_the_time_is_shared_by_the_machine_and_all_benchmarks(monkeypatch):
    made = []
    monkeypatch.setattr(suite, "Budget", lambda *given: made.append(given) or suite_budget(*given))
    run(replace(SMALL, modes=["decode"], threads=(1, 2), seconds=0.5, quiet=0.0), lambda *_: None)
    assert made == [(1, 0.5, 0.0, 4)]  # the machine and one benchmark, on two thread counts


suite_budget = suite.Budget
