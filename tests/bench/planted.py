"""Small cases of every operator, and implementations of them: a right one, and ones with one fault each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rebracket.bench import cases, clock, limits
from rebracket.bench.case import Case, Implementation, Mode, NotCoveredError, Prepared, Results

SIZES = {"B": 2, "T": 6, "H": 3, "D": 4}
"""Small sizes by the letters of a shape; other letters have 5."""


def case_of(name: str, mode: Mode, dtype: torch.dtype = torch.float32) -> Case:
    operator = cases.by_name()[name]
    sizes = SIZES | ({"T": 1} if mode == "decode" else {})
    return operator(name, tuple(sizes.get(letter, 5) for letter in operator.letters), mode, dtype)


def every_case() -> list[Case]:
    return [case_of(name, mode) for name, operator in cases.by_name().items() for mode in operator.modes]


def measure_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yardsticks and samples that take no time."""
    monkeypatch.setattr(limits, "SIDE", 16)
    monkeypatch.setattr(limits, "LARGE", 1 << 10)
    monkeypatch.setattr(clock, "SAMPLE", 0.0)


class Planted(Implementation):
    """The reference backend, its results changed, and its calls counted."""

    operator = Case

    def __init__(self, name: str, change: Callable[[Results], Results] = dict, is_peer: bool = True) -> None:
        self.name, self.change, self.is_peer = name, change, is_peer
        self.prepared: list[tuple[Case, int]] = []
        self.calls = 0

    def prepare(self, case: Case, x: Any, threads: int) -> Prepared:
        self.prepared.append((case, threads))
        prepared = case.prepare("reference", x)

        def run() -> object:
            self.calls += 1
            return prepared.run()

        return replace(prepared, run=run, results=lambda made: self.change(prepared.results(made)))


class Refusing(Implementation):
    name = "refusing"
    operator = Case

    def prepare(self, case: Case, x: Any, threads: int) -> Prepared:
        raise NotCoveredError("not today")


class Failing(Implementation):
    name = "failing"
    operator = Case

    def prepare(self, case: Case, x: Any, threads: int) -> Prepared:
        def run() -> object:
            raise RuntimeError("out of order")

        return Prepared(run, lambda _: {})


def another_head(results: Results) -> Results:
    """Every head, or channel, is computed from the inputs of its neighbour."""
    return {n: x.roll(1, 1 if n.startswith("state.") else min(2, x.ndim - 1)) for n, x in results.items()}


def slightly_off(results: Results) -> Results:
    return {name: x * 1.001 for name, x in results.items()}


def another_token(results: Results) -> Results:
    """A thousandth of the token before; of the sequence before where there is only one token."""
    out = results["out"]
    return results | {"out": out + 1e-3 * out.roll(1, 1 if out.shape[1] > 1 else 0)}


def not_a_number(results: Results) -> Results:
    out = results["out"].clone()
    out[0, -1] = torch.nan
    return results | {"out": out}


def last_halved(results: Results) -> Results:
    """The last gradient or state; in the forward pass the output."""
    *_, (name, last) = results.items()
    return results | {name: last / 2}


def without_last(results: Results) -> Results:
    return dict(list(results.items())[:-1])


FAULTS = {
    "another head": another_head,
    "slightly off": slightly_off,
    "another token": another_token,
    "not a number": not_a_number,
    "last halved": last_halved,
    "a result missing": without_last,
}
