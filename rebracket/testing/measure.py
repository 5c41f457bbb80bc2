"""Measures anew what the budgets of `rebracket.testing.budgets` are made of: the worst errors over rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rebracket.testing.budgets import BUDGETS, error
from rebracket.testing.results import exact, results
from rebracket.testing.rows import SOUND, Row
from rebracket.testing.samples import draw

Worst = dict[torch.dtype, dict[str, float]]


def measure(rows: Iterable[Row]) -> Worst:
    """The worst error of each dtype and quantity against the token loop in float64.

    The budgets come from `measure(LAWS["modes_agree"].over("reference"))`, which takes a minute.

    Example:
        >>> import torch
        >>> from rebracket.testing.measure import measure
        >>> from rebracket.testing.rows import Row
        >>> from rebracket.testing.samples import Case
        >>> 1e-8 < measure([Row(Case("delta", "token", dtype=torch.float32))])[torch.float32]["state"] < 1e-6
        True
    """
    worst = {dtype: dict.fromkeys(limits, 0.0) for dtype, limits in BUDGETS.items()}
    for row in rows:
        found = results(lambda s, row=row: SOUND.attend(s, row), draw(row.case))
        for name, x in found.items():
            kind = next(kind for kind in worst[row.dtype] if name.startswith(kind))
            worst[row.dtype][kind] = max(worst[row.dtype][kind], error(x, exact(row.case)[name]))
    return worst
