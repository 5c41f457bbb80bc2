"""The loss curve of a finished run, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebracket.base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(records: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draws the bits per byte of a finished run to a PNG file; False where matplotlib is not installed.

    Args:
        records: of the run's metrics, the result last.
        path: the file.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    plot(records, figure.add_subplot())
    with replacing(path) as beside:
        FigureCanvasAgg(figure).print_png(str(beside))
    return True


def plot(records: Sequence[dict[str, Any]], axes: "Axes") -> None:
    steps, train = points(records, "train")
    axes.plot(steps, train, color="tab:blue", linewidth=0.8, alpha=0.5, label="training, each step")
    axes.plot(*points(records, "validation", "result"), color="tab:orange", marker="o", markersize=3, label="held out")
    result = records[-1]
    for name, level, style in (("xz alone", "xz_alone", "--"), ("xz after training text", "xz_after", ":")):
        value = result[level]
        axes.axhline(value, color="0.3", linestyle=style, linewidth=1, label=f"{name}, {value:.2f}")
    axes.set(xlabel="step", ylabel="bits per byte", ylim=(0, min(9, 1.1 * max(train, default=9))))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def points(records: Sequence[dict[str, Any]], *kinds: str) -> tuple[list[int], list[float]]:
    """The steps and the bits per byte of some kinds of records.

    Example:
        >>> points([{"kind": "start", "step": 0}, {"kind": "train", "step": 1, "bits_per_byte": 8.0}], "train")
        ([1], [8.0])
    """
    found = [record for record in records if record["kind"] in kinds and "bits_per_byte" in record]
    return [record["step"] for record in found], [record["bits_per_byte"] for record in found]
