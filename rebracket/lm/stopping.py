"""Where a text ends: the first stop string, never shown, found although it comes in pieces."""

from collections.abc import Sequence
from typing import NamedTuple, final


@final
class Cut(NamedTuple):
    """A text cut where it may have to end.

    Args:
        shown: what no stop string can take back.
        held: the end that may be the beginning of a stop string; "" if one was found.
        stopped: whether a stop string was found; it and what follows it are gone.
    """

    shown: str
    held: str
    stopped: bool


def cut(text: str, stops: Sequence[str]) -> Cut:
    r"""Cuts a text before the stop string that is complete first.

    `cut(held + new, stops)`, piece after piece, shows the same text however it comes in pieces.

    Args:
        text: what was held back, and what came since.
        stops: strings of at least one character.

    Returns:
        The cut.

    Cost: the text searched once for each string.

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
    """How many characters at the end of the text begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
