"""Every installed backend keeps every law, rule by rule."""

import pytest

from rebracket.ops.backend import INSTALLED
from rebracket.testing.laws import LAWS
from rebracket.testing.rows import SOUND
from rebracket.testing.samples import DECAYS, write_names

RULES = {name: sorted({row.case.write for row in law.rows()}) for name, law in LAWS.items()}


@pytest.mark.parametrize(("law", "rule"), [(law, rule) for law, rules in RULES.items() for rule in rules])
@pytest.mark.parametrize("backend", INSTALLED)
def test_law_holds(backend: str, law: str, rule: str):
    failures = []
    for row in LAWS[law].over(backend, rule):
        try:
            LAWS[law].check(SOUND, row)
        except AssertionError as error:
            failures.append(f"{row}: {error}")
    assert not failures, "\n".join(failures)


def test_every_law_concerns_some_rule():
    assert all(RULES.values())


def test_every_rule_and_decay_is_under_the_law_that_modes_agree():

    rows = list(LAWS["modes_agree"].rows())
    assert {(row.case.write, row.case.decay) for row in rows} == {(w, d) for w in write_names() for d in DECAYS}
