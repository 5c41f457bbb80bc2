"""The process knows what it holds and what it held at most."""

import sys

import pytest
import torch

from rebracket.lm.resources import forget_peak, most_nbytes, noted, peak_nbytes, resident_nbytes

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
