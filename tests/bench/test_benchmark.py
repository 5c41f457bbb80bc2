"""Nothing is timed whose result is wrong, all compute from the same inputs, and what takes too long does not run."""

from dataclasses import replace

import pytest
import torch

from rebracket.bench import benchmark, limits
from rebracket.bench.benchmark import Estimates, Run, compare, functions_called
from rebracket.bench.case import Implementation, Mode
from rebracket.bench.cases import by_name
from rebracket.bench.clock import Budget
from rebracket.bench.limits import Limits
from rebracket.bench.peers.torch_conv1d import TorchConv1d
from tests.bench.planted import FAULTS, Failing, Planted, Refusing, case_of, every_case, measure_little

LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
KDA = case_of("kda", "forward")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    measure_little(monkeypatch)


def run(case, *implementations, known=None, bound=LIMITS):
    return compare([Run(x, case) for x in implementations], [bound], Budget(3, 0), known or Estimates(longest=60))


@pytest.mark.parametrize("case", every_case(), ids=str)
def test_what_is_right_is_timed(case):
    right = Planted("right")
    row, stick = run(case, right)
    assert row.status == "timed", row.reason
    assert row.timing is not None
    assert len(row.timing.samples) == 3
    assert row.error is not None
    assert row.error < 1e-5
    assert stick.timing is not None
    assert row.least == limits.least(case, LIMITS, stick.timing)
    assert row.fraction == limits.least(case, LIMITS, stick.timing) / row.timing.median
    assert right.calls == 2 + 1 + 1 + 3  # to load, to check, to count functions, for how long it takes, and the samples
    assert (stick.implementation, stick.status) == (limits.yardstick(case)[0], "yardstick")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("case", every_case()[::3], ids=str)
def test_what_is_wrong_is_not_timed_and_shown(case, fault):
    wrong, right = Planted("wrong", fault), Planted("right")
    found, beside, _ = run(case, wrong, right)
    assert found.status == "wrong"
    assert "is off by" in found.reason
    assert found.timing is None
    assert wrong.calls == 2  # to load, and to check
    assert beside.status == "timed"


@pytest.mark.parametrize("mode", ["train", "decode"])
def test_what_is_wrong_is_named(mode):
    def halved(results):
        return {name: x / 2 if name.startswith(("grad filters", "tail")) else x for name, x in results.items()}

    wrong, right, _ = run(case_of("convolution", mode), Planted("wrong", halved), TorchConv1d())
    assert wrong.reason.startswith("grad filters is off by" if mode == "train" else "tail is off by")
    assert right.status == "timed"


@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_is_right(mode, dtype):
    row, _ = run(case_of("convolution", mode, dtype), TorchConv1d())
    assert row.status == "timed"
    assert row.error is not None
    assert row.error < (1e-6 if dtype == torch.float32 else 1e-2)


def test_what_does_not_cover_a_case_or_fails_says_why_and_the_others_run_on():
    refused, failed, right, _ = run(KDA, Refusing(), Failing(), Planted("right"))
    assert (refused.status, refused.reason) == ("refused", "not today")
    assert (failed.status, failed.reason) == ("failed", "RuntimeError: out of order")
    assert right.status == "timed"
    assert refused.error is failed.error is None


def test_what_would_take_too_long_does_not_run(monkeypatch):
    def refuse(self):
        raise AssertionError("the exact results may take as long")

    monkeypatch.setattr(type(KDA), "exact", refuse)
    known, slow = Estimates(longest=10), Planted("slow")
    known.note(Run(slow, replace(KDA, shape=(1, 1, 1, 4))), 5.0, 0)
    row, _ = run(KDA, slow, known=known)
    assert (row.status, row.reason) == ("large", "about 180 s a call, over 10 s")
    assert slow.calls == 0


@pytest.mark.parametrize(
    ("seconds", "samples"),
    [((0.4, 0.1), (3, 3)), ((0.6, 0.3), (3, 3)), ((0.6, 0.1), (1, 3)), ((1.9, 1.8), (3, 3)), ((2.1, 2.0), (1, 1))],
)
def test_one_call_is_enough_of_what_is_slow_and_far_behind(monkeypatch, seconds, samples):
    took, made = iter(seconds), benchmark.first_call
    monkeypatch.setattr(benchmark, "first_call", lambda call: replace(made(call), seconds=9.0, cpu_seconds=next(took)))
    rows = run(KDA, Planted("a"), Planted("b"))[:2]
    assert tuple(len(row.timing.samples) for row in rows if row.timing is not None) == samples
    assert all(row.status == "timed" for row in rows)
    assert [row.timing.median == told for row, told in zip(rows, seconds, strict=True) if row.timing] == [
        count == 1 for count in samples
    ]


@pytest.mark.parametrize("name", ["kda", "convolution"])
def test_what_was_timed_is_known_afterwards(monkeypatch, name):
    monkeypatch.setattr(benchmark, "available_nbytes", lambda: None)
    known, planted, case = Estimates(longest=1e-9), Planted("known"), case_of(name, "forward")
    run(case, planted, known=known)
    larger = replace(case, shape=(case.shape[0], 2 * case.shape[1], *case.shape[2:]))
    assert "over 1e-09 s" in (known.objection(Run(planted, larger)) or "")
    calls = planted.calls
    assert run(larger, planted, known=known)[0].status == "large"
    assert planted.calls == calls
    assert run(case_of(name, "train"), planted, known=known)[0].status == "timed"  # nothing is known of training


