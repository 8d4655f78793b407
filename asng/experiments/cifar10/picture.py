"""The picture of a cell, in inches, y downward: where its parts stand, for whatever draws them.

A layer is, from its top: arrow heads, operations, the way to the sum, the sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from asng.experiments.cifar10.layout import arrange
from asng.experiments.cifar10.space import NODES, Paths

LABELS = {
    "identity": "identity",
    "avg_pool": "avg 3×3",
    "max_pool": "max 3×3",
    "sep_conv3": "sep 3×3",
    "sep_conv5": "sep 5×5",
}
STATES = ("cell k − 2", "cell k − 1", *(f"node {node}" for node in range(NODES)))
HEAD, JOIN = 0.24, 0.14  # heights: of arrow heads, of the way from operations to their sum

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # the x of its middle, the y of its top, width, height
Way = list[Point]  # a start; of each bend two control points and the end, and then the end of a straight line


class CellPicture(ABC):
    """One kind of cell and its layout; a subclass draws boxes, texts, arrows and sums.

    Args:
        kind: "normal" or "reduction".
        paths: Of each node.
        likely: By decision, the probability of its value; empty where it is not known.
    """

    top: ClassVar[float]  # the y of the first layer
    end: ClassVar[float]  # the height of an input
    box: ClassVar[float]  # the height of an operation
    radius: ClassVar[float]  # of a sum
    widths: ClassVar[tuple[float, float, float]]  # of an input, of an operation, of the output at least
    left = 0.0  # is added to every x

    def __init__(self, kind: str, paths: Paths, likely: Mapping[str, float]) -> None:
        self.kind, self.paths, self.likely = kind, paths, likely
        self.layout = arrange(paths)
        self.layer = HEAD + self.box + JOIN + 2 * self.radius  # its height
        self.tops = self._tops()

    @abstractmethod
    def draw_box(self, box: Box, look: str, name: str | None = None) -> None:
        """Draw a box; `look`: "end", "end unused", "sum" or "node", which is round."""

    @abstractmethod
    def draw_operation(self, x: float, top: float, operation: str, likely: float | None, name: str, tip: str) -> None:
        """Draw an operation with its name and its probability."""

    @abstractmethod
    def draw_text(self, x: float, y: float, text: str, look: str = "") -> None:
        """Draw a text around a point; `look`: words among small, start (to the right of the point), unused, bold."""

    @abstractmethod
    def draw_line(self, way: Way, look: str, likely: float | None = None, name: str | None = None) -> None:
        """Draw a line, the stronger the likelier; `look`: words among arrow, loose (dashed)."""

    def draw_parts(self) -> None:
        """Draw all but titles and legends."""
        used = {state for pair in self.paths for state, _ in pair}
        for state in (0, 1):
            self._draw_input(state, state in used)
        slots = [(node, slot) for node in range(NODES) for slot in (0, 1)]
        for node, slot in sorted(slots, key=lambda slot: self._probability(slot[0], f"in{slot[1] + 1}") or 0):
            self._draw_line(node, slot)  # the likely ones last: on top where lines share a lane
        for node in range(NODES):
            self._draw_node(node)
        last, y = len(self.layout.layers) - 1, self.tops[-1] + HEAD
        ends = [self._x(last, state) for state in self.layout.loose]
        for state, x in zip(self.layout.loose, ends, strict=True):
            self.draw_line(self._find_way(state, last + 1, x, y), "arrow loose", name=f"{self.kind}{state - 2}.out")
        self._draw_output((min(ends) + max(ends)) / 2, y, max(max(ends) - min(ends) + 0.4, self.widths[2]))

    def _draw_output(self, x: float, top: float, width: float) -> None:
        """Draw the concatenation, into which loose ends lead."""
        self.draw_box((x, top, width, self.end), "sum", f"{self.kind}.concatenation")
        self.draw_text(x, top + self.end / 2, "concatenate")
        self.draw_line([*[(x, top + self.end)] * 4, (x, top + self.end + HEAD)], "arrow")
        self.draw_text(x, top + self.end + HEAD + 0.1, "cell k")

    def _probability(self, node: int, part: str) -> float | None:
        return self.likely.get(f"{self.kind}{node}.{part}")

    def _draw_input(self, state: int, used: bool) -> None:
        x, y, look = self._x(0, state), self.tops[0], "" if used else " unused"
        self.draw_box((x, y, self.widths[0], self.end), f"end{look}", f"{self.kind}.state{state}")
        self.draw_text(x, y + self.end / 2, STATES[state], look)
        if not used:
            self.draw_text(x, y - 0.1, "not used", "small unused")

    def _draw_line(self, node: int, slot: int) -> None:
        """From a state to the operation that takes it."""
        likely = self._probability(node, f"in{slot + 1}")
        layer, x = self.layout.depths[2 + node], self.left + self.layout.entry(node, slot)
        way = self._find_way(self.paths[node][slot][0], layer, x, self.tops[layer] + HEAD)
        self.draw_line(way, "arrow", likely, f"{self.kind}{node}.in{slot + 1}")
        if likely is not None:
            self.draw_text(x + 0.06, self.tops[layer] + HEAD / 2 - 0.02, f"{likely:.2f}", "small start")

    def _draw_node(self, node: int) -> None:
        """Two operations and their sum."""
        layer = self.layout.depths[2 + node]
        x, y = self._x(layer, 2 + node), self.tops[layer] + HEAD
        low = y + self.box + JOIN + self.radius
        for slot, (source, operation) in enumerate(self.paths[node]):
            likely, middle = self._probability(node, f"op{slot + 1}"), self.left + self.layout.entry(node, slot)
            start, third = y + self.box, (x - middle) / 3
            turn = [(middle, start), (middle, (start + 2 * low) / 3), (middle + third, low), (x, low), (x, low)]
            self.draw_line(turn, "")  # down from an operation, and sideways into its sum
            tip = f"node {node}: {operation} of {STATES[source]}"
            self.draw_operation(middle, y, operation, likely, f"{self.kind}{node}.op{slot + 1}", tip)
        if self.is_twice(node):
            self.draw_text(x, y + self.box / 2, "=", "bold")
        self.draw_box((x, low - self.radius, 2 * self.radius, 2 * self.radius), "node", f"{self.kind}{node}")
        self.draw_text(x, low, str(node))

    def is_twice(self, node: int) -> bool:
        """Whether both paths of a node are the same: one module, with one set of weights, counted twice."""
        return len(set(self.paths[node])) == 1

    def _x(self, layer: int, state: int) -> float:
        return self.left + self.layout.layers[layer][state]

    def _find_way(self, state: int, layer: int, x: float, y: float) -> Way:
        """From a state down through its lanes to (x, y) in a layer: bent between layers, straight in them."""
        own = self.layout.depths[state]
        way = [(self._x(own, state), self.tops[own] + (self.layer if own else self.end))]
        for below in range(own + 1, layer + 1):
            there, stop = (x, y) if below == layer else (self._x(below, state), self.tops[below] + self.layer)
            (here, start), end = way[-1], self.tops[below]
            way += [(here, (start + end) / 2), (there, (start + end) / 2), (there, end), (there, stop)]
        return way

    def _tops(self) -> list[float]:
        """The y of each layer and of the output; bends get more height where lines go far sideways."""
        tops = [self.top]
        for layer in range(1, len(self.layout.layers)):
            far = max(abs(start - end) for start, end in self.layout.bends(layer))
            tops.append(tops[-1] + (self.end if layer == 1 else self.layer) + min(0.25 + 0.13 * far, 0.8))
        return [*tops, tops[-1] + self.layer + 0.05]
