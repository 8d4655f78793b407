"""First-order DARTS (Liu et al., ICLR 2019) on the operations and the network of the paper's CIFAR-10 search.

A node adds up all five operations on all states before it, 20 x 5 paths in a cell, each times its weight: a softmax
over the operations of an edge, of logits that all cells of a kind share. All nodes make up the output of a cell. Logits
and weights take turns, as in Liu et al.: a step of Adam on validation images, then one of SGD on training images. There
is no operation "none", and pools have no batch norm, as in the paper's search. What is found is an architecture of the
paper's space: trained from scratch by `asng cifar10 retrain`, only its loose ends make up the output.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asng.experiments.cifar10.network import Net, SharedCell
from asng.experiments.cifar10.nodes import enter, join_ends
from asng.experiments.cifar10.space import CELL_KINDS, NODES, OPERATIONS, cell_paths

FIRST_EDGES = [sum(range(2, 2 + node)) for node in range(NODES + 1)]  # of each node, and the number of all: 20
Mix = Sequence[Sequence[Any]]  # of each edge, the weight of each operation: tensors, or numbers


class MixedCell(nn.Module):
    """A cell with the entries, operations and join of a `SharedCell`, and all of its paths at once."""

    mix: Mix

    def __init__(self, cell: SharedCell) -> None:
        super().__init__()
        self.inputs, self.entries, self.join, self.norm = cell.inputs, cell.entries, cell.join, cell.norm
        slots: Any = cell.slots[::2]  # the second slot of a node holds the same operations
        self.edges = nn.ModuleList(path.operation.options for slot in slots for path in slot.options)

    def forward(self, before: Tensor, previous: Tensor) -> Tensor:
        states = [*enter(self.entries, (before, previous), self.inputs, self.norm).values()]
        edges: Any = self.edges
        for node in range(NODES):
            terms = []
            for source, edge in enumerate(range(FIRST_EDGES[node], FIRST_EDGES[node + 1])):
                for weight, operation in zip(self.mix[edge], edges[edge], strict=True):
                    if isinstance(weight, Tensor) or weight:
                        terms.append(weight * operation(states[source]))
            states.append(sum(terms[1:], terms[0]))
        return join_ends(states[2:], self.join.weight, self.norm)


class MixedNet(nn.Module):
    """The network of a search with mixed cells, and the logits of each kind of cell."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        shared: Any = net.cells
        net.cells = nn.ModuleList(MixedCell(cell) for cell in shared)
        self.net = net
        shape = FIRST_EDGES[-1], len(OPERATIONS)
        self.alphas = nn.ParameterDict({kind: 1e-3 * torch.randn(shape) for kind in CELL_KINDS})

    def forward(self, images: Tensor, values: Mapping[str, Any] | None = None) -> Tensor:
        """Mixed by the logits, or, given its values, one architecture with all nodes as loose ends."""
        mixes = {kind: self._mix(kind) if values is None else one_hot(values, kind) for kind in CELL_KINDS}
        cells: Any = self.net.cells
        for index, cell in enumerate(cells):
            cell.mix = mixes[CELL_KINDS[index in self.net.reduction_indices]]
        result: Tensor = self.net(images)
        for cell in cells:
            cell.mix = ()  # copies of the network have no use for it
        return result

    def _mix(self, kind: str) -> Mix:
        return [tuple(edge) for edge in self.alphas[kind].softmax(1)]

    def weights(self) -> list[nn.Parameter]:
        """All parameters but the logits."""
        return list(self.net.parameters())


def one_hot(values: Mapping[str, Any], kind: str) -> Mix:
    """The weights that leave the paths of an architecture alone: how often a node has each."""
    mix = [[0] * len(OPERATIONS) for _ in range(FIRST_EDGES[-1])]
    for node, pair in enumerate(cell_paths(values, kind)):
        for source, operation in pair:
            mix[FIRST_EDGES[node] + source][OPERATIONS.index(operation)] += 1
    return mix


def derive(alphas: nn.ParameterDict) -> dict[str, Any]:
    """What DARTS finds: of each node the two edges whose best operation weighs most, with that operation."""
    values: dict[str, Any] = {}
    for kind in CELL_KINDS:
        weights = alphas[kind].detach().softmax(1).cpu()
        for node in range(NODES):
            best = weights[FIRST_EDGES[node] : FIRST_EDGES[node + 1]].max(1)
            sources = sorted(best.values.topk(2).indices.tolist())
            for slot, source in enumerate(sources, 1):
                values[f"{kind}{node}.in{slot}"] = source
                values[f"{kind}{node}.op{slot}"] = OPERATIONS[best.indices[source]]
    return values
