"""Entrants for tests: a right one, and ones with one fault each."""

from collections.abc import Callable
from dataclasses import replace

import torch

from rebracket.bench.cases import SOFTMAX, Case, Inputs
from rebracket.bench.entrant import Attempt, Entrant, NotCoveredError
from rebracket.bench.own import Ours, Softmax
from rebracket.bench.truth import Results


class Planted(Entrant):
    """The reference backend, its results changed, and its calls counted."""

    def __init__(self, name: str, change: Callable[[Results], Results] = dict, is_peer: bool = True) -> None:
        self.name, self.change, self.is_peer = name, change, is_peer
        self.prepared: list[tuple[Case, int]] = []
        self.calls = 0

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        self.prepared.append((case, threads))
        entrant = Softmax() if case.rule is SOFTMAX else Ours("reference")
        attempt = entrant.prepare(case, x, threads)

        def run() -> object:
            self.calls += 1
            return attempt.run()

        return replace(attempt, run=run, results=lambda made: self.change(attempt.results(made)))


class Refusing(Entrant):
    name = "refusing"

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        raise NotCoveredError("not today")


class Failing(Entrant):
    name = "failing"

    def prepare(self, case: Case, x: Inputs, threads: int) -> Attempt:
        def run() -> object:
            raise RuntimeError("out of order")

        return Attempt(run, lambda _: {})


def another_head(results: Results) -> Results:
    """Every head is computed from the inputs of its neighbour."""
    return {name: torch.roll(x, 1, 1 if name.startswith("state.") else 2) for name, x in results.items()}


def slightly_off(results: Results) -> Results:
    return {name: x * 1.001 for name, x in results.items()}


def not_a_number(results: Results) -> Results:
    out = results["out"].clone()
    out[0, -1] = torch.nan
    return results | {"out": out}


def without_last(results: Results) -> Results:
    return dict(list(results.items())[:-1])


FAULTS = {
    "another head": another_head,
    "slightly off": slightly_off,
    "not a number": not_a_number,
    "a result missing": without_last,
}
