"""Time against T, and where softmax is overtaken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rebracket.base.files import replacing
from rebracket.bench.case import TITLES
from rebracket.bench.crossover import SOFTMAX, Line, crossover, lines, softmax_of
from rebracket.bench.suite import CHANNELS, HEADS, SuiteResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("tab:blue", "tab:cyan", "tab:green", "tab:orange", "tab:red", "tab:purple")


def picture(result: SuiteResult, path: Path) -> bool:
    """Draws the sweep on its first thread count as SVG; False where there is none, or no matplotlib."""
    found = [line for line in lines(result.sweep) if line.threads == result.limits[0].threads]
    try:
        import matplotlib
    except ImportError:
        return False
    if not found:
        return False
    with matplotlib.rc_context({"svg.hashsalt": "rebracket", "svg.fonttype": "none"}):
        draw(found, path)
    return True


def draw(found: Sequence[Line], path: Path) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    modes = list(dict.fromkeys(line.mode for line in found))
    figure = Figure(figsize=(5.5 * len(modes), 4.5), layout="constrained")
    for place, mode in enumerate(modes):
        axes = figure.add_subplot(1, len(modes), place + 1)
        panel([line for line in found if line.mode == mode], axes)
        axes.set(title=f"{TITLES[mode]}, {HEADS} heads of {CHANNELS}", xlabel="T, tokens", ylabel="milliseconds")
    with replacing(path) as beside:
        FigureCanvasSVG(figure).print_svg(str(beside), metadata={"Date": None})


def panel(found: Sequence[Line], axes: Axes) -> None:
    """The lines of one mode; a ring marks where each crosses that of softmax."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    colors = iter(COLORS)
    for line in found:
        color = "black" if line.rule == SOFTMAX else next(colors, "0.5")
        at = crossover(line.seconds, softmax_of(found, line))
        label = f"{line.title}, from T = {at:,.0f}" if at else line.title
        axes.plot(list(line.seconds), [1e3 * x for x in line.seconds.values()], color=color, label=label)
        if at:
            axes.plot(at, 1e3 * between(line.seconds, at), "o", color=color, markerfacecolor="white")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def between(seconds: Mapping[int, float], T: float) -> float:
    """The height of a line at T, on its logarithms; T is not one of its ends."""
    low, high = max(x for x in seconds if x < T), min(x for x in seconds if x >= T)
    share = math.log(T / low) / math.log(high / low)
    return seconds[low] ** (1 - share) * seconds[high] ** share
