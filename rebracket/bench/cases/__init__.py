"""The operators of the benchmark, one file each: its cases take part by their names."""

from functools import cache

from rebracket.base.registry import Registry
from rebracket.bench.case import Case

OPERATORS = Registry(__name__, "operator", Case)


@cache
def by_name() -> dict[str, type[Case]]:
    """The names of all cases, such as "kda" or "convolution", and the operator of each."""
    operators: list[type[Case]] = [OPERATORS.load(file) for file in OPERATORS.names()]  # type: ignore[misc]
    return {name: operator for operator in operators for name in operator.titles}
