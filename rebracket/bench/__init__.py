"""Benchmarks of this package's backends and of what others have: every result is checked before it is timed."""

from rebracket.bench.suite import FULL, QUICK, Suite, SuiteResult, run

__all__ = ["FULL", "QUICK", "Suite", "SuiteResult", "run"]
