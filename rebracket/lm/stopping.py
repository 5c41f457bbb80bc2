"""Stop strings: the first one ends a text and is not shown, however many pieces it arrives in."""

from collections.abc import Sequence
from typing import NamedTuple, final


@final
class Cut(NamedTuple):
    """A text cut where it may have to end.

    Args:
        shown: the part that belongs to no stop string.
        held: the end that may be the beginning of a stop string; "" if one was found.
        stopped: whether a stop string was found; it and what follows it are dropped.
    """

    shown: str
    held: str
    stopped: bool


def cut(text: str, stops: Sequence[str]) -> Cut:
    r"""Cuts a text before the stop string that is complete first.

    `cut(held + new, stops)`, piece after piece, shows the same text whatever the pieces are.

    Args:
        text: what was held back, and what is new.
        stops: strings of at least one character.

    Example:
        >>> cut("x = 1\n", ["\n\n", "END"])
        Cut(shown='x = 1', held='\n', stopped=False)
        >>> cut("\n" + "\ny", ["\n\n", "END"])
        Cut(shown='', held='', stopped=True)
    """
    places = [(text.find(stop), stop) for stop in stops]
    found = [(place + len(stop), place) for place, stop in places if place >= 0]
    if found:
        return Cut(text[: min(found)[1]], "", stopped=True)
    sure = len(text) - max((overlap(text, stop) for stop in stops), default=0)
    return Cut(text[:sure], text[sure:], stopped=False)


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
