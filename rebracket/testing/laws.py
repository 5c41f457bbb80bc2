"""Every law by name.

A law is checked on rows, and a row names the backend, mode, chunk, write rule, decay, shape and dtype. A new backend
runs under all of them by its name; a new write rule, decay or shape by its row in `rebracket.testing.samples`.

    for law in LAWS.values():
        for row in law.over("reference"):
            law.check(SOUND, row)
"""

from __future__ import annotations

from rebracket.testing import agreement, gates, gradients, guarantees, keys
from rebracket.testing.rows import SOUND, Law, Operator, Row

LAWS: dict[str, Law] = {
    law.name: law for group in (agreement, guarantees, gates, keys, gradients) for law in group.LAWS
}
"""The laws of the operator, each a function of an operator and a row that raises an AssertionError with numbers."""


def broken(law: Law, operator: Operator = SOUND, backend: str = "reference") -> tuple[Row, str] | None:
    """The first row on which an operator breaks a law, with what the law says; None when it keeps it everywhere."""
    for row in law.over(backend):
        try:
            law.check(operator, row)
        except AssertionError as error:
            return row, str(error)
    return None
