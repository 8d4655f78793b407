"""The network of the paper's section 3.2 (supplement D.2): a stem, cells in a row, a classifier.

`Net` holds the weights of all architectures; `asng.nas.extract` makes of it the network of one. Only
what is selected runs, and what two nodes have in common runs once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import fused, nas
from asng.experiments.cifar10 import space
from asng.experiments.cifar10.layers import (
    AveragePool,
    FactorizedReduce,
    PathSum,
    auxiliary_head,
    concatenate,
    norm,
    pointwise,
    run_stem,
    separable,
)
from asng.experiments.cifar10.nodes import Fork, Modules, draw_masks, enter, is_fused, join_ends, run_nodes
from asng.fused._dispatch import can_launch, compute_dtype
from asng.fused._maps import keep_unused
from asng.nas._capture.trace import add_up, share_gradient

Model = TypeVar("Model", bound=nn.Module)


class Cell(nn.Module):
    """The cell of one architecture: two rectified inputs, (n, in, h, w), to (n, C, h', w').

    Fused, it rectifies them itself. The buffer `drop_path` is the probability to drop a path in training. An input that
    no node looks at may be None.
    """

    entries: nn.ModuleList
    operations: nn.ModuleList
    join: nn.Conv2d
    norm: nn.Module
    paths: list[list[tuple[int, int]]]
    inputs: list[int]
    ends: list[int]
    sum: PathSum
    drop_path: Tensor

    def __init__(
        self, entries: nn.ModuleList, nodes: Modules, ends: Sequence[int], join: nn.Conv2d, norm: nn.Module
    ) -> None:
        super().__init__()
        modules = list(dict.fromkeys(module for pair in nodes for _, module in pair))
        self.entries, self.join, self.norm = entries, join, norm
        self.operations = nn.ModuleList(modules)
        self.paths = [[(source, modules.index(module)) for source, module in pair] for pair in nodes]
        self.inputs = space.cell_inputs(nodes)
        self.ends, self.sum = list(ends), PathSum()
        self.register_buffer("drop_path", torch.zeros((), dtype=torch.float64), persistent=False)

    def forward(self, before: Tensor | None, previous: Tensor | None, masks: Tensor | None = None) -> Tensor:
        """Masks of paths are drawn here if there are none."""
        nodes = [[(source, self.operations[index]) for source, index in pair] for pair in self.paths]
        entered = enter(self.entries, (before, previous), self.inputs, self.norm)
        if masks is None and self.training:
            # On a GPU the probability is a tensor, so that a CUDA graph reads it at every replay.
            drop_path: Any = self.drop_path if self.drop_path.is_cuda else self.drop_path.item()
            if isinstance(drop_path, Tensor) or drop_path:
                masks = draw_masks(1 - drop_path, next(iter(entered.values())), len(nodes))
        fan_out = fused.fan_out if is_fused(self.norm) else repeat
        ends = run_nodes(entered, nodes, self.ends, masks, self.sum, fan_out)
        return join_ends(ends, self.join.weight, self.norm)


class FromSource(nn.Module):
    """One of the states of a cell, through one of several operations."""

    source: int
    operation: nas.OneOf

    def __init__(self, source: int, operation: nas.OneOf) -> None:
        super().__init__()
        self.source, self.operation = source, operation

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        result: Tensor = self.operation(states[self.source])
        return result


class SharedCell(nas.Searchable):
    """All cells of a kind in one: every path to a node has weights of its own, and the selected ones run.

    A slot is a path to a node: one of the sources, and of each one of the operations. The two slots of a node, which
    lie side by side, hold the same operations.

    `before` and `previous` are the channels of the inputs; `reduced`: the first is twice as high and
    wide as the second. `reduces`: the paths from both inputs have a stride of 2.
    """

    inputs: tuple[int, int]
    entries: nn.ModuleList
    slots: nn.ModuleList
    join: nn.Conv2d
    norm: nn.BatchNorm2d
    node_sources: Tensor

    def __init__(
        self, before: int, previous: int, channels: int, *, reduced: bool, reduces: bool, affine: bool
    ) -> None:
        super().__init__()
        self.inputs = (0, 1)  # those of all architectures
        older = FactorizedReduce(before, channels, affine) if reduced else pointwise(before, channels, affine)
        self.entries = nn.ModuleList([older, pointwise(previous, channels, affine)])
        self.slots = nn.ModuleList()
        pools = {step: {"avg_pool": AveragePool(step), "max_pool": nn.MaxPool2d(3, step, 1)} for step in (1, 2)}
        for node in range(space.NODES):
            operations = []  # of each source
            for source in range(2 + node):
                step = 2 if reduces and source < 2 else 1
                identity: nn.Module = nn.Identity()
                if step > 1:
                    identity = nn.Sequential(nn.ReLU(), FactorizedReduce(channels, channels, affine))
                convolutions = {f"sep_conv{kernel}": separable(channels, kernel, step, affine) for kernel in (3, 5)}
                operations.append({"identity": identity, **pools[step], **convolutions})  # pools without weights: one
            name = f"{space.CELL_KINDS[reduces]}{node}"
            for slot in (1, 2):
                paths = [FromSource(n, nas.OneOf(f"{name}.op{slot}", named)) for n, named in enumerate(operations)]
                self.slots.append(nas.OneOf(f"{name}.in{slot}", paths))
        # One parameter with the columns of all nodes: all of them decay from the first step on.
        self.join = nn.Conv2d(space.NODES * channels, channels, 1, bias=False)
        self.norm = norm(channels, affine)
        self.register_buffer("node_sources", 2 + torch.arange(space.NODES, dtype=torch.int32), persistent=False)

    def _nodes(self) -> Modules:
        """The selected paths."""
        slots: Any = self._modules["slots"]  # past torch's own ways, which are slow: every pass comes here
        paths = [path for slot in slots._modules.values() for path in slot.active_modules()]
        modules = [(path.source, path._modules["operation"].active_modules()[0]) for path in paths]
        return [modules[at : at + 2] for at in range(0, len(modules), 2)]

    def forward(self, before: Tensor, previous: Tensor) -> Tensor:
        slots: Any = self.slots
        if isinstance(slots[0].index, Tensor):  # a captured step leaves the architecture open
            return self._forward_open(before, previous)
        nodes = self._nodes()
        ends = space.loose_ends(nodes)
        columns = torch.split(self.join.weight, self.join.out_channels, 1)  # of each node
        weight = concatenate([columns[end] for end in ends])
        entered = enter(self.entries, (before, previous), space.cell_inputs(nodes), self.norm)
        maps = run_nodes(entered, nodes, ends)
        return join_ends(maps, weight, self.norm)

    def _forward_open(self, before: Tensor, previous: Tensor) -> Tensor:
        """The same without a look at the values: every slot runs, and columns of ends that are not loose are 0."""
        states = [*enter(self.entries, (before, previous), self.inputs, self.norm).values()]
        for node in range(space.NODES):
            states.append(add_up([*self.slots[2 * node : 2 * node + 2]], states))
        ends = [share_gradient(state) for state in states[2:]] if is_fused(self.norm) else states[2:]
        return join_ends(ends, self._loose_columns(), self.norm)

    def _loose_columns(self) -> Tensor:
        """The weight of the join, with zeros for nodes that are no loose ends, by the device alone."""
        slots: Any = self.slots
        weight, used = self.join.weight, [slot.index for slot in slots]
        if is_fused(self.norm) and can_launch(weight):
            return keep_unused(weight, used, 2, space.NODES)
        is_loose = (torch.stack(used)[:, None] != self.node_sources).all(0)
        columns = weight.view(-1, space.NODES, self.join.out_channels, 1, 1) * is_loose.view(-1, 1, 1, 1)
        return columns.flatten(1, 2)

    def active_modules(self) -> Iterable[nn.Module]:
        used = {source for pair in self._nodes() for source, _ in pair}
        entries = [entry for source, entry in enumerate(self.entries) if source in used]
        return [*entries, *self.slots, self.join, self.norm]

    def build_static(self) -> Cell:
        nodes = self._nodes()
        ends = space.loose_ends(nodes)
        columns = torch.split(self.join.weight.detach(), self.join.out_channels, 1)
        weight = torch.cat([columns[end] for end in ends], 1)
        join = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=False, device="meta")
        join.weight = nn.Parameter(weight)
        return Cell(self.entries, nodes, ends, join, self.norm)


class Net(nn.Module):
    """Images (n, 3, 32, 32) to scores (n, classes), through cells that double the channels twice; 40 decisions.

    Of a static network, cells without an influence on the scores do not run.

    `affine`: batch norms scale and shift, as in retraining; that of the stem always does. With the
    auxiliary head the result is a pair in training mode, its scores second.

    >>> net = Net(channels=4, cells=3)
    >>> nas.select(net, {name: variable.choices[0] for name, variable in space.SPACE.items()})
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    stem: nn.Sequential
    cells: nn.ModuleList
    reduction_indices: tuple[int, int]
    auxiliary: nn.Sequential | None
    classifier: nn.Linear

    def __init__(self, channels: int = 16, cells: int = 8, *, affine: bool = False, auxiliary: bool = False) -> None:
        super().__init__()
        before, previous = 3 * channels, 3 * channels
        self.stem = nn.Sequential(nn.Conv2d(3, previous, 3, padding=1, bias=False), norm(previous, affine=True))
        self.cells = nn.ModuleList()
        self.reduction_indices = space.reduction_indices(cells)
        for index in range(cells):
            reduces, reduced = index in self.reduction_indices, index - 1 in self.reduction_indices
            channels *= 2 if reduces else 1
            self.cells.append(SharedCell(before, previous, channels, reduced=reduced, reduces=reduces, affine=affine))
            before, previous = previous, channels
        self.auxiliary = auxiliary_head(channels, affine) if auxiliary else None
        self.classifier = nn.Linear(channels, space.CLASSES)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        last, middle = len(self.cells) - 1, self.reduction_indices[1]
        with_second = self.auxiliary is not None and self.training
        cells: Any = self.cells
        ends = Counter([last, middle] if with_second else [last])  # that classifiers look at
        needed = space.influential_cells([cell.inputs for cell in cells], ends)
        # Of the stem, -1, and of each cell: the inputs of cells that its output is.
        readers = Counter(max(index - 2 + source, -1) for index in needed for source in cells[index].inputs)
        masks, second = self._draw_masks(images), None
        _, maps = self._share(run_stem(self.stem, images), 0, readers[-1])
        before = previous = maps
        for index, cell in enumerate(cells):
            if index in needed:
                inputs = [next(x) if source in cell.inputs else None for source, x in enumerate((before, previous))]
                output = cell(*inputs) if masks is None else cell(*inputs, masks[index])
                looked_at, maps = self._share(output, ends[index], readers[index])
                if with_second and index == middle:
                    second = Fork(output.device, "auxiliary").run(self.auxiliary, looked_at.pop())  # type: ignore[arg-type]
            before, previous = previous, maps
        scores: Tensor = self.classifier(looked_at.pop().mean((2, 3)))
        return scores if second is None else (scores, second.join())

    def _share(self, output: Tensor, ends: int, readers: int) -> tuple[list[Tensor], Iterator[Tensor]]:
        """The output of a cell for classifiers, as it is, and for the cells that read it, as these take it."""
        if is_fused(self.stem[1]):
            shares = iter(fused.fan_out(output, ends + readers))
            return [next(shares) for _ in range(ends)], shares
        return [output] * ends, repeat(F.relu(output) if readers else output, readers)  # rectified once for all

    def _draw_masks(self, images: Tensor) -> Tensor | None:
        """On a GPU, the masks of all cells at once: fewer kernels than if each drew its own."""
        cells: Any = self.cells
        if not (self.training and images.is_cuda and isinstance(cells[0], Cell)):
            return None
        keep = (1 - torch.stack([cell.drop_path for cell in cells])).view(-1, 1, 1, 1, 1, 1, 1)
        like = images.new_empty(len(images), dtype=compute_dtype(images))
        return draw_masks(keep, like, len(cells), space.NODES)


def set_drop_path(model: nn.Module, drop_prob: float) -> None:
    """Set the probability with which an extracted network drops paths in training."""
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    for cell in cells:
        cell.drop_path.fill_(drop_prob)


def count_without_auxiliary(model: nn.Module) -> int:
    """The parameters of a network without those of its auxiliary head."""
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("auxiliary."))


FUSED: dict[Any, Any] = {AveragePool: fused.AvgPool2d, PathSum: fused.ScaledSum}


def use_fused_kernels(model: Model) -> Model:
    """Let the pools, batch norms, convolutions and sums of a network run fused kernels, where they can."""
    for module in model.modules():
        module.__class__ = FUSED.get(type(module), type(module))
    return fused.fuse(model)
