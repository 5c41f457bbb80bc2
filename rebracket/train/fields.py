"""Fields of a config: their kinds and ranges, and tables in which nothing unknown may stand."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from rebracket.lm.config import refuse_unknown

WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
SEVERAL = {float: "numbers", str: "texts"}


def number(default: float, least: float = 0.0, most: float = math.inf) -> Any:  # noqa: ANN401 - stands for a field
    """A numeric field and its closed range."""
    return field(default=default, metadata={"least": least, "most": most})


def choice(default: str, *others: str) -> Any:  # noqa: ANN401 - stands for a field
    """A field that takes one of a few words."""
    return field(default=default, metadata={"choices": (default, *others)})


def section(kind: type, values: object, where: str) -> Any:  # noqa: ANN401 - one of three classes
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a table, got {values!r}")
    hints = typing.get_type_hints(kind)
    refuse_unknown(values, hints, where)
    return kind(**{name: fitted(value, hints[name]) for name, value in values.items()})


def fitted(value: Any, kind: Any) -> Any:  # noqa: ANN401 - TOML holds anything
    """A TOML value as a field keeps it: lists as tuples, whole numbers as floats where floats are meant."""
    if typing.get_origin(kind) is tuple:
        several = [value] if isinstance(value, str) else value
        return tuple(several) if isinstance(several, (list, tuple)) else value
    return float(value) if kind is float and isinstance(value, int) and not isinstance(value, bool) else value


def check(config: Any, where: str) -> None:  # noqa: ANN401 - one of three classes
    """Every field of a section is of its type and in its range."""
    hints = typing.get_type_hints(type(config))
    for one in dataclasses.fields(config):
        check_field(getattr(config, one.name), hints[one.name], one.metadata, f"{where}.{one.name}")


def check_field(value: Any, kind: Any, limits: Mapping[str, Any], where: str) -> None:  # noqa: ANN401
    if typing.get_origin(kind) is tuple:
        check_tuple(value, typing.get_args(kind), limits, where)
    elif not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise TypeError(f"{where} must be {WORDS[kind]}, got {value!r}")
    elif "choices" in limits and value not in limits["choices"]:
        raise ValueError(f"{where} must be one of {', '.join(limits['choices'])}, got {value!r}")
    elif "least" in limits and not limits["least"] <= value <= limits["most"]:
        raise ValueError(f"{where} must be in [{limits['least']:g}, {limits['most']:g}], got {value!r}")


def check_tuple(value: Any, kinds: tuple[Any, ...], limits: Mapping[str, Any], where: str) -> None:  # noqa: ANN401
    count, several = None if kinds[-1] is ... else len(kinds), SEVERAL[kinds[0]]
    if not isinstance(value, tuple) or len(value) != (count or max(1, len(value))):
        wanted = f"{count} {several}" if count else f"{several}, at least one"
        raise TypeError(f"{where} must be a list of {wanted}, got {value!r}")
    for one in value:
        check_field(one, kinds[0], limits, where)


def as_table(config: Any) -> dict[str, Any]:  # noqa: ANN401 - one of three classes
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(config).items()}
