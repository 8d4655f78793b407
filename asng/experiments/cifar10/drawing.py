"""Pictures of found cells: inputs, nodes, operations, and how likely they were.

One unit of a drawing is one inch, so that text and boxes always fit each other. All that colors show
is also written in words.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Outline

from asng._ragged import Array
from asng.experiments._figures import BLUE, GRAY, ORANGE, SKY, VERMILION, canvas, save_figure, tint
from asng.experiments.cifar10.picture import LABELS, STATES, Box, CellPicture, Way
from asng.experiments.cifar10.space import CELL_KINDS, NODES, OPERATIONS, SPACE, Paths, cell_paths

Probabilities = Mapping[str, Sequence[float] | Array]  # per decision, one for each of its choices

OPERATION_COLORS = {
    "identity": "#999999",
    "avg_pool": SKY,
    "max_pool": BLUE,
    "sep_conv3": ORANGE,
    "sep_conv5": VERMILION,
}
TEXT_LOOKS: dict[str, dict[str, Any]] = {
    "small": {"size": 6},
    "start": {"ha": "left"},
    "unused": {"color": GRAY},
    "bold": {"weight": "bold"},
}
BOX_LOOKS: dict[str, dict[str, Any]] = {
    "end": {"fc": "white", "ec": "black"},
    "end unused": {"fc": "white", "ec": GRAY, "ls": (0, (3, 2))},
    "sum": {"fc": "0.93", "ec": "black"},
    "node": {"fc": "white", "ec": "black", "boxstyle": "circle,pad=0"},
}

# Inches: of all figures, then of the table.
TITLE, MARGIN = 0.65, 0.3
LABEL, COLUMN, ROW, BAR = 0.55, 0.52, 0.29, 0.42


def probabilities_figure(values: Mapping[str, Any], probabilities: Probabilities) -> Figure:
    """All probabilities as a table with bars: a row per slot, a column per choice, what was chosen in bold."""
    operations = len(OPERATIONS) * COLUMN
    panel = LABEL + (1 + NODES) * COLUMN + MARGIN / 2 + operations
    figure, axes = canvas(2 * panel + 3 * MARGIN, TITLE + 2 * NODES * ROW + 0.45)
    for kind, left in zip(CELL_KINDS, (MARGIN, panel + 2 * MARGIN), strict=True):
        axes.text(left, -0.2, f"{kind.capitalize()} cell", size=10, weight="bold", va="center")
        for node in range(NODES):
            y = -TITLE - 2 * node * ROW
            axes.plot([left, left + panel], [y, y], color="0.8", lw=0.6)
            axes.text(left, y - ROW, STATES[2 + node], size=7, va="center")
        for part, start in (("in", left + LABEL), ("op", left + panel - operations)):
            names = [f"{kind}{node}.{part}{slot}" for node in range(NODES) for slot in (1, 2)]
            _table(axes, start, {name: probabilities[name] for name in names}, values)
    note = "Bars are probabilities, what was chosen in bold; a tick marks where all choices are equally likely."
    axes.text(figure.get_figwidth() / 2, 0.2 - figure.get_figheight(), note, size=7, ha="center", va="center")
    return figure


def _table(axes: Axes, left: float, rows: Probabilities, values: Mapping[str, Any]) -> None:
    """The distributions of all inputs or all operations of a cell, one below the other."""
    scale: list[list[tuple[float, float]]] = []
    longest = max((SPACE[name].choices for name in rows), key=len)
    for column, choice in enumerate(longest):
        heading = LABELS.get(choice) or STATES[choice].removeprefix("cell ")
        axes.text(left + column * COLUMN, 0.1 - TITLE, heading, size=6.5, color=GRAY, va="center")
    for row, (name, array) in enumerate(rows.items()):
        y = -TITLE - (row + 0.5) * ROW
        for column, (choice, probability) in enumerate(zip(SPACE[name].choices, array, strict=True)):
            x, chosen = left + column * COLUMN, choice == values[name]
            weight, color = ("bold", "black") if chosen else ("normal", GRAY)
            axes.text(x, y + 0.05, f"{probability:.2f}", size=6, weight=weight, color=color, va="center")
            fill = tint(OPERATION_COLORS.get(choice, "black"), 0.45 if chosen else 0.265)
            edge = {"ec": "black", "lw": 0.6} if chosen else {"lw": 0}
            axes.add_patch(Rectangle((x, y - 0.1), BAR * probability, 0.07, fc=fill, **edge, gid=f"{name}.{choice}"))
            even = x + BAR / len(array)
            scale += [[(x, y - 0.1), (x + BAR, y - 0.1)], [(even, y - 0.1), (even, y - 0.13)]]
    axes.add_collection(LineCollection(scale, colors="0.5", linewidths=0.5), autolim=False)


LEGEND, OUTPUT = 0.6, 0.92  # heights: of the legend; of all that follows the layers


class DrawnCell(CellPicture):
    """One kind of cell, as matplotlib draws it; there y grows upward."""

    top, end, box, radius, widths = TITLE, 0.26, 0.32, 0.11, (0.8, 0.62, 1.0)
    axes: Axes

    def __init__(self, kind: str, paths: Paths, likely: Mapping[str, float]) -> None:
        super().__init__(kind, paths, likely)
        left, right = self.layout.extent()
        self.width, self._middle = max(right - left, 3.0), (left + right) / 2

    def draw(self, axes: Axes, start: float) -> None:
        """Draw the cell with its title, to the right of `start`."""
        middle = start + self.width / 2
        self.axes, self.left = axes, middle - self._middle
        axes.text(middle, -0.2, f"{self.kind.capitalize()} cell", size=10, weight="bold", ha="center", va="center")
        if self.kind == "reduction":
            axes.text(middle, -0.4, "stride 2 on its two inputs", size=7, color=GRAY, ha="center", va="center")
        self.draw_parts()

    def draw_box(self, box: Box, look: str, name: str | None = None, **more: Any) -> None:
        x, top, width, height = box
        style = {"boxstyle": "round,pad=0,rounding_size=0.05", "lw": 0.8, "zorder": 3, **BOX_LOOKS[look], **more}
        self.axes.add_patch(FancyBboxPatch((x - width / 2, -top - height), width, height, gid=name, **style))

    def draw_operation(self, x: float, top: float, operation: str, likely: float | None, name: str, tip: str) -> None:
        fill = tint(OPERATION_COLORS[operation], 0.45 if likely is None else 0.1 + 0.55 * likely)
        self.draw_box((x, top, self.widths[1], self.box), "end", name, fc=fill, lw=_thickness(likely) / 2)
        shown = LABELS[operation] if likely is None else f"{LABELS[operation]}\n{likely:.2f}"
        self.draw_text(x, top + self.box / 2, shown)

    def draw_text(self, x: float, y: float, text: str, look: str = "") -> None:
        style: dict[str, Any] = {"size": 7, "ha": "center", "va": "center", "zorder": 4}
        for word in look.split():
            style |= TEXT_LOOKS[word]
        self.axes.text(x, -y, text, **style)

    def draw_line(self, way: Way, look: str, likely: float | None = None, name: str | None = None) -> None:
        codes = [Outline.MOVETO, *[*[Outline.CURVE4] * 3, Outline.LINETO] * (len(way) // 4)]
        outline = Outline([(x, -y) for x, y in way], codes)
        style = "-|>,head_length=4,head_width=1.8" if "arrow" in look else "-"
        stroke: Any = (0, (4, 1.5)) if "loose" in look else "-"
        line = FancyArrowPatch(path=outline, arrowstyle=style, mutation_scale=1, gid=name, ls=stroke)
        line.set(color=_shade(likely), linewidth=_thickness(likely))
        self.axes.add_patch(line)


def draw_cells(values: Mapping[str, Any], folder: Path, probabilities: Probabilities | None = None) -> list[Path]:
    """Write `cells.svg` and `cells.png`, both cells of an architecture; returns what was written.

    With the probabilities of all choices, as `ASNG.distribution()` gives them, lines and boxes show how
    likely they were, and `probabilities.svg` and `.png` show what was not chosen as well.
    """
    figures = {"cells": cells_figure(cells_of(values, probabilities))}
    if probabilities is not None:
        figures["probabilities"] = probabilities_figure(values, probabilities)
    return [path for name, figure in figures.items() for path in save_figure(figure, folder, name, dpi=200)]


def cells_of(values: Mapping[str, Any], probabilities: Probabilities | None = None) -> list[DrawnCell]:
    """The two cells of an architecture."""
    known = probabilities or {}
    likely = {name: float(known[name][SPACE[name].index(values[name])]) for name in known}
    return [DrawnCell(kind, cell_paths(values, kind), likely) for kind in CELL_KINDS]


def cells_figure(cells: Sequence[DrawnCell]) -> Figure:
    """The cells beside each other, a legend beneath them."""
    height = max(cell.tops[-1] for cell in cells) + OUTPUT + LEGEND
    figure, axes = canvas(sum(cell.width for cell in cells) + MARGIN * (len(cells) + 1), height)
    start = MARGIN
    for cell in cells:
        cell.draw(axes, start)
        start += cell.width + MARGIN
    _legend(figure, cells)
    return figure


def _thickness(likely: float | None) -> float:
    return 1.0 if likely is None else 0.5 + 2.0 * likely


def _shade(likely: float | None) -> str:
    return "0.2" if likely is None else f"{0.75 - 0.75 * likely:.3f}"


def _legend(figure: Figure, cells: Sequence[DrawnCell]) -> None:
    """Draw the legend: the signs, and in a second row the colors of probabilities."""
    marks: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": "black", "mew": 0.8, "ms": 9, "lw": 0}
    signs = {
        "node: the sum of two operations": Line2D([], [], **marks),
        "output that no node takes": Line2D([], [], color=_shade(None), lw=1, ls=(0, (4, 1.5))),
    }
    if any(cell.is_twice(node) for cell in cells for node in range(NODES)):
        signs["the same module twice"] = Line2D([], [], **{**marks, "marker": "$=$", "ms": 6})
    rows = [signs]
    if cells[0].likely:
        levels = {f"{p:.1f}": Line2D([], [], color=_shade(p), lw=_thickness(p)) for p in (0.2, 0.6, 1.0)}
        rows.append({"probability of the choice, at its arrow or in its box:": Line2D([], [], lw=0), **levels})
    for row, y in zip(rows, (0.45, 0.2), strict=False):
        style = {"ncols": len(row), "fontsize": 7, "frameon": False, "columnspacing": 1.5, "handletextpad": 0.6}
        anchor = (0.5, y / figure.get_figheight())
        figure.legend(list(row.values()), list(row), loc="center", bbox_to_anchor=anchor, **style)
