"""Layers by longest paths, the fewest crossings there are, distances that are kept."""

from itertools import combinations, pairwise, permutations, product

import pytest

from asng.experiments.cifar10 import layout
from asng.experiments.cifar10.space import CELL_KINDS, cell_paths, random_values, values_of

CHAIN = [1, 1, 4, 4, 2, 2, 4, 4, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 4, 4]
CELLS = [cell_paths(random_values(seed), kind) for seed in range(20) for kind in CELL_KINDS]
CELLS += [cell_paths(values_of(code * 2), "normal") for code in ([0] * 20, CHAIN)]


@pytest.fixture(scope="module")
def cells():
    return [(paths, layout.arrange(paths)) for paths in CELLS]


def all_paths(paths, state):
    """Every way from a cell's input to a state, as a list of states."""
    if state < 2:
        return [[state]]
    return [[*way, state] for source, _ in paths[state - 2] for way in all_paths(paths, source)]


def test_a_state_stands_at_the_end_of_the_longest_path_to_it(cells):
    for paths, placed in cells:
        longest = [max(len(way) - 1 for way in all_paths(paths, state)) for state in range(7)]
        assert placed.depths == longest


def test_loose_ends_are_the_nodes_on_no_path_to_another_node(cells):
    for paths, placed in cells:
        passed = {state for end in range(2, 7) for way in all_paths(paths, end) for state in way[:-1]}
        assert placed.loose == [state for state in range(2, 7) if state not in passed]


def test_a_state_keeps_a_lane_until_it_is_last_taken(cells):
    for paths, placed in cells:
        bottom = len(placed.layers)
        for state in range(7):
            uses = [placed.depths[2 + node] for node, pair in enumerate(paths) if state in (pair[0][0], pair[1][0])]
            end = bottom if state in placed.loose else max(uses, default=1)
            here = [layer for layer, states in enumerate(placed.layers) if state in states]
            assert here == list(range(placed.depths[state], max(end, placed.depths[state] + 1)))


def crossings(placed):
    """How many pairs of lines cross as they are drawn."""
    bends = [placed.bends(layer) for layer in range(1, len(placed.layers))]
    return sum((a - b) * (c - d) < 0 for lines in bends for (a, c), (b, d) in combinations(lines, 2))


def fewest_crossings(paths, layers, depths):
    """By trying all orders of all layers."""

    def crossing(above, below, layer):
        lines = [(above.index(s), below.index(s)) for s in below if depths[s] < layer]
        for state in below:
            if depths[state] == layer:  # both lines end there, so the two do not cross each other
                lines += [(above.index(source), below.index(state)) for source, _ in paths[state - 2]]
        return sum((a < b and c > d) or (a > b and c < d) for (a, c), (b, d) in combinations(lines, 2))

    orders = product(*(permutations(states) for states in layers))
    return min(sum(crossing(a, b, i) for i, (a, b) in enumerate(pairwise(order), start=1)) for order in orders)


def test_no_order_of_the_layers_has_fewer_crossings(cells):
    tried = 0
    for paths, placed in cells:
        size = 1
        for states in placed.layers:
            size *= len(list(permutations(states)))
        if size <= 500:
            assert crossings(placed) == fewest_crossings(paths, placed.layers, placed.depths)
            tried += 1
    assert tried >= 10


def test_neighbors_keep_their_distance(cells):
    for _, placed in cells:
        for layer, states in enumerate(placed.layers):
            halves = [layout.half_width(state, placed.depths[state] == layer) for state in states]
            for (x, next_x), (half, next_half) in zip(pairwise(states.values()), pairwise(halves), strict=True):
                assert next_x - x >= half + next_half - 1e-9
            left, right = placed.extent()
            assert left <= min(states.values()) - halves[0] + 1e-9
            assert right >= max(states.values()) + halves[-1] - 1e-9


def test_a_chain_is_drawn_straight(cells):
    _, placed = cells[-1]
    middles = [states[1 + layer] for layer, states in enumerate(placed.layers)]
    assert middles == pytest.approx([middles[0]] * 6, abs=0.01)
    assert crossings(placed) == 0


def test_the_operation_on_the_left_takes_what_comes_from_the_left(cells):
    for paths, placed in cells:
        for node, (first, second) in enumerate(paths):
            above = placed.layers[placed.depths[2 + node] - 1]
            apart = above[first[0]] - above[second[0]]
            assert {placed.entry(node, 0) < placed.entry(node, 1)} == {apart <= 0}
