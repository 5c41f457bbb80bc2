"""No law of the short convolution is empty: every planted fault is caught, and every law catches one."""

import pytest

from rebracket.testing.convolution import LAWS, Row, broken, every_row
from rebracket.testing.convolution_faults import FAULTS


@pytest.mark.parametrize(("fault", "law"), [(name, law) for name, fault in FAULTS.items() for law in fault.breaks])
def test_a_planted_fault_is_caught(fault: str, law: str):
    found = broken(law, FAULTS[fault].run)
    assert found is not None, f"{law} holds although {fault}"
    assert found[1]


def test_every_law_catches_a_fault():
    assert {law for fault in FAULTS.values() for law in fault.breaks} == set(LAWS)
    assert all(law.__doc__ for law in LAWS.values())


def test_rows_are_named_by_all_their_axes():
    assert str(Row("packed", 8, None, backend="cpu")) == "cpu-packed-W8-bias-float64"
    names = [str(row) for row in every_row("reference")]
    assert len(names) == len(set(names)) > 100
