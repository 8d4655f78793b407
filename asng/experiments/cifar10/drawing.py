"""Pictures of found cells: inputs, nodes, operations, and how likely they were.

One unit of a drawing is one inch, so that text and boxes always fit each other. All that colors show
is also written in words.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path as Outline

from asng._ragged import Array
from asng.experiments.cifar10.layout import CellLayout, arrange
from asng.experiments.cifar10.space import CELL_KINDS, NODES, OPERATIONS, SPACE, Paths, cell_paths
from asng.experiments.figures import BLUE, GRAY, ORANGE, SKY, VERMILION, canvas, save_figure, tint

Probabilities = Mapping[str, Sequence[float] | Array]  # per decision, one for each of its choices

# Short names and colors.
LOOKS = {
    "identity": ("identity", "#999999"),
    "avg_pool": ("avg 3×3", SKY),
    "max_pool": ("max 3×3", BLUE),
    "sep_conv3": ("sep 3×3", ORANGE),
    "sep_conv5": ("sep 5×5", VERMILION),
}
STATES = ("cell k − 2", "cell k − 1", *(f"node {node}" for node in range(NODES)))

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
        heading = LOOKS[choice][0] if choice in LOOKS else STATES[choice].removeprefix("cell ")
        axes.text(left + column * COLUMN, 0.1 - TITLE, heading, size=6.5, color=GRAY, va="center")
    for row, (name, array) in enumerate(rows.items()):
        y = -TITLE - (row + 0.5) * ROW
        for column, (choice, probability) in enumerate(zip(SPACE[name].choices, array, strict=True)):
            x, chosen = left + column * COLUMN, choice == values[name]
            weight, color = ("bold", "black") if chosen else ("normal", GRAY)
            axes.text(x, y + 0.05, f"{probability:.2f}", size=6, weight=weight, color=color, va="center")
            fill = tint(LOOKS[choice][1] if choice in LOOKS else "black", 0.45 if chosen else 0.265)
            edge = {"ec": "black", "lw": 0.6} if chosen else {"lw": 0}
            axes.add_patch(Rectangle((x, y - 0.1), BAR * probability, 0.07, fc=fill, **edge, gid=f"{name}.{choice}"))
            even = x + BAR / len(array)
            scale += [[(x, y - 0.1), (x + BAR, y - 0.1)], [(even, y - 0.1), (even, y - 0.13)]]
    axes.add_collection(LineCollection(scale, colors="0.5", linewidths=0.5), autolim=False)


# Inches. A layer is, from its top: arrow heads, operations, the way to the sum, the sum.
HEAD, BOX, JOIN, RADIUS = 0.24, 0.32, 0.14, 0.11
LAYER = HEAD + BOX + JOIN + 2 * RADIUS
WIDTH = 0.62  # of an operation
END, OUTPUT = 0.26, 0.92  # heights: of an input; of all that follows the layers
LEGEND = 0.6


class DrawnCell:
    """One kind of cell, its layout, and how likely its choices were."""

    axes: Axes
    left: float  # is added to every x

    def __init__(self, kind: str, paths: Paths, likely: Mapping[str, float] | None) -> None:
        self.kind, self.paths, self.likely = kind, paths, likely  # per decision, the probability of its value
        self.layout = arrange(paths)
        self.tops = _tops(self.layout)  # the y of its layers and of its output
        left, right = self.layout.extent()
        self.width, self._middle = max(right - left, 3.0), (left + right) / 2

    def twice(self, node: int) -> bool:
        """Whether both paths of a node are the same: one module, with one set of weights, counted twice."""
        first, second = self.paths[node]
        return first == second

    def draw(self, axes: Axes, start: float) -> None:
        """Draw the cell with its title, to the right of `start`."""
        middle = start + self.width / 2
        self.axes, self.left = axes, middle - self._middle
        axes.text(middle, -0.2, f"{self.kind.capitalize()} cell", size=10, weight="bold", ha="center", va="center")
        if self.kind == "reduction":
            axes.text(middle, -0.4, "stride 2 on its two inputs", size=7, color=GRAY, ha="center", va="center")
        used = {state for pair in self.paths for state, _ in pair}
        for state in (0, 1):
            self._input(state, state in used)
        slots = [(node, slot) for node in range(NODES) for slot in (0, 1)]
        for node, slot in sorted(slots, key=lambda slot: self._likely(slot[0], f"in{slot[1] + 1}") or 0):
            self._line(node, slot)  # the likely ones last: on top where lines share a lane
        for node in range(NODES):
            self._node(node)
        self._output()

    def _likely(self, node: int, part: str) -> float | None:
        return None if self.likely is None else self.likely[f"{self.kind}{node}.{part}"]

    def _input(self, state: int, used: bool) -> None:
        x, y = self._x(0, state), self.tops[0]
        style: dict[str, Any] = {"ec": "black"} if used else {"ec": GRAY, "ls": (0, (3, 2))}
        self._box(x, y, 0.8, END, fc="white", gid=f"{self.kind}.state{state}", **style)
        self._text(x, y - END / 2, STATES[state], color="black" if used else GRAY)
        if not used:
            self._text(x, y + 0.08, "not used", size=6, color=GRAY)

    def _line(self, node: int, slot: int) -> None:
        """From a state to the operation that takes it."""
        likely = self._likely(node, f"in{slot + 1}")
        layer, x = self.layout.depths[2 + node], self.left + self.layout.entry(node, slot)
        way = self._way(self.paths[node][slot][0], layer, x, self.tops[layer] - HEAD)
        self._arrow(way, likely, gid=f"{self.kind}{node}.in{slot + 1}")
        if likely is not None:
            self._text(x + 0.06, self.tops[layer] - HEAD / 2 + 0.02, f"{likely:.2f}", size=6, ha="left")

    def _node(self, node: int) -> None:
        """Two operations and their sum."""
        layer = self.layout.depths[2 + node]
        x, y = self._x(layer, 2 + node), self.tops[layer] - HEAD
        low = y - BOX - JOIN - RADIUS
        for slot, (_, operation) in enumerate(self.paths[node]):
            likely = self._likely(node, f"op{slot + 1}")
            middle = self.left + self.layout.entry(node, slot)
            side = np.sign(middle - x)
            corner = [(middle, y - BOX), (middle, low), (x + side * RADIUS, low)]
            turn = Outline(corner, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3])
            self.axes.add_patch(PathPatch(turn, fc="none", ec="black", lw=0.8))
            name, color = LOOKS[operation]
            gid = f"{self.kind}{node}.op{slot + 1}"
            self._box(
                middle, y, WIDTH, BOX, fc=tint(color, _strength(likely)), ec="black", lw=_thickness(likely) / 2, gid=gid
            )
            self._text(middle, y - BOX / 2, name if likely is None else f"{name}\n{likely:.2f}")
        if self.twice(node):
            self._text(x, y - BOX / 2, "=", weight="bold")
        gid = f"{self.kind}{node}"
        self.axes.add_patch(Circle((x, low), RADIUS, fc="white", ec="black", lw=0.8, zorder=3, gid=gid))
        self._text(x, low, str(node))

    def _output(self) -> None:
        """Loose ends lead into one bar."""
        last, y = len(self.layout.layers) - 1, self.tops[-1] - HEAD
        ends = [self._x(last, state) for state in self.layout.loose]
        for state, x in zip(self.layout.loose, ends, strict=True):
            way = self._way(state, last + 1, x, y)
            self._arrow(way, None, ls=(0, (4, 1.5)), gid=f"{self.kind}{state - 2}.out")
        middle, width = (min(ends) + max(ends)) / 2, max(max(ends) - min(ends) + 0.4, 1.0)
        self._box(middle, y, width, 0.24, fc="0.93", ec="black", gid=f"{self.kind}.concatenation")
        self._text(middle, y - 0.12, "concatenate")
        self._arrow(Outline([(middle, y - 0.24), (middle, y - 0.5)]), None)
        self._text(middle, y - 0.6, "cell k")

    def _x(self, layer: int, state: int) -> float:
        return self.left + self.layout.layers[layer][state]

    def _way(self, state: int, layer: int, x: float, y: float) -> Outline:
        """From a state down through its lanes to (x, y) in a layer: bent between layers, straight in them."""
        own = self.layout.depths[state]
        points = [(self._x(own, state), self.tops[own] - (LAYER if own else END))]
        codes = [Outline.MOVETO]
        for below in range(own + 1, layer + 1):
            next_x = x if below == layer else self._x(below, state)
            (last_x, start), end = points[-1], self.tops[below]
            points += [(last_x, (start + end) / 2), (next_x, (start + end) / 2), (next_x, end)]
            points.append((next_x, y if below == layer else end - LAYER))
            codes += [Outline.CURVE4] * 3 + [Outline.LINETO]
        return Outline(points, codes)

    def _arrow(self, way: Outline, likely: float | None, **style: Any) -> None:
        arrow = FancyArrowPatch(path=way, arrowstyle="-|>,head_length=4,head_width=1.8", mutation_scale=1, **style)
        arrow.set(color=_shade(likely), linewidth=_thickness(likely))
        self.axes.add_patch(arrow)

    def _box(self, x: float, top: float, width: float, height: float, **style: Any) -> None:
        rounded = "round,pad=0,rounding_size=0.05"
        corner = (x - width / 2, top - height)
        self.axes.add_patch(FancyBboxPatch(corner, width, height, rounded, **{"lw": 0.8, "zorder": 3, **style}))

    def _text(self, x: float, y: float, text: str, **style: Any) -> None:
        self.axes.text(x, y, text, **{"size": 7, "ha": "center", "va": "center", "zorder": 4, **style})


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
    likely = None
    if probabilities is not None:
        likely = {name: float(probabilities[name][SPACE[name].index(value)]) for name, value in values.items()}
    return [DrawnCell(kind, cell_paths(values, kind), likely) for kind in CELL_KINDS]


def cells_figure(cells: Sequence[DrawnCell]) -> Figure:
    """The cells beside each other, a legend beneath them."""
    lowest = min(cell.tops[-1] for cell in cells) - OUTPUT
    figure, axes = canvas(sum(cell.width for cell in cells) + MARGIN * (len(cells) + 1), LEGEND - lowest)
    start = MARGIN
    for cell in cells:
        cell.draw(axes, start)
        start += cell.width + MARGIN
    _legend(figure, cells)
    return figure


def _tops(layout: CellLayout) -> list[float]:
    """The y of each layer and of the output; bends get more height where lines go far sideways."""
    y = -TITLE
    tops = [y]
    for layer in range(1, len(layout.layers)):
        y -= END if layer == 1 else LAYER
        far = max(abs(start - end) for start, end in layout.bends(layer))
        y -= min(0.25 + 0.13 * far, 0.8)
        tops.append(y)
    return [*tops, y - LAYER - 0.05]


def _thickness(likely: float | None) -> float:
    return 1.0 if likely is None else 0.5 + 2.0 * likely


def _strength(likely: float | None) -> float:
    return 0.45 if likely is None else 0.1 + 0.55 * likely


def _shade(likely: float | None) -> str:
    return "0.2" if likely is None else f"{0.75 - 0.75 * likely:.3f}"


def _legend(figure: Figure, cells: Sequence[DrawnCell]) -> None:
    """What signs mean, and in a second row how a probability looks."""
    marks: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": "black", "mew": 0.8, "ms": 9, "lw": 0}
    signs = {
        "node: the sum of two operations": Line2D([], [], **marks),
        "output that no node takes": Line2D([], [], color=_shade(None), lw=1, ls=(0, (4, 1.5))),
    }
    if any(cell.twice(node) for cell in cells for node in range(NODES)):
        signs["the same module twice"] = Line2D([], [], **{**marks, "marker": "$=$", "ms": 6})
    rows = [signs]
    if cells[0].likely is not None:
        levels = {f"{p:.1f}": Line2D([], [], color=_shade(p), lw=_thickness(p)) for p in (0.2, 0.6, 1.0)}
        rows.append({"probability of the choice, at its arrow or in its box:": Line2D([], [], lw=0), **levels})
    for row, y in zip(rows, (0.45, 0.2), strict=False):
        style = {"ncols": len(row), "fontsize": 7, "frameon": False, "columnspacing": 1.5, "handletextpad": 0.6}
        anchor = (0.5, y / figure.get_figheight())
        figure.legend(list(row.values()), list(row), loc="center", bbox_to_anchor=anchor, **style)
