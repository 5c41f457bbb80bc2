"""Samples are taken in turns, as many as fit, and what the clock says is what passed."""

import platform
import subprocess
import sys
import time

import pytest
import torch

from rebracket.bench import clock
from rebracket.bench.clock import Budget, OtherProcesses, Timing, measure, threads


@pytest.fixture
def slow_looking(monkeypatch):
    """A clock on which every look at it takes a second, so that nothing is repeated within a sample."""
    now = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))


def test_turns(slow_looking):
    said: list[str] = []
    calls = {name: lambda name=name: said.append(name) for name in "abc"}
    found, _ = measure(calls, Budget(rounds=2, seconds=1e9))
    assert "".join(said) == "abc" + "abc" * 2
    assert {name: timing.wall for name, timing in found.items()} == dict.fromkeys("abc", (1.0, 1.0))


@pytest.mark.parametrize(
    ("rounds", "seconds", "fewest", "most"),
    [(5, 1e9, 5, 5), (5, 0, clock.FEWEST, clock.FEWEST), (2, 0, 2, 2), (90, 120, clock.FEWEST + 1, 30)],
)
def test_as_many_rounds_as_fit_and_a_few_at_least(slow_looking, rounds, seconds, fewest, most):
    found, _ = measure({"only": lambda: None}, Budget(rounds, seconds))
    assert fewest <= len(found["only"].samples) <= most


@pytest.mark.parametrize(("share", "repeats"), [(1.0, 16), (0.5, 32), (0.01, 64)])
def test_a_short_call_is_repeated_within_a_sample(monkeypatch, share, repeats):
    """Of whose time a share is its own."""
    now, count = [0.0], [0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: share * now[0])

    def call():
        now[0] += 0.0007
        count[0] += 1

    found, _ = measure({"call": call}, Budget(rounds=3, seconds=0))
    assert found["call"].wall == pytest.approx([0.0007] * 3)
    # 16 calls are over a hundredth of a second, and 64 over four hundredths, after which it waits no longer.
    assert count[0] == 2 * repeats - 1 + 3 * repeats


def test_a_long_call_is_not_repeated(slow_looking):
    said: list[str] = []
    found, _ = measure({"long": lambda: said.append("")}, Budget(rounds=3, seconds=1e9), {"long": clock.LONG})
    assert len(said) == len(found["long"].samples) == 3


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.25), (2, 1.0)])
def test_on_one_thread_the_time_is_cpu_seconds_and_on_more_wall_time(monkeypatch, slow_looking, count, seconds):
    used = iter(range(10**6))
    monkeypatch.setattr(time, "process_time", lambda: next(used) / 4)
    with threads(count):
        found, _ = measure({"only": lambda: None}, Budget(rounds=2, seconds=0))
    assert found["only"].samples == (seconds, seconds)
    assert found["only"].wall == (1.0, 1.0)


def test_the_time_that_is_left_is_shared_among_the_measurements_that_are_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    budget = Budget(1, 100.0, measurements=10)
    assert budget.share() == 5.0
    now[0] = 55.0
    assert budget.share() == 2.5
    now[0] = 99.0
    assert budget.share() == pytest.approx(1 / 16)
    now[0] = 200.0
    assert budget.share() == 0.0


def test_quartiles():
    timing = Timing((8.0, 1.0, 2.0, 4.0))
    assert (timing.low, timing.median, timing.high) == (1.75, 3.0, 5.0)
    assert timing.spread == pytest.approx(3.25 / 2 / 3)
    alone = Timing((2.5,))
    assert (alone.low, alone.median, alone.high, alone.spread) == (2.5, 2.5, 2.5, 0)


def test_threads_are_torchs_and_only_meanwhile():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with pytest.raises(KeyError), threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def stat(monkeypatch, tmp_path, *lines):
    """A machine whose notes are these, one at each look, while this process does nothing and a second passes."""
    path, looks = tmp_path / "stat", iter(lines)
    path.write_text("")
    monkeypatch.setattr(clock, "STAT", path)
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    seconds = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(clock.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(type(path), "read_text", lambda self: next(looks) if self.name == "stat" else "")


def test_others_are_what_is_busy_and_not_ours(monkeypatch, tmp_path):
    stat(monkeypatch, tmp_path, "cpu 100 0 50 999 9 0 0 0 0 0\n", "cpu 200 10 60 1500 9 20 8 2 0 0\ncpu0")
    others = OtherProcesses()
    with others.watched():
        pass
    assert others.cores == pytest.approx(1.5)


def test_without_notes_nobody_knows(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "STAT", tmp_path / "none")
    assert measure({"only": lambda: None}, Budget(1, 0))[1] is None


@pytest.mark.parametrize(("busy", "looks"), [([0.9, 0.5, 0.1, 0.1], 3), ([0.0], 1)])
def test_it_waits_until_others_leave_the_cores_alone(monkeypatch, busy, looks):
    said = iter(busy)
    taken = []

    class Watch:
        @property
        def cores(self):
            return taken[-1]

        def watched(self):
            taken.append(next(said))
            return threads(torch.get_num_threads())

    monkeypatch.setattr(clock, "OtherProcesses", Watch)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    clock.wait_for_quiet(60)
    assert len(taken) == looks


def test_it_waits_no_longer_than_it_was_told(monkeypatch):
    monkeypatch.setattr(OtherProcesses, "cores", 2.0)
    begun = time.perf_counter()
    clock.wait_for_quiet(0.25)
    assert 0.2 < time.perf_counter() - begun < 5
    clock.wait_for_quiet(0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of glibc is told")
def test_memory_that_was_freed_is_used_again():
    """In a process of its own, because it holds for the rest of one."""
    code = """
import resource, torch
from rebracket.bench.clock import keep_memory
keep_memory()
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    large, small = torch.ones(16 << 20), torch.ones(1 << 20)
    del small, large
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
assert faults[0] > 100 > 10 > faults[-1], faults
"""
    subprocess.run([sys.executable, "-c", code], check=True)
