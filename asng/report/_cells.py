"""The cells of a CIFAR-10 architecture as SVG: inputs, nodes, operations, and how likely they are.

Positions are those of `cifar10.picture`, in inches; colors are those of the style sheet, light or dark.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from asng._html import Html, element
from asng.experiments.cifar10.picture import LABELS, STATES, Box, CellPicture, Way
from asng.experiments.cifar10.space import CELL_KINDS, SPACE, Paths, cell_paths
from asng.report._read import Distribution

PIXELS = 104  # per inch
MARGIN, OUTPUT = 0.1, 0.96  # inches: around, and the height of all that follows the layers
ARROW_HEAD = 0.03  # inches that it is longer than its line


def is_cells(values: Mapping[str, Any]) -> bool:
    """Whether values are an architecture of the cells of CIFAR-10."""
    if values.keys() != SPACE.keys():
        return False
    return all(type(values[name]) in (int, str) and values[name] in SPACE[name].choices for name in SPACE)


def graph(name: str, words: str, note: str, run: str, size: tuple[int, int], parts: Iterable[Html]) -> Html:
    """A figure of some pixels' width and height, with a caption and, for those who do not see it, words."""
    width, height = size
    title = element("title", f"{name}: {words}")
    svg = element("svg", title, *parts, width=width, height=height, viewBox=f"0 0 {width} {height}", role="img")
    caption = element("figcaption", element("strong", name), note)
    region = element("div", svg, class_="scroll", tabindex="0", role="region", aria_label=f"{name.lower()} of {run}")
    return element("figure", caption, region, class_="graph", style=f"--w:{width}px")


def draw_cell_graphs(values: Mapping[str, Any], distribution: Distribution, title: str) -> list[Html]:
    """A figure for each of the two cells; `title` is that of the run."""
    likely = {
        name: distribution[name][str(value)]
        for name, value in values.items()
        if str(value) in distribution.get(name, {})
    }
    return [_Cell(kind, cell_paths(values, kind), likely).draw(title) for kind in CELL_KINDS]


class _Cell(CellPicture):
    """One kind of cell, and its drawing so far."""

    top, end, box, radius, widths = 0.3, 0.28, 0.36, 0.12, (0.84, 0.66, 1.1)

    def __init__(self, kind: str, paths: Paths, likely: Mapping[str, float]) -> None:
        super().__init__(kind, paths, likely)
        self._lines: list[Html] = []
        self._boxes: list[Html] = []

    def draw(self, run: str) -> Html:
        """The figure with a caption and, for those who do not see it, a description."""
        left, right = self.layout.extent()
        self.left = MARGIN - left
        self.draw_parts()
        width, height = right - left + 2 * MARGIN, self.tops[-1] + OUTPUT
        note = " — stride 2 on its two inputs" if self.kind == "reduction" else ""
        name, size = f"{self.kind.capitalize()} cell", (round(width * PIXELS), round(height * PIXELS))
        return graph(name, describe_paths(self.paths), note, run, size, [*self._lines, *self._boxes])

    def draw_box(self, box: Box, look: str, name: str | None = None, tip: str = "", style: str | None = None) -> None:
        x, top, width, height = box
        title, rounding = element("title", tip) if tip else None, _px(self.radius) if look == "node" else "5"
        where = {"x": _px(x - width / 2), "y": _px(top), "width": _px(width), "height": _px(height), "rx": rounding}
        self._boxes.append(element("rect", title, **where, class_=look, style=style))

    def draw_operation(self, x: float, top: float, operation: str, likely: float | None, name: str, tip: str) -> None:
        box, middle, look = (x, top, self.widths[1], self.box), top + self.box / 2, f"op {operation}"
        if likely is None:
            self.draw_box(box, look, tip=tip)
            self.draw_text(x, middle, LABELS[operation], "name")
            return
        self.draw_box(box, "end")  # so that lines do not shine through
        fill = f"fill-opacity:{0.15 + 0.85 * likely:.2f}"
        self.draw_box(box, look, tip=f"{tip}, probability {likely:.3f}", style=fill)
        self.draw_text(x, middle - 0.07, LABELS[operation], "name")
        self.draw_text(x, middle + 0.09, f"{likely:.2f}", "small")

    def draw_text(self, x: float, y: float, text: str, look: str = "") -> None:
        self._boxes.append(element("text", text, x=_px(x), y=_px(y), class_=look.strip() or None))

    def draw_line(self, way: Way, look: str, likely: float | None = None, name: str | None = None) -> None:
        thickness, opacity = (1.2, 0.8) if likely is None else (0.7 + 2 * likely, 0.25 + 0.75 * likely)
        style = f"stroke-width:{thickness:.2f};stroke-opacity:{opacity:.2f}"
        x, y = way[-1]
        points = [f"{_px(x)} {_px(y)}" for x, y in (*way[:-1], (x, y - ARROW_HEAD if "arrow" in look else y))]
        parts = [f"C{' '.join(points[n : n + 3])}L{points[n + 3]}" for n in range(1, len(points), 4)]
        self._lines.append(
            element("path", d=f"M{points[0]}{''.join(parts)}", class_=f"line {look}".strip(), style=style)
        )


def describe_paths(paths: Paths) -> str:
    """A cell in words.

    >>> describe_paths([((0, "identity"), (1, "sep_conv3"))])
    'node 0 adds identity of cell k − 2 and sep 3×3 of cell k − 1'
    """
    nodes = [" and ".join(f"{LABELS[operation]} of {STATES[source]}" for source, operation in pair) for pair in paths]
    return "; ".join(f"node {node} adds {pair}" for node, pair in enumerate(nodes))


def _px(inches: float) -> str:
    return f"{inches * PIXELS:.1f}"
