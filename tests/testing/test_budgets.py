"""Errors are measured as they are described, comparisons say what they saw, and budgets are not slack."""

import math
from collections.abc import Iterable

import pytest
import torch

from rebracket.testing.budgets import BUDGETS, FLOOR, budget, check, check_all, check_equal, error
from rebracket.testing.law import Row, results
from rebracket.testing.operators.recurrence import few


def test_an_error_is_relative_to_the_largest_entry():
    assert error(torch.tensor([1.0, 0.1]), torch.tensor([4.0, 0.1])) == 0.75
    assert error(torch.tensor([1e-5]), torch.zeros(1)) == pytest.approx(1e-5 / FLOOR)


def test_what_is_no_number_is_an_infinite_error():
    assert error(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0])) == math.inf
    assert error(torch.tensor([math.inf]), torch.tensor([1.0])) == math.inf
    assert error(torch.ones(2), torch.ones(3)) == math.inf


def test_nothing_equals_nothing():
    assert error(torch.ones(0, 3), torch.zeros(0, 3)) == 0


def test_a_check_names_the_place_and_both_values():
    with pytest.raises(AssertionError, match=r"out: error 2\.50e-01 > 1\.00e-01 at \(1, 0\): 3, expected 2"):
        check("out", torch.tensor([[4.0], [3.0]]), torch.tensor([[4.0], [2.0]]), 0.1)
    with pytest.raises(AssertionError, match="shape"):
        check("out", torch.ones(2), torch.ones(3), 1.0)
    check("out", torch.tensor([1.05]), torch.tensor([1.0]), 0.1)


def test_equality_is_of_bits_but_for_the_sign_of_zero():
    check_equal("x", torch.tensor([0.0]), torch.tensor([-0.0]))
    for x in (torch.tensor([1e-30]), torch.tensor([math.nan]), torch.zeros(2)):
        with pytest.raises(AssertionError, match="not equal"):
            check_equal("x", x, torch.zeros(1))


def test_results_must_have_the_same_names():
    with pytest.raises(AssertionError, match="grad k"):
        check_all({"out": torch.ones(1)}, {"out": torch.ones(1), "grad k": torch.ones(1)}, torch.float32)


def test_every_quantity_of_every_dtype_has_a_budget():
    for dtype in BUDGETS:
        for name in ("out", "state.memory", "state.key_sum", "grad q", "grad write.beta"):
            assert 0 < budget(name, dtype) < 0.01


def measure(rows: Iterable[Row]) -> dict[torch.dtype, dict[str, float]]:
    """The worst error of each dtype and quantity against the token loop in float64.

    The budgets come from `measure(LAWS["it_is_the_token_loop"].over("reference", kind=Case))`, which takes a minute.
    """
    worst = {dtype: dict.fromkeys(limits, 0.0) for dtype, limits in BUDGETS.items()}
    for row in rows:
        for name, x in results(lambda s, row=row: s.run(row), row.case.draw()).items():
            kind = next(kind for kind in worst[row.dtype] if name.startswith(kind))
            worst[row.dtype][kind] = max(worst[row.dtype][kind], error(x, row.case.exact()[name]))
    return worst


@pytest.mark.parametrize("dtype", BUDGETS)
def test_budgets_are_not_slack(dtype: torch.dtype):
    """Some row comes within a twentieth of each budget: a wider one would hide real errors."""
    worst = measure(Row(case) for case in few(dtype))[dtype]
    assert all(BUDGETS[dtype][kind] / 20 < found <= BUDGETS[dtype][kind] for kind, found in worst.items()), worst
