"""A new backend, operator, decay or shape comes under the laws by being there."""

from dataclasses import replace
from typing import final

import pytest
import torch

from rebracket.backends.reference import BACKEND
from rebracket.ops.backend import INSTALLED, Backend, Implementation, PreparedStep, Tensors
from rebracket.ops.call import Recurrence, Step
from rebracket.ops.state import Output
from rebracket.testing.law import SOUND, Row, law
from rebracket.testing.laws import LAWS, broken
from rebracket.testing.operators.convolution import ConvolutionCase
from rebracket.testing.operators.recurrence import DECAYS, SHAPES, Case, Shape


@final
class Planted(Implementation[Recurrence]):
    """The reference with a fault in its long chunks; it covers no float16."""

    def covers(self, call: Recurrence) -> str | None:
        return "no float16" if call.q.dtype == torch.float16 else None

    def run(self, call: Recurrence) -> Output:
        out, state = BACKEND.run(BACKEND.settled(call))
        return Output(out * (1.001 if call.chunk == 16 else 1), state)


@final
class Stale(Implementation[Step]):
    """The reference with prepared steps that give the result of the step they were prepared with."""

    def covers(self, call: Step) -> str | None:
        return None

    def run(self, call: Step) -> Output:
        return BACKEND.run(call)

    def prepare(self, call: Step, given: Tensors) -> PreparedStep:
        token = replace(call.token, memory=call.token.initial().fork().memory)
        out = BACKEND.run(replace(call, token=token)).out.squeeze(1)
        return lambda values, state: Output(out, state)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(INSTALLED, "planted", Backend("planted", -1, {**BACKEND.operators, Recurrence: Planted()}))
    return "planted"


def test_all_laws_are_said_in_words_and_named_once():
    assert len(LAWS) > 40
    assert all(law.check.__doc__ and name == law.check.__name__ for name, law in LAWS.items())
    with pytest.raises(ValueError, match="two laws runs_repeat"):
        law(over=LAWS["runs_repeat"].rows)(LAWS["runs_repeat"].check)


def test_a_new_backend_runs_under_the_laws_by_its_name(planted: str):
    found = broken(LAWS["it_is_the_token_loop"], backend=planted, kind=Case)
    assert found is not None
    row, message = found
    assert (row.backend, row.mode, row.chunk) == ("planted", "chunk", 16)
    assert "out: error" in message


def test_a_backend_is_not_asked_for_what_it_refuses(planted: str):
    of_all = LAWS["it_is_the_token_loop"]
    dtypes = {row.dtype for row in of_all.over(planted, kind=Case)}
    assert dtypes == {torch.float64, torch.float32, torch.bfloat16}
    assert {row.dtype for row in of_all.over("reference", kind=Case)} == dtypes | {torch.float16}


def test_a_new_decay_and_a_new_shape_are_under_the_laws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DECAYS, "extra", lambda draw: draw.uniform(-1.0, -0.5, "B,T,H"))
    monkeypatch.setitem(SHAPES, "tall", Shape(B=2, T=11, Hq=3, H=3, K=9, V=2))
    rows = [row for row in LAWS["it_is_the_token_loop"].over("reference", "delta") if row.case.decay == "extra"]
    assert {row.case.shape for row in rows} == set(SHAPES)
    for row in rows:
        LAWS["it_is_the_token_loop"].check(SOUND, row)


def test_rows_are_named_by_all_their_axes():
    row = Row(Case("delta", "token", "packed", torch.bfloat16), "chunk", 16)
    assert str(row) == "reference-chunk16-delta-token-packed-bfloat16"
    assert str(Row(ConvolutionCase("packed", 8, None), "", None, "cpu")) == "cpu-convolution-packed-W8-bias-float64"
    assert str(Row(Case("additive", normalize=True, bonus=True), "recurrent", None)).endswith("normalize-bonus-float64")


@pytest.mark.parametrize("name", LAWS)
def test_no_two_rows_of_a_law_have_one_name(name: str):
    names = [str(row) for row in LAWS[name].over("reference")]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize(
    "name", ["a_prepared_step_is_a_step", "step_is_one_token", "step_in_place_is_step", "a_state_is_its_numbers"]
)
def test_a_fault_in_a_backends_prepared_steps_is_caught(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setitem(INSTALLED, "stale", Backend("stale", -1, {**BACKEND.operators, Step: Stale()}))
    found = broken(LAWS[name], backend="stale")
    assert found is not None
    assert found[0].mode == "stepper"