def test_threads_are_set_and_told():
    seen = []
    planted = Planted("threads", lambda results: seen.append(torch.get_num_threads()) or results)
    row, _ = run(KDA, planted, bound=replace(LIMITS, threads=2))
    assert seen == [2]
    assert {threads for _, threads in planted.prepared} == {row.threads} == {2}


def test_every_thread_count_has_its_rows():
    bounds = [LIMITS, replace(LIMITS, threads=2)]
    rows = compare([Run(Planted("a"), KDA), Run(Refusing(), KDA)], bounds, Budget(1, 0), Estimates(60))
    assert [(row.implementation, row.threads) for row in rows] == [
        (name, threads) for threads in (1, 2) for name in ("a", "refusing", limits.PRODUCT)
    ]


def test_runs_of_several_cases_are_compared():
    short, long = (replace(KDA, shape=(1, T, 2, 4)) for T in (3, 5))
    rows = compare([Run(Planted("a"), short), Run(Planted("b"), long)], [LIMITS], Budget(1, 0), Estimates(60))
    assert [(x.implementation, x.case, x.status) for x in rows[:2]] == [("a", short, "timed"), ("b", long, "timed")]


def test_functions_called_are_those_of_python_and_the_builtin_ones():
    def called(x):
        return abs(x)

    assert functions_called(lambda: [called(x) for x in (1, 2, 3)]) in (7, 8)  # a comprehension may be a function
    (row, _), (slow, _) = run(KDA, Planted("right")), run(KDA, Refusing())
    assert row.functions is not None
    assert row.functions > 50
    assert slow.functions is None


PLANTED = Planted("planted")


def planted(
    shape: tuple[int, ...], name: str = "kda", mode: Mode = "forward", implementation: Implementation = PLANTED
) -> Run:
    return Run(implementation, by_name()[name](name, shape, mode))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(benchmark, "available_nbytes", lambda: 100 << 30)
    found = Estimates(longest=10)
    found.note(planted((1, 1000, 2, 8)), 1.0, 1 << 30)
    return found


@pytest.mark.parametrize("shape", [(1, 9000, 2, 8), (3, 1000, 6, 8), (1, 1000, 2, 16), (1, 2000, 8, 8)])
def test_up_to_the_limit_nothing_is_said(known, shape):
    assert known.knows(planted(shape))
    assert known.objection(planted(shape)) is None


@pytest.mark.parametrize(("shape", "seconds"), [((1, 11000, 2, 8), 11), ((4, 1000, 6, 8), 12), ((1, 1000, 2, 32), 16)])
def test_what_would_take_longer_is_told(known, shape, seconds):
    assert known.objection(planted(shape)) == f"about {seconds} s a call, over 10 s"


def test_the_longest_of_as_many_channels_tells_most(known):
    known.note(planted((1, 100, 2, 8)), 5.0, 0)
    known.note(planted((1, 1000, 2, 16)), 9.0, 0)
    assert known.objection(planted((1, 9000, 2, 8))) is None
    assert known.objection(planted((1, 1000, 3, 16))) == "about 14 s a call, over 10 s"
    known.note(planted((1, 2000, 2, 8)), 2.5, 0)
    assert known.objection(planted((1, 9000, 2, 8))) == "about 11 s a call, over 10 s"


def test_the_time_of_a_convolution_grows_with_its_numbers():
    known = Estimates(longest=10)
    known.note(planted((1, 1000, 8), "convolution"), 1.0, 0)
    assert known.objection(planted((2, 1000, 40), "convolution")) is None
    assert known.objection(planted((2, 3000, 16), "convolution")) == "about 12 s a call, over 10 s"


def test_of_another_kind_nothing_is_known(known):
    for other in (planted((1, 11000, 2, 8), "gla"), planted((1, 11000, 2, 8), mode="train")):
        assert not known.knows(other)
        assert known.objection(other) is None
    assert not known.knows(planted((1, 11000, 2, 8), implementation=Planted("another")))


def test_the_square_of_softmax_is_reckoned_with(known):
    known.note(planted((1, 1000, 2, 8), "softmax"), 1.0, 0)
    assert known.objection(planted((1, 3000, 2, 8), "softmax")) is None
    assert known.objection(planted((1, 4000, 2, 8), "softmax")) == "about 16 s a call, over 10 s"


def test_memory_that_is_not_there_is_not_asked_for(known, monkeypatch):
    assert known.objection(planted((1, 9000, 2, 8))) is None
    monkeypatch.setattr(benchmark, "available_nbytes", lambda: 10 << 30)
    assert known.objection(planted((1, 5000, 2, 8))) is None
    assert known.objection(planted((1, 9000, 2, 8))) == "about 10 GB a call, and 11 GB are left"
    monkeypatch.setattr(benchmark, "available_nbytes", lambda: None)
    assert known.objection(planted((1, 9000, 2, 8))) is None
