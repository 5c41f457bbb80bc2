"""Measures the error budgets of `rebracket.testing.budgets` anew: the worst error over the whole product of samples."""

from __future__ import annotations

import torch

from rebracket.testing.agreement import all_modes, modes_agree
from rebracket.testing.budgets import BUDGETS, error
from rebracket.testing.results import exact, results
from rebracket.testing.rows import SOUND, Law
from rebracket.testing.samples import draw

Worst = dict[torch.dtype, dict[str, float]]


def measure(backend: str = "reference") -> Worst:
    """The worst error of each dtype and quantity, over every row of the law that modes agree. Takes a minute."""
    worst = {dtype: dict.fromkeys(limits, 0.0) for dtype, limits in BUDGETS.items()}
    for row in Law(modes_agree, all_modes).over(backend):
        wanted = exact(row.case)
        found = results(lambda s, row=row: SOUND.attend(s, row), draw(row.case))
        for name, x in found.items():
            kind = name.partition(" ")[0].partition(".")[0]
            worst[row.dtype][kind] = max(worst[row.dtype][kind], error(x, wanted[name]))
    return worst
