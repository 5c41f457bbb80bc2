"""How time and memory grow with the length of a text."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rebracket.base.resources import first_call
from rebracket.bench.crossover import crossover
from rebracket.lab.base.drawing import draw_legend_outside
from rebracket.lab.base.experiment import Cell, Experiment, Result, Size, plain_means
from rebracket.lab.base.pairs import generator
from rebracket.lab.base.verdict import Check, Verdict
from rebracket.ops.attention import linear_attention
from rebracket.ops.checks import Mode
from rebracket.ops.softmax import SoftmaxOutput, softmax_attention
from rebracket.ops.state import Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K, V = 32, 48
SHORTEST = 32
OFF: Mapping[str, float] = {"seconds": 0.3, "bytes": 0.25}
"""How far a slope may be off; slopes of 1 and 2 stay distinct."""
POINTS = 3
"""How many of the longest texts a slope is fitted to, where the fixed cost of a call no longer shows."""
ROUNDS = 5
SAMPLE = 0.005
"""The least core seconds of a sample: a shorter call is repeated within it."""


@final
@dataclass(frozen=True)
class Way:
    """One way to compute attention, and the powers of T by which its time and its memory grow."""

    name: str
    time: int
    memory: int
    mode: Mode = "auto"
    backend: str = "auto"
    timed: int = POINTS
    """How many texts the slope of its time is fitted to."""
    weighed: int = POINTS
    """And the slope of its memory."""


SOFTMAX = Way("softmax", 2, 1, weighed=6)
"""It takes little memory: over a wider range a stray megabyte matters less."""
PARALLEL = Way("parallel", 2, 2, "parallel", "reference", timed=2)
"""Its time has fewer points: the weights of a third, shorter text would fit into memory that was freed before."""
RECURRENT = Way("recurrent", 1, 1, "recurrent", "reference")
CHUNK = Way("chunk", 1, 1, "chunk", "reference")
FASTEST = Way("fastest", 1, 1)
"""The default of a call: chunks on the fastest backend."""
WAYS = (SOFTMAX, PARALLEL, RECURRENT, CHUNK, FASTEST)
LONGEST: Mapping[Size, Cell] = {
    "tiny": {"softmax": 16384, "parallel": 4096, "recurrent": 8192, "chunk": 32768, "fastest": 131072},
    "quick": {"softmax": 16384, "parallel": 8192, "recurrent": 16384, "chunk": 65536, "fastest": 131072},
    "full": {"softmax": 32768, "parallel": 8192, "recurrent": 65536, "chunk": 524288, "fastest": 1048576},
}
COUNTED = "theory: the bytes are counted"
TITLES = {
    "seconds": "Softmax and the parallel form take T^2 time",
    "bytes": "Only T x T weights take T^2 memory",
    "kept": "Only softmax keeps more for each token",
}
LABELS = {"seconds": "core seconds", "bytes": "bytes beyond the inputs", "kept": "bytes kept for the next token"}
Call = Callable[[], Output | SoftmaxOutput]
Case = tuple[str, int]
"""The name of a way, and T."""


@final
class Cost(Experiment):
    """Time, peak memory and what is kept for the next token, of softmax and of linear attention in each mode."""

    question = "How do time and memory grow with the length of a text, and from where on is linear attention cheaper?"
    claim = (
        "In log-log the core seconds of softmax attention and the parallel form have slope 2, those of chunks and of "
        "the recurrent form slope 1 (within 0.3). Memory beyond the inputs has slope 2 only where all T x T weights "
        "are held at once, as the parallel form does; the softmax that torch offers visits them in blocks and has "
        "slope 1 like the others (within 0.25). What is kept for the next token is 4 (K + V) bytes for every token "
        "under softmax, and the same number of bytes at every T otherwise. With heads of 32 and 48, chunks made of "
        "torch operations are faster than softmax from about T = 1000, those of the fastest backend from about 100; "
        "from 4096 at the latest on any machine."
    )

    def grid(self, size: Size) -> list[Cell]:
        return [LONGEST[size]]

    def measure(self, cell: Cell) -> Mapping[str, float]:
        """All ways and texts in one process: only within one are their times comparable."""
        calls = calls_of({way: lengths(int(cell[way.name])) for way in WAYS}, int(cell["seed"]))
        kept = {case: float(call().state.nbytes) for case, call in calls.items()}
        # Memory before time: many calls fragment the heap, and later ones find space there that is not counted.
        last = {(way.name, T) for way in WAYS for T in lengths(int(cell[way.name]))[-way.weighed :]}
        nbytes = {case: added(call) for case, call in calls.items() if case in last}
        seconds = timed(calls)
        found = {"seconds": seconds, "bytes": nbytes, "kept": kept}
        return {f"{name} {what} {T}": x for what, all_ in found.items() for (name, T), x in all_.items()}

    def verdict(self, results: Sequence[Result]) -> Verdict:
        results = plain_means(results)
        (result,) = results
        states = [x for way in WAYS if way is not SOFTMAX for x in series(result, way, "kept").values()]
        return Verdict.of(
            *(slope_check(result, way, "seconds", "time", way.time) for way in WAYS),
            *(slope_check(result, way, "bytes", "memory", way.memory) for way in WAYS),
            Check(
                "slope of what softmax keeps",
                slope(series(result, SOFTMAX, "kept"), 2),
                0.999,
                1.001,
                1.0,
                source=COUNTED,
            ),
            Check("largest state over smallest, over all T and modes", max(states) / min(states), 1, 1, 1.0, COUNTED),
            *(
                Check(
                    f"T from which {way.name} beats softmax",
                    crossing(result, way),
                    high=4096,
                    source="measured: 100 to 1,000 on several machines",
                )
                for way in (CHUNK, FASTEST)
            ),
        )

    def draw(self, results: Sequence[Result], figure: Figure) -> None:
        (result,) = results
        for axes, what in zip(figure.subplots(1, 3), ("seconds", "bytes", "kept"), strict=True):
            for place, way in enumerate(WAYS):
                found = series(result, way, what)
                axes.plot(list(found), list(found.values()), "o-", markersize=3, color=f"C{place}", label=way.name)
            axes.set(xscale="log", yscale="log", xlabel="T, tokens", ylabel=LABELS[what])
            axes.set_title(TITLES[what], fontsize="medium")
        for place, way in ((WAYS.index(x), x) for x in (CHUNK, FASTEST)):
            T = crossing(result, way)
            figure.axes[0].axvline(T, color=f"C{place}", linestyle=":")
            figure.axes[-1].plot([], [], ":", color=f"C{place}", label=f"{way.name} faster\nfrom T = {T:.0f}")
        draw_legend_outside(figure.axes[-1])


def lengths(most: int) -> list[int]:
    """Powers of two times the shortest text, up to the longest."""
    return [SHORTEST * 2**i for i in range(int(math.log2(most / SHORTEST)) + 1)]


def calls_of(texts: Mapping[Way, Sequence[int]], seed: int) -> dict[Case, Call]:
    """Each way over each of its texts, all prefixes of one."""
    draw, most = generator(seed), max(map(max, texts.values()))
    q, k, v = (torch.rand(1, most, 1, D, generator=draw) for D in (K, K, V))
    return {(way.name, T): call_of(way, q[:, :T], k[:, :T], v[:, :T]) for way, all_ in texts.items() for T in all_}


def call_of(way: Way, q: Tensor, k: Tensor, v: Tensor) -> Call:
    if way is SOFTMAX:
        return lambda: softmax_attention(q, k, v)
    return lambda: linear_attention(q, k, v, normalize=True, mode=way.mode, backend=way.backend)


def timed(calls: Mapping[Case, Call]) -> dict[Case, float]:
    """Medians of core seconds, measured in turns; other processes do not count."""
    repeats = {case: enough(call) for case, call in calls.items()}
    turns = [{case: sample(call, repeats[case]) for case, call in calls.items()} for _ in range(ROUNDS)]
    return {case: statistics.median(turn[case] for turn in turns) for case in calls}


def enough(call: Call) -> int:
    """How many calls make a sample; the first one, which prepares caches, does not count."""
    call()
    return max(1, round(SAMPLE / max(sample(call, 1), 1e-6)))


def sample(call: Call, repeats: int) -> float:
    """Core seconds of one call, over several."""
    started = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - started) / repeats


def added(call: Call) -> float:
    """The peak bytes that a call adds to the process, outputs included: the least of five calls."""
    return float(min(first_call(call).nbytes for _ in range(5)))


def series(result: Result, way: Way, what: str) -> dict[int, float]:
    """What was measured of a way by T, in order."""
    found = {T: result.numbers.get(f"{way.name} {what} {T}") for T in lengths(int(result.cell[way.name]))}
    return {T: x for T, x in found.items() if x is not None}


def slope(found: Mapping[int, float], points: int) -> float:
    """The power of T with which a number grows at the longest texts; NaN where the system does not tell it."""
    T = sorted(found)[-points:]
    if not all(found[t] > 0 for t in T):
        return math.nan
    return statistics.linear_regression([math.log(t) for t in T], [math.log(found[t]) for t in T]).slope


def slope_check(result: Result, way: Way, what: str, word: str, power: int) -> Check:
    found = slope(series(result, way, what), way.timed if what == "seconds" else way.weighed)
    source = "theory; the margin keeps slopes of 1 and 2 apart"
    return Check(f"slope of the {word} of {way.name}", found, power - OFF[what], power + OFF[what], power, source)


def crossing(result: Result, way: Way) -> float:
    """The T from which on a way is faster than softmax; NaN where it never is."""
    found = crossover(series(result, way, "seconds"), series(result, SOFTMAX, "seconds"))
    return math.nan if found is None else found
