"""What others have, one file each: what such a file names `PEER` takes part wherever it is installed.

A peer's library is imported only when a case is prepared.
"""

import importlib
import pkgutil

from rebracket.bench.entrant import Entrant


def names() -> tuple[str, ...]:
    """The files of this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def found() -> tuple[Entrant, ...]:
    """Every peer, installed or not."""
    return tuple(importlib.import_module(f"{__name__}.{name}").PEER for name in names())
