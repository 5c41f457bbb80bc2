"""Drafts: guesses of a text's next tokens, looked up in the text itself, as long as they gain more than they cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

LONGEST, SHORTEST = 4, 2
"""Tokens that are looked up: the last four if they stood before, else three, else two."""
BACK = 2000
"""How far back."""
ROW = 0.2
"""What one more row costs a call, in calls of one row: 0.15 with 46 million weights, 0.2 with one million."""
MOST_TEXTS = 8
"""Texts of a call beyond which nothing is drafted: there 70 % of the drafts would have to be right."""
TRIAL = 16
"""Drafted tokens by which a text is judged."""
FIRST_REST, LONGEST_REST = 32, 1024
"""Tokens without drafts after a loss; twice as many after each further one."""


@final
class Drafter:
    """Guesses the next tokens of one text: those that followed where its last few tokens stood before.

    A drafted token is read in the same call as the token before it, and counts if it is the one that is chosen there,
    so drafts change how many calls a text takes and nothing else. A call of b texts costs 1 + 0.2 (b - 1) calls of one,
    so a draft that is right saves the b-th part of that, and each draft costs 0.2. Where a text's drafts cost more than
    they saved it makes none for a while.

    Args:
        most: tokens of a draft, >= 0; 0 for none.

    Cost: about three entries of a dictionary a token, and no more than 12,000 of them.

    Source: Saxena 2023, "Prompt lookup decoding"; verified as in Leviathan et al. 2023.

    Example:
        >>> drafter = Drafter(3)
        >>> drafter.read([5, 6, 7, 8, 9, 1, 5, 6])
        >>> drafter.guess(texts=1)
        [7, 8, 9]
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._tokens: deque[int] = deque(maxlen=BACK)
        self._last: tuple[int, ...] = ()
        self._count = 0
        self._after: dict[tuple[int, ...], int] = {}
        self._drafted = self._gained = 0.0
        self._resting, self._rest = 0, FIRST_REST

    def read(self, tokens: Iterable[int]) -> None:
        """The text goes on with these tokens, given or chosen."""
        if not self.most:
            return
        for token in tokens:
            for key in self._endings():
                self._after[key] = self._count
            self._tokens.append(token)
            self._last = (*self._last[1 - LONGEST :], token)
            self._count += 1
            self._resting = max(self._resting - 1, 0)
        if len(self._after) > 2 * (LONGEST - SHORTEST + 1) * BACK:
            self._after = {key: place for key, place in self._after.items() if self._held(place)}

    def guess(self, texts: int) -> list[int]:
        """The next tokens, as far as anything is known of them, for a call of so many texts."""
        if not self.most or self._resting or texts > MOST_TEXTS:
            return []
        for key in self._endings():
            place = self._after.get(key, -1)
            if self._held(place):
                begin = place - self._count + len(self._tokens)
                return [self._tokens[i] for i in range(begin, min(begin + self.most, len(self._tokens)))]
        return []

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

    def _held(self, place: int) -> bool:
        """Whether the token of that number is among those that are still known."""
        return self._count - len(self._tokens) <= place < self._count

    def _endings(self) -> list[tuple[int, ...]]:
        """The last tokens, longest first."""
        last = self._last
        return [last[begin:] for begin in range(len(last) - SHORTEST + 1)]
