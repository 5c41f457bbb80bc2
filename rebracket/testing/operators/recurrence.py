"""The recurrence under the laws: write rules, decays and shapes, drawn at random and well conditioned.

A new decay or shape is one more entry here. A write rule brings its sample in its own file, as `drawn(draw)`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rebracket.backends.reference import definition
from rebracket.base.registry import Registry
from rebracket.ops import writes
from rebracket.ops.attention import linear_attention, step
from rebracket.ops.call import Call, Recurrence, Step
from rebracket.ops.checks import Mode
from rebracket.ops.heads import repeat_heads
from rebracket.ops.lowering import make_call
from rebracket.ops.plan import in_mode
from rebracket.ops.precision import without_autocast
from rebracket.ops.state import Output, State
from rebracket.ops.stepper import Stepper
from rebracket.ops.write import Drawing, Sizes, WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.testing import law

MODES: tuple[tuple[Mode, int | None], ...] = (("parallel", None), ("chunk", 16), ("recurrent", None))
"""The ways to compute the same: C = T, C, C = 1."""
STEPS = ("step", "stepper")
"""And token after token, by `step` or by a prepared `Stepper`; with "_inplace" behind it into the state's tensors."""
LOW: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)


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
class Sample(law.Sample):
    """The arguments of one call of `linear_attention`."""

    carries: ClassVar[str] = "state"
    free: ClassVar[tuple[str, ...]] = ("q", "k", "v")

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

    def to(self, dtype: torch.dtype) -> Sample:
        """The same numbers rounded to a dtype; a state is float32, or float64 with float64."""
        held = torch.float64 if dtype == torch.float64 else torch.float32
        return self.map(lambda name, x: x.to(held if name.startswith("state.") else dtype))

    def entries(self, name: str, x: Tensor) -> int:
        """[H], [H,K] and the state have no time axis."""
        many = name in ("k", "v") or name.startswith("write.")
        return 0 if x.ndim < 3 or name.startswith("state.") else self.write.entries if many else 1

    def run(self, row: law.Row) -> Output:
        if row.mode.startswith(STEPS):
            return self.in_steps(row)
        return linear_attention(**vars(self), mode=row.mode, chunk=row.chunk, backend=row.backend)  # type: ignore[arg-type]

    def call(self, row: law.Row) -> Call:
        if row.mode.startswith(STEPS):
            return Step(recurrence(self.tokens(0, 1)), row.mode.endswith("inplace"))
        return in_mode(recurrence(self), row.mode, row.chunk)

    def define(self) -> Output:
        return definition.run(recurrence(self))

    def in_steps(self, row: law.Row) -> Output:
        """One token after the other."""
        assert self.state is not None
        inplace = row.mode.endswith("inplace")
        options: dict[str, Any] = {"normalize": self.normalize, "scale": self.scale, "backend": row.backend}
        prepared = row.mode.startswith("stepper")
        take: Any = Stepper(**options) if prepared else functools.partial(step, **options)
        if prepared and self.T:
            state = law.each(self.state, same_layout) if inplace else self.state
            with torch.no_grad():  # the first of its steps prepares the others
                take(**next(self.each_token()), state=state, inplace=inplace)
        out, state = [self.v.new_zeros(self.v.shape[0], 0, *self.v.shape[2:])], self.state
        for token in self.each_token():
            x, state = take(**token, state=state, inplace=inplace)
            out.append(x.unsqueeze(1))
        with without_autocast(out[0]):  # on a CPU it has no float16 to put together
            return Output(torch.cat(out, 1), state)

    def each_token(self) -> Iterator[dict[str, Any]]:
        """The arguments of `step` for each token."""
        given = {name: getattr(self, name) for name in ("q", "k", "v", "log_decay", "bonus")}
        rule = {f"write.{name}": x for name, x in vars(self.write).items()}
        split = {
            name: x.unbind(1) if n == 1 else x.unflatten(1, (self.T, n)).unbind(1)
            for name, x in (given | rule).items()
            if isinstance(x, Tensor) and (n := self.entries(name, x))
        }
        for t in range(self.T):
            given, rule = ({name: split[name][t] if name in split else x[name] for name in x} for x in (given, rule))
            write = type(self.write)(*rule.values())
            yield given | {"write": write}


