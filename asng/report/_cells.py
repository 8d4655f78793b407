"""The cells of a CIFAR-10 architecture as SVG: inputs, nodes, operations, and how likely they are.

Positions are those of `cifar10.layout`, in inches; colors are those of the style sheet, light or dark.
"""

from collections.abc import Mapping
from typing import Any

from asng.experiments.cifar10.layout import CellLayout, arrange
from asng.experiments.cifar10.space import CELL_KINDS, NODES, SPACE, Paths, cell_paths
from asng._html import Html, element
from asng.report._read import Distribution

PIXELS = 104  # per inch
NAMES = {
    "identity": "identity",
    "avg_pool": "avg 3×3",
    "max_pool": "max 3×3",
    "sep_conv3": "sep 3×3",
    "sep_conv5": "sep 5×5",
}
STATES = ("cell k − 2", "cell k − 1", *(f"node {node}" for node in range(NODES)))

# Inches. A layer is, from its top: arrow heads, operations, the way to the sum, the sum.
MARGIN, TOP = 0.1, 0.3
HEAD, BOX, JOIN, RADIUS = 0.24, 0.36, 0.14, 0.12
LAYER = HEAD + BOX + JOIN + 2 * RADIUS
WIDTH = 0.66  # of an operation
END, OUTPUT = 0.28, 0.72  # heights: of an input; of all that follows the layers


def is_cells(values: Mapping[str, Any]) -> bool:
    """Whether values are an architecture of the cells of CIFAR-10."""
    if values.keys() != SPACE.keys():
        return False
    return all(type(values[name]) in (int, str) and values[name] in SPACE[name].choices for name in SPACE)


def draw_cells(values: Mapping[str, Any], distribution: Distribution, title: str) -> list[Html]:
    """A figure for each of the two cells; `title` is that of the run."""
    return [_Cell(kind, values, distribution).draw(title) for kind in CELL_KINDS]


