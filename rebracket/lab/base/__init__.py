"""What every experiment is, what experiments share, and how they are run, kept and shown."""

from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, mean_over_seeds
from rebracket.lab.base.grid import points
from rebracket.lab.base.learning import UNLABELLED, Examples, learn, recalled
from rebracket.lab.base.memories import accuracy, generator, least_squares, squared_error, stored, unit
from rebracket.lab.base.multi_query import associations
from rebracket.lab.base.segments import GATES, read_segments
from rebracket.lab.base.verdict import Check, Verdict, furthest

__all__ = [
    "GATES",
    "UNLABELLED",
    "Cell",
    "Check",
    "Examples",
    "Experiment",
    "Result",
    "Size",
    "Verdict",
    "accuracy",
    "associations",
    "furthest",
    "generator",
    "learn",
    "least_squares",
    "mean_over_seeds",
    "points",
    "read_segments",
    "recalled",
    "squared_error",
    "stored",
    "unit",
]