def same_layout(x: Tensor) -> Tensor:
    """The same numbers with the same strides, in other memory."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def recurrence(s: Sample) -> Recurrence:
    """A sample as the call of the recurrence."""
    return make_call(**vars(s))


@final
class Draw(Drawing):
    """Random tensors in float64, shaped by letters."""

    def __init__(self, shape: Shape, seed: int):
        self.sizes = shape.sizes
        self.generator = torch.Generator().manual_seed(seed)
        self.keys = torch.zeros(())

    def normal(self, letters: str) -> Tensor:
        return torch.randn(self.sizes.shape(letters), generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float, letters: str) -> Tensor:
        return low + (high - low) * torch.rand(self.sizes.shape(letters), generator=self.generator, dtype=torch.float64)

    def unit(self, letters: str) -> Tensor:
        """Vectors of length 1."""
        return torch.nn.functional.normalize(self.normal(letters), dim=-1)

    def near_keys(self, letters: str) -> Tensor:
        heads = repeat_heads(self.keys, self.sizes.shape(letters)[2])
        return torch.nn.functional.normalize(heads + 0.1 * self.normal(letters), dim=-1)


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

MANY = (0, *torch.randint(0, 7, (100,), generator=torch.Generator().manual_seed(0)).cumsum(0).tolist())
"""The offsets of 100 sequences of random length."""
SPECIAL: dict[str, Shape] = {
    "steps": Shape(B=2, T=3, Hq=2, H=4, K=6, V=5),
    "small": Shape(B=1, T=7, Hq=1, H=2, K=3, V=4),
    "small_packed": Shape(B=1, T=8, Hq=2, H=2, K=3, V=5, offsets=(0, 0, 1, 7)),
    "T70": Shape(B=2, T=70, Hq=3, H=3, K=4, V=5),
    "T4096": Shape(B=1, T=4096, Hq=2, H=2, K=3, V=5),
    "T8192": Shape(B=1, T=8192, Hq=2, H=2, K=3, V=5),
    "T100": Shape(B=1, T=100, Hq=2, H=2, K=3, V=5),
    "packed_ends": Shape(B=1, T=12, Hq=3, H=3, K=4, V=5, offsets=(0, 0, 5, 5, 9, 9)),
    "packed_tokens": Shape(B=1, T=23, Hq=3, H=3, K=4, V=5, offsets=(0, 1, 2, 19, 20)),
    "packed_many": Shape(B=1, T=MANY[-1] + 3, Hq=3, H=3, K=4, V=5, offsets=MANY),
}
"""Sizes that single laws ask for."""


RULES: Registry[WriteRule] = Registry(writes.__name__, "write rule", WriteRule)
"""The write rules by their files."""
write_names = RULES.names
rule_module = RULES.module


def drawn(name: str, draw: Draw) -> WriteRule:
    """A sample of a write rule, as its file has it; one without fields is its own."""
    module, rule = RULES.module(name), RULES.load(name)
    if not dataclasses.fields(rule):  # type: ignore[arg-type]
        return rule()
    if "drawn" not in vars(module):
        raise LookupError(
            f"{module.__name__} says no sample for the laws; give it `def drawn(draw: Drawing) -> {rule.__name__}`"
        )
    return module.drawn(draw)


@functools.cache
def prototype(name: str) -> WriteRule:
    """Some instance of a write rule, to ask for what all of them share."""
    draw = Draw(SHAPES["plain"], 0)
    draw.keys = draw.unit("B,T,Hq,K")
    return drawn(name, draw)


@final
@dataclass(frozen=True)
class Case(law.Case):
    """A write rule, a decay, a shape, and what is asked for beside them."""

    write: str = "additive"
    decay: str = "none"
    shape: str = "plain"
    dtype: torch.dtype = torch.float64
    normalize: bool = False
    bonus: bool = False

    def __str__(self) -> str:
        extras = [name for name, on in (("normalize", self.normalize), ("bonus", self.bonus)) if on]
        return "-".join([self.write, self.decay, self.shape, *extras, str(self.dtype).removeprefix("torch.")])

    @classmethod
    def every(cls) -> Iterator[law.Row]:
        """The whole product in float64, and in chunks in two other dtypes; each rule and decay in the rest."""
        yield from in_every_mode(cases())
        yield from (law.Row(case, "chunk", 7) for case in few())
        yield from (law.Row(case) for dtype in (torch.float32, torch.bfloat16) for case in cases(dtype))
        yield from (row for dtype in LOW for row in in_every_mode(few(dtype)))

    @classmethod
    def few(cls, shapes: Sequence[str], dtypes: Sequence[torch.dtype]) -> Iterator[law.Row]:
        for shape, dtype in [(shapes[0], x) for x in dtypes] + [(x, dtypes[0]) for x in shapes[1:]]:
            yield from SPECIAL_ROWS[shape](dtype) if shape in SPECIAL_ROWS else in_every_mode(few(dtype, shape))

    @property
    def subject(self) -> str:
        return self.write

    @property
    def packed(self) -> bool:
        return self.shape.startswith(("packed", "small_packed"))

    def draw(self) -> Sample:
        return draw(self)

    def exact(self) -> dict[str, Tensor]:
        return exact(self)


@functools.cache
def exact(case: Case) -> dict[str, Tensor]:
    """The results of the token loop, computed once for all modes."""
    return law.Case.exact(case)


def draw(case: Case) -> Sample:
    """The sample of a case: the same numbers every time, rounded to its dtype."""
    return sample(case, (SHAPES | SWEEP | SPECIAL)[case.shape])


def sample(case: Case, shape: Shape) -> Sample:
    """A sample of a case in any shape."""
    draw = Draw(shape, zlib.crc32(str(replace(case, dtype=torch.float64)).encode()))
    times = f"T*{prototype(case.write).entries}"
    draw.keys = features(draw, f"B,{times},Hq,K", case.normalize)
    return Sample(
        features(draw, "B,T,Hq,K", case.normalize),
        draw.keys,
        draw.normal(f"B,{times},H,V"),
        log_decay=DECAYS[case.decay](draw),
        write=drawn(case.write, draw),
        bonus=draw.normal("H,K") if case.bonus else None,
        normalize=case.normalize,
        state=initial(draw, shape.sequences, case.normalize),
        cu_seqlens=shape.cu_seqlens(),
    ).to(case.dtype)


def features(draw: Draw, letters: str, positive: bool) -> Tensor:
    """Unit vectors, or positive ones for a normalizer."""
    return draw.uniform(0.1, 1.0, letters) if positive else draw.unit(letters)


def flushed(draw: Draw, log_decay: Tensor) -> Tensor:
    """A decay of which one entry in ten erases, by -inf or by -1e4."""
    chance = torch.rand(log_decay.shape, generator=draw.generator, dtype=torch.float64)
    return log_decay.masked_fill(chance < 0.1, -1e4).masked_fill(chance < 0.05, -torch.inf)


def initial(draw: Draw, N: int, key_sum: bool) -> State:
    """A state that is not zero."""
    H, K, V = draw.sizes.shape("H,K,V")
    memory = torch.randn(N, H, K, V, generator=draw.generator, dtype=torch.float64)
    total = 0.1 + torch.rand(N, H, K, generator=draw.generator, dtype=torch.float64)
    return State(0.5 * memory, total if key_sum else None)


def cases(dtype: torch.dtype = torch.float64, shapes: Iterable[str] = SHAPES) -> Iterator[Case]:
    """Every write rule with every decay in every shape; additive rules also with a normalizer and with a bonus."""
    for write, decay, shape in itertools.product(write_names(), DECAYS, shapes):
        plain = Case(write, decay, shape, dtype)
        yield plain
        if not prototype(write).reads_back:
            yield replace(plain, normalize=True)
            yield replace(plain, bonus=True)


def each_of(
    writes: Iterable[str] = ("additive",),
    decays: Iterable[str] = ("none",),
    shapes: Iterable[str] = ("plain",),
    dtypes: Iterable[torch.dtype] = (torch.float64,),
    normalize: bool = False,
) -> list[Case]:
    """Every combination of some values."""
    return [Case(*axes, normalize=normalize) for axes in itertools.product(writes, decays, shapes, dtypes)]


def in_every_mode(*found: Iterable[Case], chunk: int = 16) -> Iterator[law.Row]:
    """Rows for cases, in each of the modes; in chunks of this many tokens."""
    return (law.Row(case, mode, size and chunk) for case in itertools.chain(*found) for mode, size in MODES)


def in_steps(found: Iterable[Case]) -> Iterator[law.Row]:
    """Rows for cases, one token after the other."""
    return (law.Row(case, mode, None) for case in found for mode in STEPS)


def few(dtype: torch.dtype = torch.float64, shape: str = "plain") -> list[Case]:
    """Every write rule once and every decay once, for laws that need no more."""
    rules = [Case(write, "token", shape, dtype) for write in write_names()]
    decays = [Case("delta", decay, shape, dtype) for decay in DECAYS if decay != "token"]
    bonus = Case("additive", "channel", shape, dtype, bonus=True)
    return [*rules, *decays, bonus, Case("additive", "head", shape, dtype, normalize=True)]


def smooth(found: Iterable[Case]) -> Iterator[law.Row]:
    """Erasing decays have no finite differences."""
    return in_every_mode((case for case in found if "flush" not in case.decay), chunk=3)


def packings(dtype: torch.dtype) -> Iterator[law.Row]:
    """Empty sequences at every place, sequences of one token, and in chunks 100 sequences of random length."""
    yield from in_every_mode(few(dtype, "packed_ends"), few(dtype, "packed_tokens"))
    yield from (law.Row(case) for case in few(dtype, "packed_many") if "channel" in case.decay)


SPECIAL_ROWS: dict[str, Callable[[torch.dtype], Iterable[law.Row]]] = {
    "plain": lambda x: (*in_every_mode(few(x)), *in_steps(few(x, "steps"))),
    "packings": packings,
    "small": lambda x: in_every_mode(few(x, "small"), chunk=3),
    "small_packed": lambda x: in_every_mode(few(x, "small_packed"), chunk=3),
    "smooth": lambda x: smooth(case for shape in ("small", "small_packed") for case in few(x, shape)),
    "smooth_product": lambda x: smooth(
        (
            *(replace(case, shape="small") for case in cases(x, ("plain",))),
            *(Case(write, "channel", "small_packed", x) for write in write_names()),
        )
    ),
}
"""The rows of shapes that have rows of their own kind."""
