"""Dropped paths: how many training images they cut off from the output of a network, computed exactly.

A node that has lost both of its paths passes nothing on of an image, and so on through the cells. Each image and each
path has a mask of its own, so whether an image gets through the last two cells is a Markov chain over the cells.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from asng._ragged import Array
from asng.experiments.cifar10.space import CELL_KINDS, NODES, Paths, cell_paths, loose_ends, reduction_indices


class CutOff(NamedTuple):
    """The share of the images that do not reach the classifier, and of those that do not reach the auxiliary head."""

    output: float
    auxiliary: float


def measure_cut_off(values: Mapping[str, Any], cells: int, drop_path: float) -> CutOff:
    """Of a network in training, where paths are dropped with the probability `drop_path`.

    >>> from asng.experiments.cifar10.space import values_of
    >>> chain = values_of([1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 2, 2, 4, 4, 2, 2, 5, 5, 2, 2] * 2)  # of pools, two by two
    >>> cut_off = measure_cut_off(chain, cells=3, drop_path=0.5)
    >>> round(cut_off.output, 4), round(1 - (1 - 0.5**2) ** 15, 4)
    (0.9866, 0.9866)
    """
    losses = {kind: _lose_in_cell(cell_paths(values, kind), kind == CELL_KINDS[1], drop_path) for kind in CELL_KINDS}
    reductions = reduction_indices(cells)
    arrived, auxiliary = np.zeros((2, 2)), 0.0  # by whether an image is in the outputs of cells k-2 and k-1
    arrived[1, 1] = 1.0
    for index in range(cells):
        lost = losses[CELL_KINDS[index in reductions]]
        arrived = np.stack([(arrived * lost).sum(0), (arrived * (1 - lost)).sum(0)], axis=1)
        if index == reductions[1]:
            auxiliary = float(arrived[:, 0].sum())
    return CutOff(float(arrived[:, 0].sum()), auxiliary)


def _lose_in_cell(paths: Paths, reduces: bool, drop_path: float) -> Array:
    """The probability that a cell passes nothing on of an image, (2, 2), by whether it is in its two inputs."""
    # An identity is never dropped, but for that of a reduction's inputs, which is a convolution.
    drops = [[op != "identity" or (reduces and source < 2) for source, op in pair] for pair in paths]
    kept = np.array(list(product((False, True), repeat=2 * NODES))).reshape(-1, NODES, 2)
    probability = np.where(kept, np.where(drops, 1 - drop_path, 1.0), np.where(drops, drop_path, 0.0)).prod((1, 2))
    lost = np.zeros((2, 2))
    for inputs in product((0, 1), repeat=2):
        arrived = [np.full(len(kept), bool(given)) for given in inputs]
        for node, ((first, _), (second, _)) in enumerate(paths):
            arrived.append(arrived[first] & kept[:, node, 0] | arrived[second] & kept[:, node, 1])
        lost[inputs] = probability[~np.any([arrived[2 + end] for end in loose_ends(paths)], axis=0)].sum()
    return lost
