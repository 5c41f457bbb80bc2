"""No law is empty: every planted fault is caught by the laws that it names, and every law catches one."""

import pytest

from rebracket.testing.faults import FAULTS
from rebracket.testing.laws import LAWS, broken
from rebracket.testing.rows import Operator


@pytest.mark.parametrize(("fault", "law"), [(name, law) for name, fault in FAULTS.items() for law in fault.breaks])
def test_a_planted_fault_is_caught(fault: str, law: str):
    found = broken(LAWS[law], FAULTS[fault].operator)
    assert found is not None, f"{law} holds although {fault}"
    assert found[1]


def test_every_law_catches_a_fault():
    assert {law for fault in FAULTS.values() for law in fault.breaks} == set(LAWS)


def test_no_two_faults_are_the_same_operator():
    operators: list[Operator] = [fault.operator for fault in FAULTS.values()]
    assert len({(x.attend, x.step) for x in operators}) == len(operators)
