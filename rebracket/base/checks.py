"""Checks of plain values: each returns what it was given, or raises an error that names it."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """A whole number in a closed range.

    Example:
        >>> whole("heads", 4)
        4
        >>> whole("heads", 0)
        Traceback (most recent call last):
        ...
        ValueError: heads must be a whole number of at least 1, got 0
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(f"{name} must be a whole number {wanted}, got {value!r}")
    return value


def number(name: str, value: object, above: float, most: float = float("inf")) -> float:
    """A number above one bound and at most another."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= most:
        raise ValueError(f"{name} must lie in ({above}, {most}], got {value!r}")
    return value


def within(name: str, value: object, least: float, most: float = float("inf")) -> float:
    """A finite number in a closed range."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (isfinite(value) and least <= value <= most)
    ):
        wanted = f"of at least {least}" if most == float("inf") else f"in [{least}, {most}]"
        raise ValueError(f"{name} must be a number {wanted}, got {value!r}")
    return value


def truth(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def text(name: str, value: object) -> str:
    """Text, which may be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {value!r}")
    return value


def one_of(name: str, value: object, allowed: Collection[object]) -> None:
    """Raises unless the value is one of a few."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
