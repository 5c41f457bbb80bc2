"""A new backend, decay or shape is one more row and no other edit."""

from typing import final

import pytest
import torch

from rebracket.backends.reference import BACKEND
from rebracket.ops.backend import INSTALLED, Backend, Implementation
from rebracket.ops.call import Recurrence
from rebracket.ops.state import Output
from rebracket.testing import agreement, gates, gradients, guarantees, keys
from rebracket.testing.laws import LAWS, broken
from rebracket.testing.rows import SOUND, Row
from rebracket.testing.samples import DECAYS, SHAPES, Case, Shape


@final
class Planted(Implementation[Recurrence]):
    """The reference with a fault in its long chunks; it covers no float16."""

    def covers(self, call: Recurrence) -> str | None:
        return "no float16" if call.q.dtype == torch.float16 else None

    def run(self, call: Recurrence) -> Output:
        out, state = BACKEND.run(BACKEND.settled(call))
        return Output(out * (1.001 if call.chunk == 16 else 1), state)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(INSTALLED, "planted", Backend("planted", -1, {**BACKEND.operators, Recurrence: Planted()}))
    return "planted"


def test_all_laws_are_registered_once():
    groups = (agreement, guarantees, gates, keys, gradients)
    assert len(LAWS) == sum(len(group.LAWS) for group in groups) > 30
    assert all(law.check.__doc__ for law in LAWS.values())


def test_a_new_backend_runs_under_the_laws_by_its_name(planted: str):
    found = broken(LAWS["modes_agree"], backend=planted)
    assert found is not None
    row, message = found
    assert (row.backend, row.mode, row.chunk) == ("planted", "chunk", 16)
    assert "out: error" in message


def test_a_backend_is_not_asked_for_what_it_refuses(planted: str):
    law = LAWS["modes_agree"]
    dtypes = {row.dtype for row in law.over(planted)}
    assert dtypes == {torch.float64, torch.float32, torch.bfloat16}
    assert {row.dtype for row in law.over("reference")} == dtypes | {torch.float16}


def test_a_new_decay_and_a_new_shape_are_under_the_laws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DECAYS, "extra", lambda draw: draw.uniform(-1.0, -0.5, "B,T,H"))
    monkeypatch.setitem(SHAPES, "tall", Shape(B=2, T=11, Hq=3, H=3, K=9, V=2))
    rows = [row for row in LAWS["modes_agree"].over("reference", "delta") if row.case.decay == "extra"]
    assert {row.case.shape for row in rows} == set(SHAPES)
    for row in rows:
        LAWS["modes_agree"].check(SOUND, row)


def test_rows_are_named_by_all_their_axes():
    row = Row(Case("delta", "token", "packed", torch.bfloat16), "chunk", 16)
    assert str(row) == "reference-chunk16-delta-token-packed-bfloat16"
    assert str(Row(Case("additive", normalize=True, bonus=True), "recurrent", None)).endswith("normalize-bonus-float64")
