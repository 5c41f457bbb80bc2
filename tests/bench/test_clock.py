"""Samples are taken in turns, as many as fit, and what the clock says is what passed."""

import time

import pytest
import torch

from rebracket.bench import clock
from rebracket.bench.clock import Crowd, Pace, Timing, laps, threads


@pytest.fixture
def slow_looking(monkeypatch):
    """A clock on which every look at it takes a second, so that nothing is repeated within a sample."""
    now = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))


def test_turns(slow_looking):
    said: list[str] = []
    calls = {name: lambda name=name: said.append(name) for name in "abc"}
    found = laps(calls, Pace(rounds=2, seconds=1e9))
    assert "".join(said) == "abc" + "abc" * 2
    assert {name: timing.samples for name, timing in found.timings.items()} == dict.fromkeys("abc", (1.0, 1.0))


@pytest.mark.parametrize(
    ("rounds", "seconds", "fewest", "most"),
    [(5, 1e9, 5, 5), (5, 0, clock.FEWEST, clock.FEWEST), (2, 0, 2, 2), (90, 60, clock.FEWEST + 1, 30)],
)
def test_as_many_rounds_as_fit_and_a_few_at_least(slow_looking, rounds, seconds, fewest, most):
    found = laps({"only": lambda: None}, Pace(rounds, seconds))
    assert fewest <= len(found.timings["only"].samples) <= most


def test_a_short_call_is_repeated_within_a_sample(monkeypatch):
    now, count = [0.0], [0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call():
        now[0] += 0.0007
        count[0] += 1

    found = laps({"call": call}, Pace(rounds=3, seconds=0))
    assert found.timings["call"].samples == pytest.approx([0.0007] * 3)
    assert count[0] == 1 + 2 + 4 + 8 + 16 + 3 * 16  # 16 calls are over a hundredth of a second


def test_a_long_call_is_not_repeated(slow_looking):
    said: list[str] = []
    found = laps({"long": lambda: said.append("")}, Pace(rounds=3, seconds=1e9), {"long": clock.LONG})
    assert len(said) == len(found.timings["long"].samples) == 3


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
    crowd = Crowd()
    with crowd.watching():
        pass
    assert crowd.others == pytest.approx(1.5)


def test_without_notes_nobody_knows(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "STAT", tmp_path / "none")
    assert laps({"only": lambda: None}, Pace(1, 0)).others is None


@pytest.mark.parametrize(("busy", "looks"), [([0.9, 0.5, 0.1, 0.1], 3), ([0.0], 1)])
def test_it_waits_until_others_leave_the_cores_alone(monkeypatch, busy, looks):
    said = iter(busy)
    taken = []

    class Watch:
        @property
        def others(self):
            return taken[-1]

        def watching(self):
            taken.append(next(said))
            return threads(torch.get_num_threads())

    monkeypatch.setattr(clock, "Crowd", Watch)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    clock.wait_for_quiet(60)
    assert len(taken) == looks


def test_it_waits_no_longer_than_it_was_told(monkeypatch):
    monkeypatch.setattr(Crowd, "others", 2.0)
    begun = time.perf_counter()
    clock.wait_for_quiet(0.25)
    assert 0.2 < time.perf_counter() - begun < 5
    clock.wait_for_quiet(0)
