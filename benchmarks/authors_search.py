"""The CIFAR-10 search as the paper's authors run it, in plain PyTorch: a baseline for the speed of a step.

Written after the paper and its supplement D.2. Every selected path runs with torch's own layers, also one that a node
takes twice; nothing is shared between paths, captured or computed in lower precision. The computation is that of
`asng.experiments.cifar10`, as a test compares.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import ASNG
from asng.experiments.cifar10.space import CLASSES, NODES, OPERATIONS, SPACE, code_of, reduction_indices


class Separable(nn.Sequential):
    def __init__(self, channels: int, kernel: int, stride: int, affine: bool = False) -> None:
        layers: list[nn.Module] = []
        for step in (stride, 1):
            depthwise = nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False)
            pointwise = nn.Conv2d(channels, channels, 1, bias=False)
            layers += [nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(channels, affine=affine)]
        super().__init__(*layers)


class Reduce(nn.Module):
    """Half of the channels from even pixels, half from odd ones."""

    def __init__(self, inputs: int, outputs: int, affine: bool = False) -> None:
        super().__init__()
        self.even, self.odd = (nn.Conv2d(inputs, outputs // 2, 1, 2, bias=False) for _ in range(2))
        self.norm = nn.BatchNorm2d(outputs, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], 1))


def entry(inputs: int, outputs: int, affine: bool = False) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, affine=affine))


def operation(index: int, channels: int, stride: int, affine: bool = False) -> nn.Module:
    if index == 0:
        return nn.Identity() if stride == 1 else Reduce(channels, channels, affine)
    if index < 3:
        return (nn.AvgPool2d, nn.MaxPool2d)[index - 1](3, stride, 1)
    return Separable(channels, (3, 5)[index - 3], stride, affine)


class Cell(nn.Module):
    def __init__(self, before: int, previous: int, channels: int, reduced: bool, reduces: bool) -> None:
        super().__init__()
        self.first = Reduce(before, channels) if reduced else entry(before, channels)
        self.second = entry(previous, channels)
        self.paths = nn.ModuleList(
            nn.ModuleList(
                nn.ModuleList(
                    operation(index, channels, 2 if reduces and source < 2 else 1) for index in range(len(OPERATIONS))
                )
                for source in range(2 + node)
            )
            for node in range(NODES)
        )
        self.join = nn.Parameter(torch.empty(channels, NODES * channels, 1, 1))
        nn.init.kaiming_uniform_(self.join, 5**0.5)
        self.norm = nn.BatchNorm2d(channels, affine=False)

    def forward(self, before: Tensor, previous: Tensor, code: list[int]) -> Tensor:
        states, paths = [self.first(before), self.second(previous)], [*self.paths]
        used = set()
        for node in range(NODES):
            sources: Any = paths[node]
            in1, in2, op1, op2 = code[4 * node : 4 * node + 4]
            states.append(sources[in1][op1](states[in1]) + sources[in2][op2](states[in2]))
            used |= {in1, in2}
        ends = [node for node in range(NODES) if 2 + node not in used]
        columns = torch.cat([self.join.chunk(NODES, 1)[end] for end in ends], 1)
        joined = F.conv2d(F.relu(torch.cat([states[2 + end] for end in ends], 1)), columns)
        return self.norm(joined)


class CellNet(nn.Module):
    """The stem, cells that double the channels twice, each made by `make_cell`, and the classifier."""

    def __init__(self, channels: int, cells: int, make_cell: Callable[[int, int, int, bool, bool], nn.Module]) -> None:
        super().__init__()
        before, previous = 3 * channels, 3 * channels
        self.stem = nn.Sequential(nn.Conv2d(3, previous, 3, padding=1, bias=False), nn.BatchNorm2d(previous))
        self.cells, self.reductions = nn.ModuleList(), reduction_indices(cells)
        for index in range(cells):
            reduces = index in self.reductions
            channels *= 2 if reduces else 1
            self.cells.append(make_cell(before, previous, channels, index - 1 in self.reductions, reduces))
            before, previous = previous, channels
        self.classifier = nn.Linear(channels, CLASSES)


class Net(CellNet):
    def __init__(self, channels: int = 16, cells: int = 8) -> None:
        super().__init__(channels, cells, Cell)

    def forward(self, images: Tensor, code: list[int]) -> Tensor:
        """`code` holds the position of each of the 40 values."""
        before = previous = self.stem(images)
        for index, cell in enumerate(self.cells):
            half = len(code) // 2 if index in self.reductions else 0
            before, previous = previous, cell(before, previous, code[half : half + len(code) // 2])
        return self.classifier(previous.mean((2, 3)))


class Search:
    """A step is one iteration: gradients of two samples, a step of SGD, then two samples that move the distribution."""

    def __init__(self, model: Net, seed: int = 0) -> None:
        self.model, self.arch_optimizer = model, ASNG(SPACE, seed=seed)
        self.weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)

    def loss(self, values: Mapping[str, Any], batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0], code_of(values)), batch[1])

    def step(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor]) -> list[float]:
        self.weight_optimizer.zero_grad(set_to_none=False)
        drawn = self.arch_optimizer.ask()
        for candidate in drawn:
            (self.loss(candidate.values, train) / len(drawn)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.weight_optimizer.step()
        candidates = self.arch_optimizer.ask()
        with torch.no_grad():
            losses = [self.loss(candidate.values, valid).item() for candidate in candidates]
        self.arch_optimizer.tell(candidates, losses)
        return losses
