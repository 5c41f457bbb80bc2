"""Every installed backend keeps every law: the recurrence rule by rule, and every other operator."""

import pytest

from rebracket.ops.backend import INSTALLED
from rebracket.testing.law import SOUND, kinds
from rebracket.testing.laws import LAWS
from rebracket.testing.operators.recurrence import DECAYS, Case, write_names

SUBJECTS = {name: sorted({row.case.subject for row in law.rows()}) for name, law in LAWS.items()}


@pytest.mark.parametrize(("law", "subject"), [(law, subject) for law, found in SUBJECTS.items() for subject in found])
@pytest.mark.parametrize("backend", INSTALLED)
def test_law_holds(backend: str, law: str, subject: str):
    failures = []
    for row in LAWS[law].over(backend, subject):
        try:
            LAWS[law].check(SOUND, row)
        except AssertionError as error:
            failures.append(f"{row}: {error}")
    assert not failures, "\n".join(failures)


def test_every_law_concerns_something():
    assert all(SUBJECTS.values())


def test_every_operator_rule_and_decay_is_under_the_law_of_the_token_loop():
    rows = list(LAWS["it_is_the_token_loop"].rows())
    assert {type(row.case) for row in rows} == set(kinds())
    found = {(row.case.write, row.case.decay) for row in rows if isinstance(row.case, Case)}
    assert found == {(w, d) for w in write_names() for d in DECAYS}
