"""What asng itself costs in a step of one-shot search: ask, select and tell of both halves, on a large supernet.

    python benchmarks/step.py --out runs/step           about a minute
    python benchmarks/step.py --out runs/step --quick   a smoke run; its numbers mean little

How it is measured. One core, process time. The supernet has 3,000 modules: cells of nodes, each of
which picks two inputs and two operations among five, as in the paper's classification, with a
decision of its own everywhere, which is the hard case: names are shared by many decisions where all
cells are alike. Ask, select and tell are measured alone. Beside them stands a whole step of `OneShot`
with a loss for nothing, and what torch takes of it: its loops over all parameters, whose gradients
are set to zero and clipped and which the optimizer moves. Under a limit a step measures its four
architectures, all of them new; what that takes is the difference of two whole steps.
"""
# ruff: noqa: E402

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"  # read when NumPy is loaded, hence before everything else

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import asng
from asng.nas import Limit, OneOf, OneShot, Pick, parameters, space_of
from asng.nas.supernet import Supernet

clock = time.process_time
STEP = 20e-3  # seconds, of which asng may take
SHARE = 0.03
MEASURED = 4  # architectures in a step


class Separable(nn.Sequential):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=False),
        )


class Node(nn.Module):
    """Two inputs and two operations among five, own weights for each."""

    def __init__(self, name: str, inputs: int, channels: int) -> None:
        super().__init__()
        self.picks = nn.ModuleList([Pick(f"{name}in{side}", inputs) for side in (1, 2)])
        self.operations = nn.ModuleList(
            [
                OneOf(
                    f"{name}op{side}",
                    [
                        nn.Identity(),
                        nn.AvgPool2d(3, 1, 1),
                        nn.MaxPool2d(3, 1, 1),
                        Separable(channels, 3),
                        Separable(channels, 5),
                    ],
                )
                for side in (1, 2)
            ]
        )

    def forward(self, inputs: list[Tensor]) -> Tensor:
        first, second = (op(pick(inputs)) for op, pick in zip(self.operations, self.picks, strict=True))
        return first + second


class CellNet(nn.Module):
    """Cells of five nodes until there are `modules` of them."""

    def __init__(self, modules: int, shared: bool, channels: int = 4) -> None:
        super().__init__()
        self.cells = nn.ModuleList()
        self.weight = nn.Parameter(torch.ones(()))
        while sum(1 for _ in self.modules()) < modules:
            cell = 0 if shared else len(self.cells)
            self.cells.append(nn.ModuleList([Node(f"c{cell}n{i}", 2 + i, channels) for i in range(5)]))


def constant(model: nn.Module, batch: Any) -> Tensor:
    return model.weight * 1.0  # type: ignore[operator, return-value]


def median(function: Callable[[], Any], repeats: int, times: int) -> float:
    """Seconds of one call: the median over repeats of the mean over times."""
    found = []
    for _ in range(repeats):
        start = clock()
        for _ in range(times):
            function()
        found.append((clock() - start) / times)
    return statistics.median(found)


def measure(modules: int, shared: bool, repeats: int, times: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = CellNet(modules, shared)
    space, supernet = space_of(model), Supernet(model)
    arch_optimizer = asng.ASNG(space, seed=0)
    candidates = arch_optimizer.ask()
    random = np.random.default_rng(0)
    losses = random.random((4096, 2)).tolist()
    parts = {
        "ask": 2 * median(arch_optimizer.ask, repeats, times),
        "select": 4 * median(lambda: supernet.choose(candidates[0].values), repeats, times),
        "tell": median(
            lambda: arch_optimizer.tell(arch_optimizer.ask(), losses[int(random.integers(4096))]), repeats, times
        ),
    }
    parts["tell"] -= parts["ask"] / 2
    whole, training = steps(model, repeats, times)
    few = max(2, times // 10)  # these take ten times as long
    limited, _ = steps(model, repeats, few, [Limit(lambda model, values: 1.0, 2.0, name="free")])
    counted, _ = steps(model, repeats, few, [Limit(parameters, 1e12)])
    own = sum(parts.values())
    return {
        "modules": sum(1 for _ in model.modules()),
        "decisions": sum(1 for m in model.modules() if hasattr(m, "variable")),
        "variables": len(space),
        "shared names": shared,
        **{f"{name}_us": seconds * 1e6 for name, seconds in parts.items()},
        "own_us": own * 1e6,
        "share": own / STEP,
        "step_us": whole * 1e6,
        "training_us": training * 1e6,
        "step_rest_us": (whole - training) * 1e6,
        "limited_us": limited * 1e6,
        "counted_us": counted * 1e6,
        "limit_us": (limited - whole) / MEASURED * 1e6,
        "parameters_us": (counted - whole) / MEASURED * 1e6,
    }


def steps(model: nn.Module, repeats: int, times: int, limits: Any = ()) -> tuple[float, float]:
    """Seconds of a whole step with a loss for nothing, and those that torch takes of it."""
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    arch_optimizer = asng.ASNG(space_of(model), seed=0)
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, constant, max_grad_norm=5.0, limits=limits)
    warnings.filterwarnings("ignore", "nothing has read")  # the loss runs no module
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)  # all touched, as in the middle of a search
    whole = median(lambda: oneshot.step(None, None), repeats, times)

    def train() -> None:
        torch._foreach_zero_([parameter.grad for parameter in parameters if parameter.grad is not None])
        for _ in range(2):
            (constant(model, None) / 2).backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        weight_optimizer.step()

    return whole, median(train, repeats, times)


def table(rows: list[dict[str, Any]]) -> None:
    print(f"asng's own time per step, in µs of process time, and its share of a step of {STEP * 1e3:g} ms")
    columns = {
        "modules": "modules",
        "decisions": "decisions",
        "variables": "variables",
        "ask": "ask_us",
        "select": "select_us",
        "tell": "tell_us",
        "together": "own_us",
        "share": "share",
        "step": "step_us",
        "torch's": "training_us",
        "limits": "limited_us",
        "counted": "counted_us",
    }
    print("  ".join(f"{name:>9}" for name in columns))
    for row in rows:
        cells = [f"{row[key]:.2%}" if key == "share" else f"{row[key]:,.0f}" for key in columns.values()]
        print("  ".join(f"{cell:>9}" for cell in cells))
    print("step: a whole step, its loss for nothing. torch's: its loops over parameters, part of that. limits: a whole")
    print("step with a limit that every architecture meets, measured once each. counted: one on parameters.")
    for row in rows:
        print(
            f"a limit takes {row['parameters_us']:,.0f} µs for each new architecture where it is on parameters, "
            f"{row['limit_us']:,.0f} µs on what is measured for nothing ({row['variables']} variables)"
        )
    worst = max(row["share"] for row in rows)
    print(f"at most {SHARE:.0%} of the step: {'met' if worst <= SHARE else 'MISSED'} ({worst:.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/step"), help="folder for step.json")
    parser.add_argument("--modules", type=int, default=3000)
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    repeats, times = (3, 2) if settings.quick else (21, 20)
    rows = [measure(settings.modules, shared, repeats, times) for shared in (False, True)]
    table(rows)
    settings.out.mkdir(parents=True, exist_ok=True)
    result = {
        "quick": settings.quick,
        "step_ms": STEP * 1e3,
        "rows": rows,
        "machine": platform.platform(),
        "torch": torch.__version__,
    }
    (settings.out / "step.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
