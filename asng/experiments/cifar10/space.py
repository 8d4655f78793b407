"""The search space of the paper (section 3.2): two cells of five nodes, as names, as numbers, and what they weigh.

A node adds two paths; a path leads from a source through an operation. Sources are 0, the cell
before the previous one, 1, the previous cell, and 2 + i, node i. Nodes that lead to no other node are
the loose ends that make up a cell's output.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asng.space import Categorical

CELL_KINDS = ("normal", "reduction")
NODES = 5
OPERATIONS = ("identity", "avg_pool", "max_pool", "sep_conv3", "sep_conv5")
CLASSES = 10

Paths = Sequence[tuple[tuple[int, str], tuple[int, str]]]  # of each node of a cell: source and operation, twice


SPACE = {  # 40 variables; n_theta = 140
    f"{kind}{node}.{part}{slot}": Categorical(range(2 + node) if part == "in" else OPERATIONS)
    for kind in CELL_KINDS
    for node in range(NODES)
    for part in ("in", "op")
    for slot in (1, 2)
}


def cell_paths(values: Mapping[str, Any], kind: str) -> Paths:
    """The two paths of each node of the normal or of the reduction cell.

    >>> cell_paths(values_of([1] * 40), "normal")[4]
    ((1, 'avg_pool'), (1, 'avg_pool'))
    """
    names = [f"{kind}{node}." for node in range(NODES)]
    return [((values[n + "in1"], values[n + "op1"]), (values[n + "in2"], values[n + "op2"])) for n in names]


def loose_ends(paths: Sequence[Iterable[tuple[int, Any]]]) -> list[int]:
    """The nodes that no other node uses; there is always the last one.

    >>> loose_ends([((0, "identity"), (1, "identity")), ((2, "max_pool"), (0, "identity"))])
    [1]
    """
    used = {source for pair in paths for source, _ in pair}
    return [node for node in range(len(paths)) if 2 + node not in used]


def reduction_indices(cells: int) -> tuple[int, int]:
    """The indices of the two reduction cells."""
    return cells // 3, 2 * cells // 3


def values_of(code: Sequence[int]) -> dict[str, Any]:
    """An architecture from 40 numbers: for each node in1, in2, op1, op2; the normal cell first.

    >>> values_of([0, 1, 4, 2] * 10)["reduction4.op1"]
    'sep_conv5'
    """
    if len(code) != len(SPACE) or min(code) < 0:
        raise ValueError(f"an architecture is {len(SPACE)} positions of choices, 20 for each cell, got {list(code)}")
    return {name: variable.choices[number] for (name, variable), number in zip(SPACE.items(), code, strict=True)}


# The architecture with the fewest parameters: pools only, each node on the one before it, so that one end is loose.
SMALLEST = values_of([number for node in range(NODES) for number in (1 + node, 1 + node, 1, 1)] * len(CELL_KINDS))


def code_of(values: Mapping[str, Any]) -> list[int]:
    """The 40 numbers that `values_of` makes these values of."""
    return [variable.choices.index(values[name]) for name, variable in SPACE.items()]


def random_values(seed: int) -> dict[str, Any]:
    """An architecture drawn evenly from the space."""
    random = np.random.default_rng(seed)
    return values_of([int(random.integers(len(variable.choices))) for variable in SPACE.values()])


def cell_inputs(nodes: Iterable[Iterable[tuple[int, Any]]]) -> list[int]:
    """The inputs that a cell reads: 0, the output of cell k-2, and 1, that of cell k-1."""
    return sorted({source for pair in nodes for source, _ in pair if source < 2})


def influential_cells(inputs: Sequence[Sequence[int]], outputs: Iterable[int]) -> set[int]:
    """The cells that some of them depend on, themselves included; inputs are those that each cell looks at.

    >>> influential_cells([[0, 1], [0], [0], [0]], outputs=[3])
    {1, 3}
    """
    found = set(outputs)
    for index in reversed(range(len(inputs))):
        if index in found:
            found.update(index - 2 + source for source in inputs[index])
    return found - {-2, -1}  # the stem


def effective_cells(values: Mapping[str, Any], cells: int) -> set[int]:
    """The cells of a network that have an influence on its output."""
    inputs = {kind: cell_inputs(cell_paths(values, kind)) for kind in CELL_KINDS}
    reductions = reduction_indices(cells)
    return influential_cells([inputs[CELL_KINDS[index in reductions]] for index in range(cells)], [cells - 1])


def idle_cells(values: Mapping[str, Any], cells: int) -> list[int]:
    """The other cells.

    >>> idle_cells(values_of([0, 0, 3, 4] * 10), 8)
    [0, 2, 4, 6]
    """
    return sorted(set(range(cells)) - effective_cells(values, cells))


def describe_idle_parts(values: Mapping[str, Any], idle: Iterable[int], inputs: tuple[str, str]) -> list[str]:
    """Sentences about idle cells, and about inputs, which have names, that no node of a cell reads.

    >>> describe_idle_parts(values_of([0, 0, 3, 4] * 5 + [0, 1, 3, 4] * 5), [0, 6], ("k-2", "k-1"))
    ['The normal cell does not use k-1.', 'Without influence on the output (counted from 0): cells 0, 6.']
    """
    unread = {kind: {0, 1}.difference(cell_inputs(cell_paths(values, kind))) for kind in CELL_KINDS}
    found = [f"The {kind} cell does not use {inputs[source]}." for kind in CELL_KINDS for source in unread[kind]]
    if numbers := ", ".join(map(str, idle)):
        found.append(f"Without influence on the output (counted from 0): cells {numbers}.")
    return found


def num_parameters(
    values: Mapping[str, Any], channels: int, cells: int, *, affine: bool = True, effective: bool = False
) -> int:
    """The parameters of an extracted network without its auxiliary head, counted without making it.

    What is used twice counts once. The way in from a cell that no node looks at counts, though it is
    never computed, as it does in the paper's numbers; so does a cell that no other one looks at. Neither is
    effective.
    """
    counted = effective_cells(values, cells) if effective else range(cells)
    width, before, previous = channels, 3 * channels, 3 * channels
    total = 27 * previous + 2 * previous  # the stem, always affine
    for index in range(cells):
        reduces = index in reduction_indices(cells)
        width *= 2 if reduces else 1
        paths = cell_paths(values, CELL_KINDS[reduces])
        norm = 2 * width if affine else 0
        weights = {
            "identity": width**2 + norm,  # with a stride; without it there are none
            "sep_conv3": 2 * (9 * width + width**2 + norm),
            "sep_conv5": 2 * (25 * width + width**2 + norm),
        }
        if index in counted:
            entries = cell_inputs(paths) if effective else (0, 1)
            total += sum((before, previous)[source] * width + norm for source in entries)
            for source, operation in (path for pair in paths for path in set(pair)):
                if operation != "identity" or (reduces and source < 2):
                    total += weights.get(operation, 0)
            total += len(loose_ends(paths)) * width**2 + norm
        before, previous = previous, width
    return total + (width + 1) * CLASSES


def channels_for(values: Mapping[str, Any], cells: int = 20, max_params: int = 4_000_000) -> int:
    """The largest number of channels with which the retrained network has at most `max_params` parameters."""
    channels = 0
    while num_parameters(values, channels + 1, cells) <= max_params:
        channels += 1
    if not channels:
        minimum = num_parameters(values, 1, cells)
        raise ValueError(
            f"with one channel there are {minimum:,} parameters already, more than max_params={max_params:,}"
        )
    return channels
