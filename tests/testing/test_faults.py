"""No law is empty: every planted fault is caught by the laws that it names, and every law catches one."""

import pytest

from rebracket.testing.law import Case, kinds
from rebracket.testing.laws import LAWS, broken
from tests.testing.faults import FAULTS

PLANTED = [(name, law, kind) for name, x in FAULTS.items() for law in x.breaks for kind in x.kinds]


@pytest.mark.parametrize(("fault", "law", "kind"), PLANTED)
def test_a_planted_fault_is_caught(fault: str, law: str, kind: type[Case]):
    found = broken(LAWS[law], FAULTS[fault].run, kind=kind)
    assert found is not None, f"{law} holds although {fault}"
    assert found[1]


@pytest.mark.parametrize("kind", kinds())
def test_every_law_catches_a_fault_of_every_operator_that_it_concerns(kind: type[Case]):
    concerned = {name for name, law in LAWS.items() if any(isinstance(row.case, kind) for row in law.rows())}
    assert {law for _, law, planted in PLANTED if planted is kind} == concerned


def test_no_two_faults_are_the_same_run():
    assert len({fault.run for fault in FAULTS.values()}) == len(FAULTS)
