"""Measured numbers in figures: every seed as a dot, means as lines or bars with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rebracket.lab.base.estimate import Estimate
from rebracket.lab.base.verdict import ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOT, FAINT = 9, 0.45
"""Area of the dot of a seed in square points, and how much of it one sees."""


def draw_line(
    axes: Axes, x: Sequence[float], found: Sequence[float], *, color: str, label: str, style: str = "-"
) -> None:
    """The means over seeds as a line, and every seed as a dot.

    A point that stands alone has no line to be seen by: it is drawn larger and above the others.
    """
    alone = len(x) == 1
    axes.plot(
        x,
        list(map(float, found)),
        f"o{style}",
        color=color,
        label=label,
        markersize=9 if alone else 4,
        zorder=4 + alone,
    )
    for place, number in zip(x, found, strict=True):
        draw_seeds(axes, place, number, color)


def draw_seeds(axes: Axes, x: float, number: float, color: str) -> None:
    """Every seed of a number as a dot above x; nothing where it is exact."""
    if isinstance(number, Estimate) and len(number.by_seed) > 1:
        axes.scatter([x] * len(number.by_seed), list(number.by_seed.values()), DOT, color, alpha=FAINT, zorder=3)


def draw_bars(
    axes: Axes,
    names: Sequence[str],
    found: Sequence[float],
    *,
    color: str,
    label: str = "",
    shift: float = 0.0,
    width: float = 0.7,
) -> None:
    """Bars from the left, the first at the top, with 2 standard errors to either side and every seed as a dot."""
    places = [place + shift for place in range(len(names))]
    axes.barh(places, list(map(float, found)), width, color=color, alpha=0.75, label=label or None)
    for place, number in zip(places, found, strict=True):
        if isinstance(number, Estimate) and len(number.by_seed) > 1:
            axes.errorbar(float(number), place, xerr=ERRORS * number.error, color="black", capsize=3, linewidth=1)
            axes.scatter(
                list(number.by_seed.values()), [place] * len(number.by_seed), DOT, "black", alpha=FAINT, zorder=3
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_axisbelow(True)


def draw_legend_outside(axes: Axes) -> None:
    """The legend to the right of a panel, where no data are."""
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