class _Cell:
    """One kind of cell, its layout, and its drawing so far."""

    def __init__(self, kind: str, values: Mapping[str, Any], distribution: Distribution) -> None:
        self._kind, self._paths = kind, cell_paths(values, kind)
        self._likely = {
            name: distribution[name][str(value)]
            for name, value in values.items()
            if str(value) in distribution.get(name, {})
        }
        self._layout = arrange(self._paths)
        left, right = self._layout.extent()
        self._left = MARGIN - left  # is added to every x
        self._width = right - left + 2 * MARGIN
        self._tops = _tops(self._layout)
        self._lines: list[Html] = []
        self._boxes: list[Html] = []

    def draw(self, run: str) -> Html:
        """The figure with a caption and, for those who do not see it, a description."""
        used = {state for pair in self._paths for state, _ in pair}
        for state in (0, 1):
            self._input(state, state in used)
        for node in range(NODES):
            for slot in (0, 1):
                self._arrow_to(node, slot)
            self._node(node)
        self._output()
        size = [f"{round(inches * PIXELS)}" for inches in (self._width, self._tops[-1] + OUTPUT)]
        title = element("title", f"{self._kind.capitalize()} cell: {describe_paths(self._paths)}")
        svg = element(
            "svg",
            title,
            *self._lines,
            *self._boxes,
            width=size[0],
            height=size[1],
            viewBox=f"0 0 {size[0]} {size[1]}",
            role="img",
        )
        note = " — stride 2 on its two inputs" if self._kind == "reduction" else ""
        caption = element("figcaption", element("strong", f"{self._kind.capitalize()} cell"), note)
        label = f"{self._kind} cell of {run}"
        return element(
            "figure",
            caption,
            element("div", svg, class_="scroll", tabindex="0", role="region", aria_label=label),
            class_="graph",
            style=f"--w:{size[0]}px",
        )

    def _input(self, state: int, used: bool) -> None:
        x = self._x(0, state)
        look = "" if used else " unused"
        self._box(x, self._tops[0], 0.84, END, f"end{look}")
        self._text(x, self._tops[0] + END / 2, STATES[state], look)
        if not used:
            self._text(x, self._tops[0] - 0.1, "not used", "small unused")

    def _arrow_to(self, node: int, slot: int) -> None:
        """From a state to the operation that takes it."""
        likely = self._likely.get(f"{self._kind}{node}.in{slot + 1}")
        layer, x = self._layout.depths[2 + node], self._left + self._layout.entry(node, slot)
        self._arrow(self._way(self._paths[node][slot][0], layer, x, self._tops[layer] + HEAD - 0.03), likely)
        if likely is not None:
            self._text(x + 0.07, self._tops[layer] + HEAD / 2 - 0.03, f"{likely:.2f}", "small start")

    def _node(self, node: int) -> None:
        """Two operations and their sum."""
        layer = self._layout.depths[2 + node]
        x, y = self._x(layer, 2 + node), self._tops[layer] + HEAD
        low = y + BOX + JOIN + RADIUS
        for slot, (source, operation) in enumerate(self._paths[node]):
            likely = self._likely.get(f"{self._kind}{node}.op{slot + 1}")
            middle = self._left + self._layout.entry(node, slot)
            curve = f"M{_px(middle)} {_px(y + BOX)}Q{_px(middle)} {_px(low)} {_px(x)} {_px(low)}"
            self._lines.append(element("path", d=curve, class_="line"))
            tip = f"node {node}: {operation} of {STATES[source]}"
            tip += "" if likely is None else f", probability {likely:.3f}"
            self._box(middle, y, WIDTH, BOX, f"op {operation}", likely, tip)
            self._text(middle, y + BOX / 2 - (0.07 if likely is not None else 0), NAMES[operation], "name")
            if likely is not None:
                self._text(middle, y + BOX / 2 + 0.09, f"{likely:.2f}", "small")
        first, second = self._paths[node]
        if first == second:  # one module, counted twice
            self._text(x, y + BOX / 2, "=", "")
        circle = {"cx": _px(x), "cy": _px(low), "r": _px(RADIUS)}
        self._boxes.append(element("circle", **circle, class_="end"))
        self._text(x, low, str(node), "")

    def _output(self) -> None:
        """Nodes that no other one takes lead into one bar."""
        last, y = len(self._layout.layers) - 1, self._tops[-1] + HEAD
        ends = [self._x(last, state) for state in self._layout.loose]
        for state, x in zip(self._layout.loose, ends, strict=True):
            self._arrow(self._way(state, last + 1, x, y - 0.03), None, " loose")
        middle, width = (min(ends) + max(ends)) / 2, max(max(ends) - min(ends) + 0.4, 1.1)
        self._box(middle, y, width, 0.26, "sum")
        self._text(middle, y + 0.13, "concatenate → cell k", "small")

    def _x(self, layer: int, state: int) -> float:
        return self._left + self._layout.layers[layer][state]

    def _way(self, state: int, layer: int, x: float, y: float) -> str:
        """From a state down through its lanes to (x, y) in a layer: bent between layers, straight in them."""
        own = self._layout.depths[state]
        here, down = self._x(own, state), self._tops[own] + (LAYER if own else END)
        parts = [f"M{_px(here)} {_px(down)}"]
        for below in range(own + 1, layer + 1):
            there, top = (x if below == layer else self._x(below, state)), self._tops[below]
            half = _px((down + top) / 2)
            down = y if below == layer else top + LAYER
            parts.append(f"C{_px(here)} {half} {_px(there)} {half} {_px(there)} {_px(top)}V{_px(down)}")
            here = there
        return "".join(parts)

    def _arrow(self, way: str, likely: float | None, look: str = "") -> None:
        thickness, opacity = (1.2, 0.8) if likely is None else (0.7 + 2 * likely, 0.25 + 0.75 * likely)
        style = f"stroke-width:{thickness:.2f};stroke-opacity:{opacity:.2f}"
        self._lines.append(element("path", d=way, class_=f"line arrow{look}", style=style))

    def _box(
        self, x: float, top: float, width: float, height: float, look: str, likely: float | None = None, tip: str = ""
    ) -> None:
        place = {"x": _px(x - width / 2), "y": _px(top), "width": _px(width), "height": _px(height), "rx": "5"}
        style = None if likely is None else f"fill-opacity:{0.15 + 0.85 * likely:.2f}"
        title = element("title", tip) if tip else None
        if likely is not None:  # so that lines do not shine through
            self._boxes.append(element("rect", **place, class_="end"))
        self._boxes.append(element("rect", title, **place, class_=look.strip(), style=style))

    def _text(self, x: float, y: float, text: str, look: str) -> None:
        self._boxes.append(element("text", text, x=_px(x), y=_px(y), class_=look.strip() or None))


def _tops(layout: CellLayout) -> list[float]:
    """The y of each layer and of the output; bends get more height where lines go far sideways."""
    y = TOP
    tops = [y]
    for layer in range(1, len(layout.layers)):
        far = max(abs(start - end) for start, end in layout.bends(layer))
        y += (END if layer == 1 else LAYER) + min(0.25 + 0.13 * far, 0.8)
        tops.append(y)
    return [*tops, y + LAYER + 0.05]


def describe_paths(paths: Paths) -> str:
    """A cell in words.

    >>> describe_paths([((0, "identity"), (1, "sep_conv3"))])
    'node 0 adds identity of cell k − 2 and sep 3×3 of cell k − 1'
    """
    nodes = [" and ".join(f"{NAMES[operation]} of {STATES[source]}" for source, operation in pair) for pair in paths]
    return "; ".join(f"node {node} adds {pair}" for node, pair in enumerate(nodes))


def _px(inches: float) -> str:
    return f"{inches * PIXELS:.1f}"
