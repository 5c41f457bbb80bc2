"""Claims about linear attention as experiments: the name of a file in this folder is the name of the one in it."""

import importlib
import sys

from rebracket.lab.base import Experiment
from rebracket.ops import folders
from rebracket.ops.names import nearest

NOT_EXPERIMENTS = {"base"}


def names() -> tuple[str, ...]:
    """The names of all experiments, sorted.

    Example:
        >>> "capacity" in names()
        True
    """
    return tuple(name for name in folders.names(sys.modules[__name__]) if name not in NOT_EXPERIMENTS)


def load(name: str) -> Experiment:
    """An experiment by its name.

    Args:
        name: one of `names()`.

    Raises:
        ValueError: If there is no such experiment; the message names the nearest and lists them all.

    Example:
        >>> load("capacity").name
        'capacity'
    """
    if name not in names():
        raise ValueError(f"experiment {name!r} is unknown{nearest(name, [*names(), 'all'])}")
    return folders.only(importlib.import_module(f"{__name__}.{name}"), Experiment)()
