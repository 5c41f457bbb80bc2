"""What runs a whole language model, one file each: this package's ways, and what others have for a model as large."""

from functools import cache

from rebracket.base.registry import Registry
from rebracket.bench.models.base import Runner

RUNNERS = Registry(__name__, "runner of models", Runner)


@cache
def found() -> tuple[Runner, ...]:
    """Every runner, installed or not, this package's first; the same ones at every call."""
    every = [RUNNERS.load(name)() for name in RUNNERS.names()]
    return tuple(sorted(every, key=lambda runner: runner.is_peer))
