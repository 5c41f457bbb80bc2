"""Names that users mistype."""

import difflib
from collections.abc import Collection


def nearest(name: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the known one most like it, and all of them.

    Example:
        >>> "'peer' is unknown" + nearest("peer", ["apple", "pear"])
        "'peer' is unknown, did you mean 'pear'?; known are apple, pear"
    """
    found = difflib.get_close_matches(name, known, n=1)
    meant = f", did you mean {found[0]!r}?" if found else ""
    return f"{meant}; known are {', '.join(known) or 'none'}"
