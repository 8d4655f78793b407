"""The training from scratch as the paper's authors run it, in plain PyTorch: a baseline for the speed of a step.

Written after the paper and its supplement D.2. All cells run with torch's own layers, also those without an influence
on the scores, and so does a path that a node takes twice; nothing is captured or computed in lower precision. The
computation is that of `asng.experiments.cifar10`, as a test compares.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from authors_search import CellNet, Reduce, entry, operation
from torch import Tensor, nn

from asng.experiments.cifar10.space import CLASSES, NODES


class Cell(nn.Module):
    """`code` has in1, in2, op1, op2 of each node."""

    def __init__(
        self, before: int, previous: int, channels: int, reduced: bool, reduces: bool, code: Sequence[int]
    ) -> None:
        super().__init__()
        self.first = (Reduce if reduced else entry)(before, channels, affine=True)
        self.second = entry(previous, channels, affine=True)
        self.sources, self.paths = [], nn.ModuleList()
        for node in range(NODES):
            in1, in2, op1, op2 = code[4 * node : 4 * node + 4]
            pair = [
                operation(op, channels, 2 if reduces and source < 2 else 1, affine=True)
                for source, op in ((in1, op1), (in2, op2))
            ]
            self.sources.append((in1, in2))
            self.paths.append(nn.ModuleList([pair[0], pair[0] if (in1, op1) == (in2, op2) else pair[1]]))
        self.ends = sorted(set(range(NODES)) - {source - 2 for pair in self.sources for source in pair})
        self.join = nn.Conv2d(len(self.ends) * channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, before: Tensor, previous: Tensor, drop_path: float) -> Tensor:
        states = [self.first(before), self.second(previous)]
        pairs: Any = self.paths
        for sources, pair in zip(self.sources, pairs, strict=True):
            a, b = (drop(path, path(states[source]), drop_path) for source, path in zip(sources, pair, strict=True))
            states.append(a + b)
        result: Tensor = self.norm(self.join(F.relu(torch.cat([states[2 + end] for end in self.ends], 1))))
        return result


def drop(path: nn.Module, x: Tensor, drop_path: float) -> Tensor:
    """Drop a path, but an identity, with a probability for each image; scale up those that stay."""
    if not drop_path or isinstance(path, nn.Identity):
        return x
    return x * (torch.rand(len(x), 1, 1, 1, device=x.device) >= drop_path) / (1 - drop_path)


class Net(CellNet):
    """The network of an architecture, `code` its 40 numbers; gives the scores and those of the auxiliary head."""

    def __init__(self, channels: int, cells: int, code: Sequence[int]) -> None:
        def make_cell(before: int, previous: int, channels: int, reduced: bool, reduces: bool) -> Cell:
            half = code[len(code) // 2 :] if reduces else code[: len(code) // 2]
            return Cell(before, previous, channels, reduced, reduces, half)

        super().__init__(channels, cells, make_cell)
        self.auxiliary = nn.Sequential(
            nn.ReLU(),
            nn.AvgPool2d(5, 3),
            nn.Conv2d(4 * channels, 128, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 768, 2, bias=False),
            nn.BatchNorm2d(768),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(768, CLASSES),
        )

    def forward(self, images: Tensor, drop_path: float = 0.0) -> tuple[Tensor, Tensor]:
        before = previous = self.stem(images)
        for index, cell in enumerate(self.cells):
            before, previous = previous, cell(before, previous, drop_path)
            if index == self.reductions[1]:
                second = self.auxiliary(previous)
        return self.classifier(previous.mean((2, 3))), second


class Training:
    """A step is one mini-batch: the gradient of both heads, clipped, and a step of SGD."""

    def __init__(self, model: Net, drop_path: float) -> None:
        self.model, self.drop_path = model, drop_path
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)

    def step(self, images: Tensor, labels: Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=False)
        scores, auxiliary = self.model(images, self.drop_path)
        loss = F.cross_entropy(scores, labels) + 0.4 * F.cross_entropy(auxiliary, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        return loss.item()
