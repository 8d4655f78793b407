"""Layout of the drawing of a cell: layers, their order, horizontal positions.

A cell computes states: 0 and 1 are its inputs, 2 + i is node i. A state stands in the layer that is
one below its deepest input; from there a lane of its own leads it through the layers further down, as
far as it is needed. Lines bend only between two layers, so none passes through a foreign node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

import numpy as np

from asng._ragged import Array
from asng.experiments.cifar10.space import Paths, loose_ends

Inputs = Sequence[tuple[int, int]]  # per node, the two states that it takes
Lines = list[tuple[int, int, int | None]]  # from a state above to one below, into a slot or, without one, as a lane

HALF_NODE, HALF_INPUT, HALF_LANE = 0.75, 0.45, 0.1  # inches to either side that others keep clear of
OPERATION = 0.37  # inches from the middle of a node to that of either operation


@dataclass(frozen=True)
class CellLayout:
    """Layers from top to bottom, each with the x of the states in it, from left to right, in inches."""

    layers: list[dict[int, float]]
    lines: list[Lines]  # per layer, those that lead to it from the layer above
    depths: list[int]  # the layer in which a state stands
    sides: list[tuple[int, int]]  # per node and slot: -1 if its operation is the left one, 1 if the right one
    loose: list[int]  # states of nodes that no later node takes

    def extent(self) -> tuple[float, float]:
        """The left and right ends of the whole, in inches."""
        spans = [
            (x, half_width(state, self.depths[state] == layer))
            for layer, states in enumerate(self.layers)
            for state, x in states.items()
        ]
        return min(x - half for x, half in spans), max(x + half for x, half in spans)

    def entry(self, node: int, slot: int) -> float:
        """The middle of one of the two operations of a node."""
        return self.layers[self.depths[2 + node]][2 + node] + self.sides[node][slot] * OPERATION

    def bends(self, layer: int) -> list[tuple[float, float]]:
        """Horizontal positions of both ends of the lines between a layer and the one above."""
        above, here = self.layers[layer - 1], self.layers[layer]
        return [
            (above[source], here[target] if slot is None else self.entry(target - 2, slot))
            for source, target, slot in self.lines[layer]
        ]


def depths_of(inputs: Inputs) -> list[int]:
    """Per state the length of the longest path that leads to it.

    >>> depths_of([(0, 1), (2, 2), (0, 2)])
    [0, 0, 1, 2, 2]
    """
    depths = [0, 0]
    for first, second in inputs:
        depths.append(1 + max(depths[first], depths[second]))
    return depths


def arrange(paths: Paths) -> CellLayout:
    """The layout with the fewest crossings and, among those, short lines."""
    inputs = [(first, second) for (first, _), (second, _) in paths]
    depths, loose = depths_of(inputs), [2 + node for node in loose_ends(paths)]
    layers = _layers(inputs, depths, loose)
    lines = [_lines_to(inputs, depths, layer, states) for layer, states in enumerate(layers)]
    order = _order(layers, lines, depths)
    takers = zip(inputs, depths[2:], strict=True)
    # The operation on the left takes what comes from further left.
    sides = [(-1, 1) if order[d - 1].index(a) <= order[d - 1].index(b) else (1, -1) for (a, b), d in takers]
    return CellLayout(_positions(order, lines, depths, sides), lines, depths, sides, loose)


def _layers(inputs: Inputs, depths: list[int], loose: list[int]) -> list[list[int]]:
    """The states that stand in each layer or pass through it."""
    last = list(depths)
    for node, pair in enumerate(inputs):
        for state in pair:
            last[state] = max(last[state], depths[2 + node] - 1)
    for state in loose:
        last[state] = max(depths)
    return [[s for s in range(len(depths)) if depths[s] <= layer <= last[s]] for layer in range(max(depths) + 1)]


def _lines_to(inputs: Inputs, depths: list[int], layer: int, states: list[int]) -> Lines:
    """The lines that lead from the layer above to this one."""
    lines: Lines = []
    for state in states:
        if depths[state] < layer:
            lines.append((state, state, None))
        elif layer:
            lines += [(source, state, slot) for slot, source in enumerate(inputs[state - 2])]
    return lines


def half_width(state: int, stands: bool) -> float:
    """Half the width of a state, or of the lane of its line in a layer that the line only passes."""
    if not stands:
        return HALF_LANE
    return HALF_INPUT if state < 2 else HALF_NODE


def _pack(order: Sequence[int], layer: int, depths: list[int]) -> Array:
    """Positions (states,) side by side in this order, around 0; nan where a state is absent."""
    halves = np.array([half_width(state, depths[state] == layer) for state in order])
    right = np.cumsum(halves) * 2
    row = np.full(len(depths), np.nan)
    row[list(order)] = right - halves - right[-1] / 2
    return row


def _order(layers: list[list[int]], lines: list[Lines], depths: list[int]) -> list[list[int]]:
    """The best orders of all layers together: a shortest path through the permutations of each (720 at most)."""
    choices = [list(permutations(states)) for states in layers]
    packed = [np.array([_pack(order, layer, depths) for order in some]) for layer, some in enumerate(choices)]
    cost = np.zeros(len(choices[0]))
    back = []
    for above, below, between in zip(packed[:-1], packed[1:], lines[1:], strict=True):
        total = cost[:, None] + _costs(above, below, between)
        back.append(total.argmin(0))
        cost = total.min(0)
    best = [int(cost.argmin())]
    for earlier in reversed(back):
        best.append(int(earlier[best[-1]]))
    return [list(some[i]) for some, i in zip(choices, reversed(best), strict=True)]


def _costs(above: Array, below: Array, lines: Lines) -> Array:
    """Costs of pairs of orders (orders above, orders below): crossings first, then the sideways length of lines."""
    cost = np.zeros((len(above), len(below)))
    for source, target, _ in lines:
        cost += np.abs(above[:, None, source] - below[None, :, target])
    for (a, c, _), (b, d, _) in combinations(lines, 2):
        if a != b and c != d:
            cost += 1000.0 * ((above[:, None, a] < above[:, None, b]) != (below[None, :, c] < below[None, :, d]))
    return np.round(cost, 6)  # so that equal ones are equal, and the first of them wins


def _positions(
    order: list[list[int]], lines: list[Lines], depths: list[int], sides: list[tuple[int, int]]
) -> list[dict[int, float]]:
    """Positions that keep the order and its distances, with lines as straight as they can be.

    Each layer in turn goes where its neighbors pull it; a pull grows little with the distance, so
    that a few lines bend much and the others not at all.
    """
    packed = [_pack(states, layer, depths).tolist() for layer, states in enumerate(order)]
    layers = [{state: row[state] for state in states} for states, row in zip(order, packed, strict=True)]
    pulls = [  # layer, state above, state below, offset below, strength
        (layer, source, target, 0.0 if slot is None else sides[target - 2][slot] * OPERATION, 1.0 + (slot is None))
        for layer, between in enumerate(lines)
        for source, target, slot in between
    ]
    for sweep in range(300):
        near = max(0.98**sweep, 0.005)  # gently first, so that all find their way together
        for layer in range(len(layers))[:: 1 if sweep % 2 else -1]:
            wishes = {state: [(x, 1e-3)] for state, x in layers[layer].items()}
            for below, source, target, offset, strength in pulls:
                if layer not in (below, below - 1):
                    continue
                bend = layers[below - 1][source] - layers[below][target] - offset
                pull = strength * (0.2 + 1 / max(abs(bend), near))
                if layer == below:
                    wishes[target].append((layers[below][target] + bend, pull))
                else:
                    wishes[source].append((layers[below - 1][source] - bend, pull))
            layers[layer] = _settle(wishes, [half_width(state, depths[state] == layer) for state in wishes])
    return layers


def _settle(wishes: Mapping[int, list[tuple[float, float]]], halves: list[float]) -> dict[int, float]:
    """Positions nearest to weighted wishes that keep order and distances: isotonic regression by pooling."""
    starts = np.concatenate(([0.0], np.cumsum([a + b for a, b in pairwise(halves)])))
    pools: list[tuple[float, float, int]] = []  # sum of weighted wishes, weight, how many
    for start, own in zip(starts, wishes.values(), strict=True):
        pool = (sum((x - start) * w for x, w in own), sum(w for _, w in own), 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            last = pools.pop()
            pool = (last[0] + pool[0], last[1] + pool[1], last[2] + pool[2])
        pools.append(pool)
    means = [total / weight for total, weight, count in pools for _ in range(count)]
    return {state: float(mean + start) for state, mean, start in zip(wishes, means, starts, strict=True)}
