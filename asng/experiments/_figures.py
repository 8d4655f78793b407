"""Shared by the figures of all experiments: colors, drawings in inches, how they are written, and training curves."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from asng._files import atomic_write

# Okabe and Ito's colors, which the color-blind can tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
PANELS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "psnr": "PSNR [dB]",
    "ssim": "SSIM",
    "probability": "largest probability",
}
STROKES = ("-", "--", ":")
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


def draw_curves(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write curves.svg and curves.png of the records of a run, a panel for each kind of metric; returns the paths.

    Records without anything to draw, or none at all, are an error.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    panels = {ending: [name for name in names if name.endswith(ending)] for ending in PANELS}
    shown = {ending: metrics for ending, metrics in panels.items() if metrics}
    if not shown:
        raise ValueError(f"there is nothing to draw in {names}; records have names that end in {', '.join(PANELS)}")
    figure = Figure(figsize=(4 * len(shown), 3.2), layout="constrained")
    for index, (ending, metrics) in enumerate(shown.items(), start=1):
        _draw_panel(figure.add_subplot(1, len(shown), index), records, ending, metrics)
    return save_figure(figure, folder, "curves", dpi=150)


def _draw_panel(axes: Any, records: Sequence[Mapping[str, Any]], ending: str, metrics: Sequence[str]) -> None:
    is_share = ending == "accuracy"
    for metric, stroke in zip(metrics, cycle(STROKES), strict=False):
        points = [(record["step"], record[metric]) for record in records if record.get(metric) is not None]
        if points:
            steps, numbers = zip(*points, strict=True)
            shown = [100 * number if is_share else number for number in numbers]
            label = metric.removesuffix(ending).replace("_", " ").strip()
            axes.plot(steps, shown, stroke, color=BLUE, label=label, marker="o"[len(points) > 1 :])
    axes.set(xlabel="step", ylabel=PANELS[ending] + (" [%]" if is_share else ""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)
