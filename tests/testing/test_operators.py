"""A new operator comes under the laws by one file: here one that is planted, right at first and then with faults."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor

from rebracket.ops.backend import INSTALLED, Backend, Implementation, choose
from rebracket.ops.call import Call
from rebracket.testing import general
from rebracket.testing.law import Case, Result, Row, Sample
from rebracket.testing.laws import LAWS, broken

GENERAL = [name for name, law in LAWS.items() if law.check.__module__ == general.__name__]


@final
@dataclass(frozen=True, eq=False)
class RunningSum(Call):
    """y_t = start + x_0 + ... + x_t."""

    x: Tensor
    start: Tensor


@final
class Summed(Implementation[RunningSum]):
    """A backend's way to compute it."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change

    def covers(self, call: RunningSum) -> str | None:
        return None if call.x.dtype == torch.float64 else "it computes in float64"

    def run(self, call: RunningSum) -> Result:
        y = self.change(call.start[:, None] + call.x.cumsum(1))
        return y, torch.cat((call.start[:, None], y), 1)[:, -1].clone()


@final
@dataclass(frozen=True, eq=False)
class SumSample(Sample):
    """x [B,T,D] and start [B,D]."""

    carries: ClassVar[str] = "start"
    free: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    start: Tensor
    cu_seqlens: None = None

    @property
    def T(self) -> int:
        return self.x.shape[1]

    def entries(self, name: str, x: Tensor) -> int:
        return int(name == "x")

    def call(self, row: Row) -> RunningSum:
        return RunningSum(self.x, self.start)

    def run(self, row: Row) -> Result:
        return choose(self.call(row), row.backend).run(self.call(row))

    def define(self) -> Result:
        seen = [self.start]
        for x in self.x.unbind(1):
            seen.append(seen[-1] + x)
        return torch.stack(seen, 1)[:, 1:], seen[-1]


@final
@dataclass(frozen=True)
class SumCase(Case):
    """One shape."""

    dtype: torch.dtype = torch.float64
    packed: ClassVar[bool] = False  # type: ignore[assignment]
    subject: ClassVar[str] = "running sum"  # type: ignore[assignment]

    @classmethod
    def every(cls) -> Iterator[Row]:
        yield Row(cls(), "", None)

    @classmethod
    def few(cls, shapes: Sequence[str], dtypes: Sequence[torch.dtype]) -> Iterator[Row]:  # noqa: ARG003
        yield Row(cls(), "", None)

    def draw(self) -> SumSample:
        x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return SumSample(x[:, 1:].to(self.dtype), x[:, 0].to(self.dtype))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def plant(change: Callable[[Tensor], Tensor] = Tensor.clone) -> None:
        monkeypatch.setattr(general, "kinds", lambda: [SumCase])
        monkeypatch.setitem(INSTALLED, "reference", Backend("reference", 0, {RunningSum: Summed(change)}))

    return plant


@pytest.mark.parametrize("law", [name for name in GENERAL if name != "packed_equals_separate"])
def test_every_general_law_concerns_it(planted: Callable[..., None], law: str):
    planted()
    assert list(LAWS[law].over("reference")) == [Row(SumCase(), "", None)]
    assert broken(LAWS[law]) is None


@pytest.mark.parametrize(
    ("law", "change"),
    [
        ("it_is_the_token_loop", lambda y: 1.001 * y),
        ("future_stays_out", lambda y: y + y.roll(-1, 1)),
        ("rows_do_not_meet", lambda y: y + y.roll(1, 0)),
        ("any_gradient_alone", lambda y: y.detach()),
    ],
)
def test_a_fault_in_it_is_caught(planted: Callable[..., None], law: str, change: Callable[[Tensor], Tensor]):
    planted(change)
    found = broken(LAWS[law])
    assert found is not None
    assert found[0].case.subject == "running sum"
