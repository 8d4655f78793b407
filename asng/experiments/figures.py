"""Shared by the figures of all experiments: colors, drawings in inches, and how they are written."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from asng._files import atomic_write

# Okabe and Ito's colors, which the color-blind can tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GRAY = "0.35"  # of text that stands back
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure whose unit is an inch; (0, 0) is its upper left corner, y grows upward."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(-height, 0))
    axes.set_axis_off()
    return figure, axes


def tint(color: str, part: float) -> str:
    """A color mixed with white, of which it keeps this part.

    >>> tint("black", 0.25)
    '#bfbfbf'
    """
    red, green, blue = (1 - part + part * value for value in to_rgb(color))
    return to_hex((red, green, blue))


def save_figure(figure: Figure, folder: Path, name: str, *, dpi: int) -> list[Path]:
    """Write NAME.svg, in which text stays text, and NAME.png; the same figure gives the same files. Returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "asng"}):
        with atomic_write(paths[0]) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
        with atomic_write(paths[1]) as file:
            figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    return paths
