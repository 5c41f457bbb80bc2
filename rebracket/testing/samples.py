"""Random well-conditioned calls of the operator, one row for every axis: write rules, decays, shapes.

A new decay or shape is one more row here. A new write rule is one more row in `WRITES`; the rules themselves are found
by their files, so a rule without a row fails.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import final

import torch
from torch import Tensor

from rebracket.ops import writes
from rebracket.ops.heads import repeat_heads
from rebracket.ops.state import State
from rebracket.ops.write import Sizes, WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.ops.writes.delta_product import DeltaProduct
from rebracket.ops.writes.gated_erase import GatedErase
from rebracket.ops.writes.low_rank import LowRank
from rebracket.ops.writes.read_key import ReadKey


@final
@dataclass(frozen=True)
class Shape:
    """The letters of a call, and the offsets when its sequences are packed."""

    B: int
    T: int
    Hq: int
    H: int
    K: int
    V: int
    offsets: tuple[int, ...] | None = None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.B, self.T, self.Hq, self.H, self.K, self.V)

    @property
    def sequences(self) -> int:
        """N: rows of the state."""
        return self.B if self.offsets is None else len(self.offsets) - 1

    def cu_seqlens(self) -> Tensor | None:
        return None if self.offsets is None else torch.tensor(self.offsets, dtype=torch.int64)


@final
@dataclass(frozen=True, eq=False)
class Sample:
    """The arguments of one call of `linear_attention`, to be cut, cast and changed."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    write: WriteRule = Additive()
    bonus: Tensor | None = None
    normalize: bool = False
    scale: float | None = None
    state: State | None = None
    cu_seqlens: Tensor | None = None
    causal: bool = True

    @property
    def T(self) -> int:
        return self.q.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a gradient can be asked for, by name."""
        named = {name: getattr(self, name) for name in ("q", "k", "v", "log_decay", "bonus")}
        rule = {f"write.{name}": x for name, x in fields(self.write).items() if isinstance(x, Tensor)}
        held = {} if self.state is None else {f"state.{name}": x for name, x in self.state.tensors().items()}
        return {name: x for name, x in (named | rule | held).items() if x is not None}

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Sample:
        """A copy whose tensors went through `change`, which is told their names."""
        changed = {name: change(name, x) for name, x in self.tensors().items()}
        plain = {name: x for name, x in changed.items() if "." not in name}
        return replace(self, **plain, write=with_fields(self.write, changed), state=with_state(self.state, changed))

    def to(self, dtype: torch.dtype) -> Sample:
        """The same numbers rounded to a dtype; a state is float32, or float64 with float64."""
        held = torch.float64 if dtype == torch.float64 else torch.float32
        return self.map(lambda name, x: x.to(held if name.startswith("state.") else dtype))

    def leaves(self, names: frozenset[str] | None = None) -> Sample:
        """Copies that collect gradients: all, or those named."""
        return self.map(lambda name, x: x.detach().clone().requires_grad_(names is None or name in names))

    def timed(self, change: Callable[[Tensor, int], Tensor]) -> Sample:
        """A copy whose tensors with a time axis went through `change`, which is told how many entries a token has."""

        def along(name: str, x: Tensor) -> Tensor:
            many = name in ("k", "v") or name.startswith("write.")
            return change(x, self.write.entries if many else 1) if is_timed(name, x) else x

        return self.map(along)

    def tokens(self, start: int, stop: int) -> Sample:
        """The tokens from start to stop; the state stays what it is."""
        return self.timed(lambda x, entries: x[:, start * entries : stop * entries])

    def rows(self, start: int, stop: int) -> Sample:
        """Some rows of the batch, with their states."""
        batched = self.timed(lambda x, _: x[start:stop])
        return replace(batched, state=None if self.state is None else self.state.select(slice(start, stop)))


def fields(rule: WriteRule) -> dict[str, object]:
    """What a write rule carries, by name, in order."""
    return {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}  # type: ignore[arg-type]


def with_fields(rule: WriteRule, tensors: dict[str, Tensor]) -> WriteRule:
    carried = {name: tensors.get(f"write.{name}", x) for name, x in fields(rule).items()}
    return type(rule)(**carried)


def with_state(state: State | None, tensors: dict[str, Tensor]) -> State | None:
    return None if state is None else State(tensors["state.memory"], tensors.get("state.key_sum"))


def is_timed(name: str, x: Tensor) -> bool:
    """Whether a tensor has a time axis: [H], [H,K] and the state have none."""
    return x.ndim >= 3 and not name.startswith("state.")


@final
class Draw:
    """Random tensors in float64, shaped by letters."""

    def __init__(self, shape: Shape, seed: int):
        self.sizes = shape.sizes
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, letters: str) -> Tensor:
        return torch.randn(self.sizes.shape(letters), generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float, letters: str) -> Tensor:
        return low + (high - low) * torch.rand(self.sizes.shape(letters), generator=self.generator, dtype=torch.float64)

    def unit(self, letters: str) -> Tensor:
        """Vectors of length 1."""
        return torch.nn.functional.normalize(self.normal(letters), dim=-1)

    def near(self, x: Tensor, letters: str) -> Tensor:
        """Vectors of length 1 close to those of x, which may have fewer heads."""
        heads = repeat_heads(x, self.sizes.shape(letters)[2])
        return torch.nn.functional.normalize(heads + 0.1 * self.normal(letters), dim=-1)


# Strengths below 2 with unit keys keep every transition a contraction: an error is the code's, not the input's.
WRITES: dict[str, Callable[[Draw, Tensor], WriteRule]] = {
    "additive": lambda draw, k: Additive(),
    "delta": lambda draw, k: Delta(draw.uniform(0.0, 1.9, "B,T,H")),
    "delta_product": lambda draw, k: DeltaProduct(draw.uniform(0.0, 1.9, "B,T*2,H"), writes=2),
    "gated_erase": lambda draw, k: GatedErase(draw.uniform(0.2, 1.0, "B,T,Hq,K"), draw.uniform(0.2, 1.0, "B,T,H,V")),
    "low_rank": lambda draw, k: LowRank(draw.near(k, "B,T,H,K"), 0.8 * draw.near(k, "B,T,Hq,K")),
    "read_key": lambda draw, k: ReadKey(draw.near(k, "B,T,Hq,K"), draw.uniform(0.2, 1.2, "B,T,H")),
}
"""How to draw each write rule for keys k; ask `write_names` for the names."""

DECAYS: dict[str, Callable[[Draw], Tensor | None]] = {
    "none": lambda draw: None,
    "head": lambda draw: draw.uniform(-0.5, -0.01, "H"),
    "token": lambda draw: draw.uniform(-0.8, 0.0, "B,T,H"),
    "channel": lambda draw: draw.uniform(-0.8, 0.0, "B,T,H,K"),
    "token_flush": lambda draw: flushed(draw, draw.uniform(-0.8, 0.0, "B,T,H")),
    "channel_flush": lambda draw: flushed(draw, draw.uniform(-0.8, 0.0, "B,T,H,K")),
}
"""How to draw each decay."""

SHAPES: dict[str, Shape] = {
    "plain": Shape(B=2, T=37, Hq=3, H=3, K=4, V=5),
    "grouped": Shape(B=3, T=19, Hq=2, H=4, K=6, V=5),
    "packed": Shape(B=1, T=44, Hq=2, H=2, K=3, V=5, offsets=(0, 0, 5, 5, 6, 39, 41)),
}
"""Sizes that are all different, off the edges of the chunks; the packed one has empty sequences and a tail."""

LENGTHS = (0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 129, 1000)
DIMENSIONS = ((1, 3), (3, 1), (8, 16), (60, 64), (64, 60), (100, 128), (128, 256), (256, 8), (16, 320), (320, 100))
HEADS = ((1, 1), (1, 2), (2, 2), (3, 3), (1, 4), (2, 8), (3, 6))

SWEEP: dict[str, Shape] = {
    **{f"T{T}": Shape(2, T, 3, 3, 4, 5) for T in LENGTHS},
    **{f"K{K}V{V}": Shape(2, 17, 3, 3, K, V) for K, V in DIMENSIONS},
    **{f"Hq{Hq}H{H}": Shape(5, 33, Hq, H, 4, 7) for Hq, H in HEADS},
    "rows": Shape(65_537, 1, 1, 1, 2, 3),
    "heads": Shape(1, 1, 65_537, 65_537, 2, 3),
}
"""Every size of every letter, and more rows times heads than 16 bits count."""

SPECIAL: dict[str, Shape] = {
    "small": Shape(B=1, T=7, Hq=1, H=2, K=3, V=4),
    "small_packed": Shape(B=1, T=8, Hq=2, H=2, K=3, V=5, offsets=(0, 0, 1, 7)),
    "T70": Shape(B=2, T=70, Hq=3, H=3, K=4, V=5),
    "T4096": Shape(B=1, T=4096, Hq=2, H=2, K=3, V=5),
    "T8192": Shape(B=1, T=8192, Hq=2, H=2, K=3, V=5),
    "T100": Shape(B=1, T=100, Hq=2, H=2, K=3, V=5),
}
"""Sizes that single laws ask for."""


def flushed(draw: Draw, log_decay: Tensor) -> Tensor:
    """A decay of which one entry in ten erases, by -inf or by -1e4."""
    chance = torch.rand(log_decay.shape, generator=draw.generator, dtype=torch.float64)
    return log_decay.masked_fill(chance < 0.1, -1e4).masked_fill(chance < 0.05, -torch.inf)


def write_names() -> tuple[str, ...]:
    """The write rules by their files; a rule without a row in `WRITES` is an error."""
    found = sorted(module.name for module in pkgutil.iter_modules(writes.__path__))
    missing = [name for name in found if name not in WRITES]
    if missing:
        raise LookupError(f"no sample for the write rules {', '.join(missing)}; add a row to {__name__}.WRITES")
    return tuple(found)


@functools.cache
def rule_module(name: str) -> ModuleType:
    """The file of a write rule."""
    return importlib.import_module(f"{writes.__name__}.{name}")


@functools.cache
def prototype(name: str) -> WriteRule:
    """Some instance of a write rule, to ask for what all of them share."""
    draw = Draw(SHAPES["plain"], 0)
    return WRITES[name](draw, draw.unit("B,T,Hq,K"))


@final
@dataclass(frozen=True)
class Case:
    """One point of the product of axes that a sample is drawn for."""

    write: str = "additive"
    decay: str = "none"
    shape: str = "plain"
    dtype: torch.dtype = torch.float64
    normalize: bool = False
    bonus: bool = False

    def __str__(self) -> str:
        extras = [name for name, on in (("normalize", self.normalize), ("bonus", self.bonus)) if on]
        return "-".join([self.write, self.decay, self.shape, *extras, str(self.dtype).removeprefix("torch.")])


def draw(case: Case) -> Sample:
    """The sample of a case: the same numbers every time, rounded to its dtype."""
    return sample(case, (SHAPES | SWEEP | SPECIAL)[case.shape])


def sample(case: Case, shape: Shape) -> Sample:
    """A sample of a case in any shape."""
    draw = Draw(shape, zlib.crc32(str(replace(case, dtype=torch.float64)).encode()))
    times = f"T*{prototype(case.write).entries}"
    k = features(draw, f"B,{times},Hq,K", case.normalize)
    drawn = Sample(
        features(draw, "B,T,Hq,K", case.normalize),
        k,
        draw.normal(f"B,{times},H,V"),
        log_decay=DECAYS[case.decay](draw),
        write=WRITES[case.write](draw, k),
        bonus=draw.normal("H,K") if case.bonus else None,
        normalize=case.normalize,
        state=initial(draw, shape.sequences, case.normalize),
        cu_seqlens=shape.cu_seqlens(),
    )
    return drawn.to(case.dtype)


def features(draw: Draw, letters: str, positive: bool) -> Tensor:
    """Unit vectors, or positive ones for a normalizer."""
    return draw.uniform(0.1, 1.0, letters) if positive else draw.unit(letters)


def initial(draw: Draw, N: int, key_sum: bool) -> State:
    """A state that is not zero."""
    H, K, V = draw.sizes.shape("H,K,V")
    memory = torch.randn(N, H, K, V, generator=draw.generator, dtype=torch.float64)
    total = 0.1 + torch.rand(N, H, K, generator=draw.generator, dtype=torch.float64)
    return State(0.5 * memory, total if key_sum else None)
