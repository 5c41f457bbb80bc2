"""What others have, one file each: it takes part wherever it is installed.

A peer's library is imported only when a case is prepared.
"""

from functools import cache

from rebracket.base.registry import Registry
from rebracket.bench.case import Implementation

PEERS = Registry(__name__, "peer", Implementation)


@cache
def found() -> tuple[Implementation, ...]:
    """Every peer, installed or not; the same ones at every call."""
    return tuple(PEERS.load(name)() for name in PEERS.names())
