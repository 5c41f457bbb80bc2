"""The process knows what it holds and what it held at most."""

import sys
import time

import pytest
import torch

from rebracket.base import resources
from rebracket.base.resources import (
    available_nbytes,
    first_call,
    forget_peak,
    most_nbytes,
    noted,
    peak_nbytes,
    resident_nbytes,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts what Linux notes")
MB = 1 << 20

SIZE = 1 << 26


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak can be forgotten on Linux only")
def test_a_peak_is_seen_and_forgotten():
    forget_peak()
    before = peak_nbytes()
    held = torch.ones(SIZE // 4)
    assert resident_nbytes() - before > 0.9 * SIZE
    del held
    assert peak_nbytes() - before > 0.9 * SIZE
    forget_peak()
    assert peak_nbytes() - before < 0.5 * SIZE


def test_elsewhere_the_peak_of_the_process_is_told():
    assert noted("VmNothing") == 0
    assert most_nbytes() == 0 or most_nbytes() > 1 << 20


@linux
@pytest.mark.parametrize("size", [32, 64])
def test_what_is_made_and_what_is_dropped_both_count(size):
    kept = first_call(lambda: torch.ones(size * MB // 4))
    assert isinstance(kept.made, torch.Tensor)
    assert 0.95 * size < kept.nbytes / MB < size + 8
    dropped = first_call(lambda: torch.ones(size * MB // 4).sum())
    assert 0.95 * size < dropped.nbytes / MB < size + 8


def test_a_call_that_waits_takes_wall_time_and_no_cpu_seconds():
    waited, computed = first_call(lambda: time.sleep(0.2)), first_call(lambda: sum(range(10**6)))
    assert waited.seconds > 0.2 > 5 * waited.cpu_seconds
    assert computed.cpu_seconds > 1e-3


@linux
def test_what_was_there_before_does_not_count():
    x = torch.ones(64 * MB // 4)
    assert first_call(lambda: x.add_(1)).nbytes < 8 * MB


@linux
def test_freed_memory_that_the_allocator_keeps_counts_again():
    pins = []
    for _ in range(2):
        pieces = first_call(lambda: [torch.ones(8 << 10) for _ in range(1024)])
        assert pieces.nbytes > 28 * MB
        pins.append(torch.ones(1 << 10))  # behind the pieces, so that these are freed but not the end of the heap
        del pieces


def test_what_is_left(monkeypatch, tmp_path):
    path = tmp_path / "meminfo"
    monkeypatch.setattr(resources, "MEMORY", path)
    assert available_nbytes() is None
    path.write_text("MemTotal:  100 kB\nMemAvailable:   12 kB\n")
    assert available_nbytes() == 12 * 1024
