"""Claims about linear attention as experiments; each file of this folder is one, under the name of the file."""

from rebracket.base.registry import Registry
from rebracket.lab.base.experiment import Experiment

EXPERIMENTS = Registry(__name__, "experiment", Experiment)


def names() -> tuple[str, ...]:
    """The names of all experiments, sorted.

    Example:
        >>> "capacity" in names()
        True
    """
    return EXPERIMENTS.names()


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
    return EXPERIMENTS.load(name)()
