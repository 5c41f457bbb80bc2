"""Grids of cells."""

import itertools
from collections.abc import Mapping, Sequence

from rebracket.lab.base.experiment import Cell


def points(axes: Mapping[str, Sequence[int | float | str]]) -> list[Cell]:
    """Every combination of the values of some axes, the last one fastest.

    Args:
        axes: values by the name of the parameter.

    Returns:
        A cell for each combination.

    Cost: the number of combinations.

    Example:
        >>> points({"K": [3, 4], "n": [5]})
        [{'K': 3, 'n': 5}, {'K': 4, 'n': 5}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
