"""The loss curve: a picture if matplotlib is there, else drawn in text."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rebracket.base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 72, 16


@final
@dataclass(frozen=True)
class Curve:
    """Bits per byte over a run.

    Args:
        train: (step, bits per byte) of single steps.
        held_out: (step, bits per byte) of validations.
        levels: name to bits per byte of what the run is compared with.
    """

    train: Sequence[tuple[int, float]]
    held_out: Sequence[tuple[int, float]]
    levels: Mapping[str, float]

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], levels: Mapping[str, float]) -> "Curve":
        """The curve in the records of a metrics file.

        Example:
            >>> Curve.of([{"kind": "train", "step": 1, "bits_per_byte": 8.0}], {}).train
            [(1, 8.0)]
        """
        points = [(record["kind"], (record["step"], record["bits_per_byte"])) for record in records if plotted(record)]
        return cls(
            [point for kind, point in points if kind == "train"],
            [point for kind, point in points if kind == "validation"],
            levels,
        )

    def ending(self, step: int, value: float) -> "Curve":
        """The curve with one more validation at its end."""
        return replace(self, held_out=[*self.held_out, (step, value)])


def draw(curve: Curve, folder: Path) -> Path:
    """Draws a curve into a folder.

    Args:
        curve: with at least one training step.
        folder: where to.

    Returns:
        `curve.png`, or `curve.txt` where matplotlib is not installed.

    Cost: about 2 s with matplotlib, once.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return write(folder / "curve.txt", text(curve))
    return picture(curve, folder / "curve.png")


def text(curve: Curve, width: int = WIDTH, height: int = HEIGHT) -> str:
    """A curve in characters: one column for each stretch of steps, its mean as a bar of eighths.

    Args:
        curve: with at least one training step.
        width: columns of the plot.
        height: lines of the plot.

    Returns:
        Lines with the scale at their left and the steps below.

    Example:
        >>> print(text(Curve([(1, 8.0), (2, 4.0), (3, 1.0)], [], {}), width=3, height=2))
        8.00 |█
        0.00 |██▂
              steps 1 to 3, bits per byte
    """
    means = columns([value for _, value in curve.train], width)
    top = max(means)
    rows = [
        f"{top if row == height - 1 else top * row / height:4.2f} |" + bars(means, row, top / height)
        for row in reversed(range(height))
    ]
    return "\n".join([*rows, f"      steps {curve.train[0][0]:,} to {curve.train[-1][0]:,}, bits per byte"])


def columns(values: Sequence[float], width: int) -> list[float]:
    """The means of up to `width` stretches of values."""
    count = min(width, len(values))
    edges = [len(values) * column // count for column in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def bars(means: Sequence[float], row: int, unit: float) -> str:
    """One line of a bar plot: how much of each bar stands in it, in eighths of a character."""
    filled = [min(8, max(0, round(8 * (mean / unit - row)))) for mean in means]
    return "".join(" ▁▂▃▄▅▆▇█"[eighths] for eighths in filled).rstrip()


def picture(curve: Curve, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    plot(curve, figure.add_subplot())
    with replacing(path) as beside:
        FigureCanvasAgg(figure).print_png(str(beside))
    return path


def plot(curve: Curve, axes: "Axes") -> None:
    axes.plot(*zip(*curve.train, strict=True), color="tab:blue", linewidth=0.8, alpha=0.5, label="training, each step")
    if curve.held_out:
        axes.plot(*zip(*curve.held_out, strict=True), color="tab:orange", marker="o", markersize=3, label="held out")
    for place, (name, level) in enumerate(curve.levels.items()):
        axes.axhline(
            level, color="0.3", linestyle=("--", ":", "-.")[place % 3], linewidth=1, label=f"{name}, {level:.2f}"
        )
    axes.set(xlabel="step", ylabel="bits per byte", ylim=(0, min(9, 1.1 * max(value for _, value in curve.train))))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def plotted(record: Mapping[str, Any]) -> bool:
    return record["kind"] in ("train", "validation") and "bits_per_byte" in record


def write(path: Path, contents: str) -> Path:
    with replacing(path) as beside:
        beside.write_text(contents + "\n", encoding="utf-8")
    return path
