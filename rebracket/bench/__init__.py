"""Races of this package's backends and of what others have: every result is checked before it is timed."""

from rebracket.bench.program import FULL, QUICK, Outcome, Program, run

__all__ = ["FULL", "QUICK", "Outcome", "Program", "run"]
