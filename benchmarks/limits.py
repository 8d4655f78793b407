"""What limits cost: a search on a MobileNet-like supernet under limits on parameters, FLOPs and latency.

    python benchmarks/limits.py            # the same search without and with limits, and their ratio

The supernet has 36 decisions: depth, width and activation of four stages, kernel size and expansion of twelve inverted
residual blocks. Each limit is the median of random architectures, so about half of them meet it at the start. Both
searches run side by side, some steps of one, then of the other, so that a busy machine slows both down.
"""

import argparse
import statistics
import sys
import time

import torch
from torch import Tensor, nn

from asng import ASNG, Integer, RandomSearch, nas

TARGET = 1.5  # times as long as without limits
STAGES = ((16, 24, 1), (24, 40, 2), (48, 80, 2), (80, 128, 1))  # smallest and largest width, stride
BLOCKS = 3  # in each stage at most
CLASSES = 10
DRAWS = 50  # random architectures, whose medians are the limits
CHUNK = 5  # steps of one search before the other goes on


class Block(nn.Module):
    """Inverted residual: 1x1 expands, depthwise 3x3 or 5x5, 1x1 projects."""

    def __init__(self, name: str, takes: nas.Width, gives: nas.Width, act: nn.Module, largest: int, stride: int):
        super().__init__()
        hidden = nas.Width(f"{name}.hidden", [2 * largest, 4 * largest, 6 * largest])
        kernel = nas.Value(f"{name}.kernel", Integer(2, 3)) * 2 - 1
        self.body = nn.Sequential(
            nas.Conv2d(takes, hidden, 1, bias=False),
            nas.BatchNorm2d(hidden),
            act,
            nas.Conv2d(hidden, hidden, kernel, stride, padding=2, groups=hidden, bias=False),
            nas.BatchNorm2d(hidden),
            act,
            nas.Conv2d(hidden, gives, 1, bias=False),
            nas.BatchNorm2d(gives),
        )
        self.adds = takes is gives and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


class Net(nn.Sequential):
    """Images (n, 3, 32, 32) to scores (n, 10)."""

    def __init__(self) -> None:
        widths = [
            nas.Width(f"stage{n}.width", list(range(low, high + 1, 8))) for n, (low, high, _) in enumerate(STAGES)
        ]
        stem = nn.Sequential(nas.Conv2d(3, widths[0], 3, padding=1, bias=False), nas.BatchNorm2d(widths[0]), nn.ReLU6())
        stages = []
        for n, (_, largest, stride) in enumerate(STAGES):
            act = nas.OneOf(f"stage{n}.act", {"relu6": nn.ReLU6(), "hardswish": nn.Hardswish()})
            first = Block(f"stage{n}.0", widths[max(n - 1, 0)], widths[n], act, largest, stride)
            others = [Block(f"stage{n}.{k}", widths[n], widths[n], act, largest, 1) for k in range(1, BLOCKS)]
            stages.append(nas.Repeat(f"stage{n}.depth", [first, *others]))
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nas.Linear(widths[-1], CLASSES)]
        super().__init__(stem, *stages, *head)


def measures() -> dict[str, nas.Measure]:
    image = torch.zeros(1, 3, 32, 32)
    return {"parameters": nas.parameters, "FLOPs": nas.Flops(image), "latency": nas.Latency(image)}


def median_limits() -> list[nas.Limit]:
    torch.manual_seed(0)
    model = Net()
    values = [candidate.values for candidate in RandomSearch(nas.space_of(model), seed=0).ask(DRAWS)]
    costs = {name: [float(measure(model, v)) for v in values] for name, measure in measures().items()}
    return [nas.Limit(measure, statistics.median(costs[name]), name=name) for name, measure in measures().items()]


class Search:
    """A search of the supernet on random images, whose steps are timed."""

    def __init__(self, limits: list[nas.Limit], batch_size: int) -> None:
        torch.manual_seed(0)
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), weight_optimizer, loss, limits=limits)
        self.batch = (torch.randn(batch_size, 3, 32, 32), torch.randint(CLASSES, (batch_size,)))
        self.seconds, self.feasible, self.asked = 0.0, 0, 0

    def run(self, steps: int) -> None:
        started = time.perf_counter()
        for _ in range(steps):
            step = self.oneshot.step(self.batch, self.batch)
            self.feasible += sum(not violation for violation in step.violations)
            self.asked += len(step.violations)
        self.seconds += time.perf_counter() - started


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=8, help="small batches are the hard case: steps are short")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    limits = median_limits()
    print(f"{len(nas.space_of(Net()))} decisions; limits:", *(f"{limit.name} {limit.at_most:.4g}" for limit in limits))
    free, limited = Search([], arguments.batch_size), Search(limits, arguments.batch_size)
    for search in (free, limited):
        search.run(1)  # what torch does only once
        search.seconds = 0.0
    for done in range(0, arguments.steps, CHUNK):
        for search in (free, limited):
            search.run(min(CHUNK, arguments.steps - done))
    ratio = limited.seconds / free.seconds
    for name, search in {"without limits": free, "with limits": limited}.items():
        share = search.feasible / search.asked
        print(f"{name:15}{1000 * search.seconds / arguments.steps:8.1f} ms per step, {share:.0%} feasible")
    print(f"ratio {ratio:.2f}, target {TARGET}")
    sys.exit(ratio > TARGET)


if __name__ == "__main__":
    main()
