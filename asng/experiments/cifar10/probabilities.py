"""The probabilities of all decisions of the two cells, as a table with bars.

What stands in the table and in the pictures of the cells has the same names and colors in both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from asng._ragged import Array
from asng.experiments.cifar10.space import CELL_KINDS, NODES, OPERATIONS, SPACE
from asng.experiments.figures import BLUE, GRAY, ORANGE, SKY, VERMILION, canvas, tint

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
