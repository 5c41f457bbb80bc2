"""Stop strings end a text at the same place however it comes, and nothing of them is ever shown."""

import hypothesis.strategies as st
from hypothesis import given, settings

from rebracket.lm.stopping import cut

LETTERS = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def shown(pieces: list[str], stops: list[str]) -> tuple[str, bool, list[str]]:
    """What is shown of a text in pieces, whether it stopped, and what was shown after each piece."""
    text, held, after = "", "", []
    for piece in pieces:
        new, held, stopped = cut(held + piece, stops)
        text += new
        after.append(text)
        if stopped:
            return text, True, after
    return text + held, False, after


def literal(text: str, stops: list[str]) -> tuple[str, bool]:
    """The shortest beginning that ends with a stop string, without the longest such."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(LETTERS, max_size=6), STOPS)
@settings(max_examples=300, deadline=None)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]):
    text, stopped, after = shown(pieces, stops)
    assert (text, stopped) == literal("".join(pieces), stops)
    assert all(text.startswith(part) for part in after)


@given(LETTERS, STOPS)
@settings(max_examples=200, deadline=None)
def test_no_more_is_held_than_must_be(text: str, stops: list[str]):
    found = cut(text, stops)
    longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
    assert len(found.held) == (0 if found.stopped else longest)


def test_without_stop_strings_nothing_is_held():
    assert cut("ab", []) == ("ab", "", False)
