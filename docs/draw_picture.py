"""Draws docs/picture.svg: the same three matrices, bracketed either way."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

TOKENS, WIDTH = 14, 3
CELL = 0.24
INK, QUIET = "#1f2933", "#7b8794"
QUERY, KEY, VALUE = "#3b82c4", "#d9822b", "#3f9c62"
SCORE, STATE = "#b4465a", "#6d4aa8"
UPDATE = r"\mathbf{S}\;\leftarrow\;\mathbf{S} + \mathbf{k}_t\,\mathbf{v}_t^{\top}"
READ = r"\mathbf{o}_t = \mathbf{S}^{\top}\mathbf{q}_t"


def shades(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.3, 0.95, (rows, columns))


def weights() -> np.ndarray:
    """Rows of a causal softmax: each token looks at those before it."""
    scores = np.random.default_rng(3).normal(size=(TOKENS, TOKENS)) * 1.2
    lower = np.tril(np.exp(scores))
    return 0.12 * np.tri(TOKENS) + 0.88 * lower / lower.max(axis=1, keepdims=True)


def matrix(axes: Axes, left: float, middle: float, alphas: np.ndarray, colour: str, name: str, shape: str) -> float:
    """One matrix of coloured cells with its name above and its shape below; returns its right edge."""
    rows, columns = alphas.shape
    top = middle + rows * CELL / 2
    for (i, j), alpha in np.ndenumerate(alphas):
        corner = (left + j * CELL, top - (i + 1) * CELL)
        axes.add_patch(Rectangle(corner, CELL, CELL, facecolor=colour, alpha=float(alpha), edgecolor="none"))
    size = (columns * CELL, rows * CELL)
    axes.add_patch(Rectangle((left, top - size[1]), *size, fill=False, edgecolor=colour, linewidth=1.1))
    axes.text(left + size[0] / 2, top + 0.13, name, ha="center", va="bottom", fontsize=15, color=INK)
    axes.text(left + size[0] / 2, top - size[1] - 0.12, shape, ha="center", va="top", fontsize=10, color=QUIET)
    return left + size[0]


def sign(axes: Axes, x: float, y: float, text: str, size: float, colour: str = INK) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)


def bracket(axes: Axes, x: float, y: float, half: float, turn: int) -> None:
    """A round bracket: an arc that opens to the right (turn 1) or to the left (turn -1)."""
    angle = np.linspace(-1.0, 1.0, 50)
    axes.plot(x - turn * 0.16 * np.cos(angle * np.pi / 2), y + half * angle, color=INK, linewidth=2.2)


def panel(axes: Axes, middle: float, colour: str, title: str, line: str) -> None:
    """A tinted box with a title and one line that says what happens in it."""
    box = FancyBboxPatch((0.15, middle - 2.35), 13.2, 5.35, boxstyle="round,pad=0,rounding_size=0.18")
    box.set(facecolor=colour, edgecolor="none", zorder=-1)
    axes.add_patch(box)
    axes.text(0.5, middle + 2.66, title, va="center", fontsize=15, color=INK, fontweight="bold")
    axes.text(3.55, middle + 2.65, line, va="center", fontsize=12.5, color=INK)


def softmax_row(axes: Axes, middle: float) -> None:
    line = "softmax stands between the products, so all scores come first and every key and value must stay"
    panel(axes, middle, "#fbf1f2", "Softmax attention", line)
    half = TOKENS * CELL / 2 + 0.1
    sign(axes, 0.72, middle, "softmax", 12)
    bracket(axes, 1.4, middle, half, 1)
    matrix(axes, 1.55, middle, shades(TOKENS, WIDTH, 0), QUERY, r"$\mathbf{Q}$", "T × K")
    sign(axes, 2.45, middle, "·", 18)
    matrix(axes, 2.62, middle, shades(WIDTH, TOKENS, 1), KEY, r"$\mathbf{K}^{\!\top}$", "K × T")
    bracket(axes, 6.13, middle, half, -1)
    sign(axes, 6.52, middle, "·", 18)
    matrix(axes, 6.75, middle, shades(TOKENS, WIDTH, 2), VALUE, r"$\mathbf{V}$", "T × V")
    sign(axes, 7.9, middle, "=", 18)
    matrix(axes, 8.35, middle, weights(), SCORE, "every pair of tokens", "T × T: grows with the square of the length")
    sign(axes, 11.98, middle, "·", 18)
    matrix(axes, 12.25, middle, shades(TOKENS, WIDTH, 2), VALUE, r"$\mathbf{V}$", "T × V")


def linear_row(axes: Axes, middle: float) -> None:
    line = "no softmax: bracket the other way, one token after another, and what is kept is one small matrix"
    panel(axes, middle, "#f3f0fa", "Linear attention", line)
    half = TOKENS * CELL / 2 + 0.1
    matrix(axes, 1.55, middle, shades(TOKENS, WIDTH, 0), QUERY, r"$\mathbf{Q}$", "T × K")
    sign(axes, 2.45, middle, "·", 18)
    bracket(axes, 2.8, middle, half, 1)
    matrix(axes, 2.9, middle, shades(WIDTH, TOKENS, 1), KEY, r"$\mathbf{K}^{\!\top}$", "K × T")
    sign(axes, 6.43, middle, "·", 18)
    matrix(axes, 6.58, middle, shades(TOKENS, WIDTH, 2), VALUE, r"$\mathbf{V}$", "T × V")
    bracket(axes, 7.43, middle, half, -1)
    sign(axes, 7.9, middle, "=", 18)
    matrix(axes, 8.35, middle, shades(TOKENS, WIDTH, 0), QUERY, r"$\mathbf{Q}$", "T × K")
    sign(axes, 9.35, middle, "·", 18)
    matrix(axes, 9.7, middle, shades(WIDTH, WIDTH, 4), STATE, "the state", "K × V: never grows")
    axes.text(9.7, middle - 1.42, f"${UPDATE}\\qquad {READ}$", va="center", fontsize=14, color=STATE)


def main() -> None:
    """Draws the picture beside this script."""
    mpl.rcParams.update({"svg.hashsalt": "rebracket", "mathtext.fontset": "cm", "font.family": "DejaVu Sans"})
    figure = plt.figure(figsize=(13.5, 11.15), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 13.5), ylim=(0, 11.15))
    axes.set_axis_off()
    softmax_row(axes, 8.0)
    linear_row(axes, 2.5)
    figure.savefig(Path(__file__).with_name("picture.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
