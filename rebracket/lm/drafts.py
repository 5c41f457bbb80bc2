"""Drafts: guesses of a text's next tokens, looked up in the text itself, as long as they gain more than they cost."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import final

LENGTHS = (4, 3, 2)
"""Tokens that are looked up: the last four if they stood before, else three, else two."""
BACK = 2000
"""How far back."""
ROW = 0.25
"""What one more row costs a call, in calls of one row: 0.15 with 46 million weights, 0.3 with one million."""
MOST_TEXTS = 8
"""Texts of a call beyond which nothing is drafted: there 3 in 4 drafts would have to be right."""
TRIAL = 12
"""Drafted tokens by which a text is judged."""
FIRST_REST, LONGEST_REST = 64, 1024
"""Tokens without drafts after a loss; twice as many after each further one."""


@final
class Drafter:
    """Guesses the next tokens of one text: those that followed where its last few tokens stood before.

    A drafted token is read in the same call as the token before it, and counts if it is the one that is chosen there,
    so drafts change how many calls a text takes and nothing else. A call of b texts costs 1 + 0.25 (b - 1) calls of
    one, so a draft that is right saves the b-th part of that, and each draft costs 0.25. Where a text's drafts cost
    more than they saved it makes none for a while.

    Args:
        most: tokens of a draft, >= 0; 0 for none.

    Cost: a search through the last 2,000 tokens where a draft is made.

    Source: Saxena 2023, "Prompt lookup decoding"; verified as in Leviathan et al. 2023.

    Example:
        >>> drafter = Drafter(3)
        >>> drafter.read([5, 6, 7, 8, 9, 1, 5, 6])
        >>> drafter.guess(texts=1)
        [7, 8, 9]
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._tokens = array("I")
        self._drafted = self._gained = 0.0
        self._resting, self._rest = 0, FIRST_REST

    def read(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens, given or chosen."""
        if self.most:
            self._tokens.extend(tokens)
            self._resting = max(self._resting - len(tokens), 0)
            if len(self._tokens) > 2 * BACK:
                del self._tokens[:-BACK]

    def guess(self, texts: int) -> list[int]:
        """The next tokens, as far as anything is known of them, for a call of so many texts."""
        if not self.most or self._resting or texts > MOST_TEXTS:
            return []
        tokens = self._tokens[-BACK:]
        begin = next((place for count in LENGTHS if (place := after_latest(tokens, count)) is not None), len(tokens))
        return tokens[begin : begin + self.most].tolist()

    def learn(self, drafted: int, gained: int, texts: int) -> None:
        """Some tokens were drafted and some of them right, in a call of so many texts."""
        self._drafted, self._gained = self._drafted + drafted, self._gained + gained
        if self._drafted < TRIAL:
            return
        saved = (1 + ROW * (texts - 1)) / texts
        if self._gained * saved < self._drafted * ROW:
            self._resting, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            self._drafted = self._gained = 0.0
        else:
            self._rest = FIRST_REST
            self._drafted, self._gained = self._drafted / 2, self._gained / 2


def after_latest(tokens: array[int], count: int) -> int | None:
    """The place after the latest earlier one where the last `count` tokens stand, or None."""
    data, width = tokens.tobytes(), tokens.itemsize
    key = data[-count * width :]
    place = data.rfind(key, 0, -width) if len(tokens) > count else -1
    while place % width and place >= 0:  # bytes of two tokens that look like one
        place = data.rfind(key, 0, place + len(key) - 1)
    return place // width + count if place >= 0 else None
