"""A search step of the paper's CIFAR-10 setting on a GPU: the authors' procedure, plain and captured, in one run.

    python benchmarks/gpu_search.py --out runs/gpu_search           some minutes on an H200
    python benchmarks/gpu_search.py --out runs/gpu_search --quick   a smoke run; its numbers mean little

How it is measured. 8 cells of 16 channels, mini-batches of 64 random images, two candidates in each half, SGD with
momentum and clipping; float32 with TF32, and bfloat16, both channels last. The authors' procedure is that of
authors_search.py, NCHW, as their program runs it. A step is timed from its call to its losses on the host: the median
over steps with random candidates, the same for all rows of ours, but the last. There half of the architectures have too
many parameters, as --max-params counts them, and the graph skips the passes that would judge them. The first captured
step finds all switches, captures them and launches once; with fused kernels it compiles those that were not compiled
before. Kernels are those of torch's profiler, on three more steps; "GPU busy" is the sum of their times, which counts
kernels that run side by side twice, and "busy share" is the time in which at least one of them runs, of that of steps
without the profiler.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import authors_search
import torch
import torch.nn.functional as F
from gpu_measure import Row, run_benchmark
from torch import Tensor, nn

from asng import RandomSearch
from asng.experiments.cifar10.network import Net, use_fused_kernels
from asng.experiments.cifar10.space import random_values
from asng.experiments.cifar10.task import Cifar10, Cifar10SearchSettings
from asng.nas import Limit, OneShot, space_of

PRECISIONS = {"float32 (TF32)": None, "bfloat16": torch.bfloat16}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batches(size: int, memory_format: torch.memory_format, device: str = "cuda") -> list[tuple[Tensor, Tensor]]:
    images = torch.randn(2, size, 3, 32, 32, device=device)
    return [
        (half.contiguous(memory_format=memory_format), torch.randint(10, (size,), device=device)) for half in images
    ]


def authors_step(channels: int, cells: int, size: int) -> Callable[[], Any]:
    torch.manual_seed(0)
    search = authors_search.Search(authors_search.Net(channels, cells).to("cuda"))
    return partial(search.step, *batches(size, torch.contiguous_format))


def our_step(
    channels: int,
    cells: int,
    size: int,
    *,
    amp_dtype: torch.dtype | None,
    capture: bool,
    fused: bool,
    limited: bool = False,
) -> Callable[[], Any]:
    parameters = Cifar10.without_images().size_of(Cifar10SearchSettings(channels=channels, cells=cells))
    torch.manual_seed(0)
    model: Any = Net(channels, cells).to("cuda")
    model = model.to(memory_format=torch.channels_last)
    if fused:
        use_fused_kernels(model)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    search = OneShot(
        model,
        RandomSearch(space_of(model), seed=0),
        weight_optimizer,
        loss,
        max_grad_norm=5.0,
        limits=[Limit(parameters, median(parameters(model, random_values(n)) for n in range(101)))] if limited else [],
        amp_dtype=amp_dtype,
        capture=capture,
    )
    return partial(search.step, *batches(size, torch.channels_last))


def rows(quick: bool) -> Iterator[Row]:
    setting, steps = ((8, 3, 16), 4) if quick else ((16, 8, 64), 60)
    few = max(3, steps // 4)
    yield Row("authors' procedure, float32 (TF32)", partial(authors_step, *setting), few)
    for precision, amp_dtype in PRECISIONS.items():
        prepare = partial(our_step, *setting, amp_dtype=amp_dtype)
        yield Row(f"{precision}, plain", partial(prepare, capture=False, fused=False), few)
        yield Row(f"{precision}, captured", partial(prepare, capture=True, fused=False), steps)
        yield Row(f"{precision}, captured, fused kernels", partial(prepare, capture=True, fused=True), steps)
    limited = partial(prepare, capture=True, fused=True, limited=True)
    yield Row(f"{precision}, captured, fused kernels, half of the architectures infeasible", limited, steps)


if __name__ == "__main__":
    run_benchmark(__doc__, "gpu_search", rows)
