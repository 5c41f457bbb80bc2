"""How a long call is cut into pieces, and what is recomputed, changes no bit."""

import pytest
import torch

from rebracket.backends.reference import chunked
from rebracket.testing.budgets import check_all, check_equal
from rebracket.testing.law import Row, loss, results, values
from rebracket.testing.memory import peak_tensor_nbytes
from rebracket.testing.operators.recurrence import Case, Shape, draw, few, sample

ROWS = [Row(case, "chunk", chunk) for shape in ("plain", "packed") for case in few(shape=shape) for chunk in (1, 5)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_pieces_of_a_few_steps_are_the_whole(row: Row, monkeypatch: pytest.MonkeyPatch):
    wanted = results(lambda s: s.run(row), draw(row.case))
    monkeypatch.setattr(chunked, "STEPS", 3)
    check_all(results(lambda s: s.run(row), draw(row.case)), wanted, torch.float64)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_recomputing_changes_no_bit(row: Row, monkeypatch: pytest.MonkeyPatch):
    found = []
    for small in (0, 1000):
        monkeypatch.setattr(chunked, "SMALL_CHUNK", small)
        found.append(results(lambda s: s.run(row), draw(row.case)))
    for name, x in found[0].items():
        check_equal(name, found[1][name], x)


def test_recomputing_saves_the_states_of_small_chunks(monkeypatch: pytest.MonkeyPatch):
    peaks = []
    for small in (0, 16):
        monkeypatch.setattr(chunked, "SMALL_CHUNK", small)
        s = sample(Case("delta", "token", dtype=torch.float32), Shape(1, 256, 1, 1, 24, 30)).leaves()
        row = Row(Case(), "recurrent", None)
        peaks.append(peak_tensor_nbytes(lambda s=s, row=row: loss(values(s.run(row))).backward()))
    assert peaks[1] < peaks[0] / 2


@pytest.mark.parametrize("write", ["additive", "delta"])
def test_a_key_in_bfloat16_has_its_gradient_rounded_once(write: str):
    """Every entry is within half a unit of the float32 one: a key that is also read back adds its parts up before."""
    case = Case(write, "none", dtype=torch.bfloat16)
    row = Row(case)
    short, exact = (results(lambda s: s.run(row), x)["grad k"] for x in (draw(case), draw(case).to(torch.float32)))
    assert bool(((short.float() - exact).abs() <= 1.01 * 2.0**-8 * exact.abs() + 1e-5).all())
