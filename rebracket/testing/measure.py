"""Measures again what the budgets of `rebracket.testing.budgets` are made of: the worst errors over rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rebracket.testing.budgets import BUDGETS, error
from rebracket.testing.law import Row, results

Worst = dict[torch.dtype, dict[str, float]]


def measure(rows: Iterable[Row]) -> Worst:
    """The worst error of each dtype and quantity against the token loop in float64.

    The budgets come from `measure(LAWS["it_is_the_token_loop"].over("reference"))`, which takes a minute.

    Example:
        >>> import torch
        >>> from rebracket.testing.measure import measure
        >>> from rebracket.testing.law import Row
        >>> from rebracket.testing.operators.recurrence import Case
        >>> 1e-8 < measure([Row(Case("delta", "token", dtype=torch.float32))])[torch.float32]["state"] < 1e-6
        True
    """
    worst = {dtype: dict.fromkeys(limits, 0.0) for dtype, limits in BUDGETS.items()}
    for row in rows:
        found = results(lambda s, row=row: s.run(row), row.case.draw())
        for name, x in found.items():
            kind = next(kind for kind in worst[row.dtype] if name.startswith(kind))
            worst[row.dtype][kind] = max(worst[row.dtype][kind], error(x, row.case.exact()[name]))
    return worst
