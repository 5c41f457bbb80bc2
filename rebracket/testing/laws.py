"""Every law by name.

A law is checked on rows, and a row names the backend, mode, chunk and case: the operator's own axes. A new backend runs
under all of them by its name; a new write rule, decay or shape by its row, a new operator by its file.

    for law in LAWS.values():
        for row in law.over("reference"):
            law.check(SOUND, row)
"""

from __future__ import annotations

from rebracket.testing import general
from rebracket.testing.law import REGISTERED, SOUND, Case, Law, Row, Run, kinds
from rebracket.testing.recurrence import agreement, gates, keys, memory, nesting, steps

kinds()  # imports the operators, each with laws of its own
OF_THE_HOUSE = (general, agreement, gates, keys, memory, nesting, steps)
LAWS: dict[str, Law] = dict(REGISTERED)
"""The laws, each a function of a run and a row that raises an AssertionError with numbers."""


def broken(law: Law, run: Run = SOUND, backend: str = "reference", kind: type[Case] = Case) -> tuple[Row, str] | None:
    """The first row on which a run breaks a law, with what the law says; None when it keeps it everywhere."""
    for row in law.over(backend, kind=kind):
        try:
            law.check(run, row)
        except AssertionError as error:
            return row, str(error)
    return None
