"""A search step of the paper's CIFAR-10 setting on a GPU: the authors' procedure, plain and captured, in one run.

    python benchmarks/gpu_search.py --out runs/gpu_search           about two minutes on an H200
    python benchmarks/gpu_search.py --out runs/gpu_search --quick   a smoke run; its numbers mean little

How it is measured. 8 cells of 16 channels, mini-batches of 64 random images, two candidates in each half, SGD with
momentum and clipping; float32 with TF32, and bfloat16, both channels last. The authors' procedure is that of
authors_search.py, NCHW, as their program runs it. A step is timed from its call to its losses on the host: the median
over steps with candidates of their own. The first captured step finds all switches, captures them and launches once.
Kernels are those of torch's profiler, on three more steps; "GPU busy" is the sum of their times, which counts kernels
that run side by side twice.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import authors_search
import torch
import torch.nn.functional as F
from gpu_measure import describe_gpu, measure, print_table, require_gpu
from torch import Tensor, nn

from asng import ASNG
from asng.experiments.cifar10.network import Net, use_fused_kernels
from asng.nas import OneShot, space_of

PRECISIONS = {"float32 (TF32)": None, "bfloat16": torch.bfloat16}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batch(size: int, memory_format: torch.memory_format) -> tuple[Tensor, Tensor]:
    images = torch.randn(size, 3, 32, 32, device="cuda").contiguous(memory_format=memory_format)
    return images, torch.randint(10, (size,), device="cuda")


def oneshot(model: nn.Module, amp_dtype: torch.dtype | None, capture: bool) -> OneShot:
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    arch_optimizer = ASNG(space_of(model), seed=0)
    return OneShot(
        model, arch_optimizer, weight_optimizer, loss, max_grad_norm=5.0, amp_dtype=amp_dtype, capture=capture
    )


def measure_search(search: Any, size: int, steps: int, memory_format: torch.memory_format) -> dict[str, float]:
    batches = [batch(size, memory_format) for _ in range(2)]
    return measure(lambda: search.step(*batches), steps)


def rows(cells: int, channels: int, size: int, steps: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    few = max(3, steps // 4)
    authors = authors_search.Search(authors_search.Net(channels, cells).to("cuda"))
    numbers = measure_search(authors, size, few, torch.contiguous_format)
    result = [{"name": "authors' procedure, float32 (TF32)", **numbers}]
    del authors
    for precision, amp_dtype in PRECISIONS.items():
        torch.manual_seed(0)
        model: Any = Net(channels, cells).to("cuda")
        model = model.to(memory_format=torch.channels_last)
        for capture, fused in ((False, False), (True, False), (True, True)):
            copied = copy.deepcopy(model)
            search = oneshot(use_fused_kernels(copied) if fused else copied, amp_dtype, capture)
            name = f"{precision}, {'captured' if capture else 'plain'}{', fused kernels' if fused else ''}"
            numbers = measure_search(search, size, steps if capture else few, torch.channels_last)
            result.append({"name": name, **numbers})
            del search
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_search"), help="folder for gpu_search.json")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    require_gpu("benchmarks/gpu_search.py")
    measurements = rows(3, 8, 16, 4) if settings.quick else rows(8, 16, 64, 60)
    print_table(measurements)
    settings.out.mkdir(parents=True, exist_ok=True)
    result = {"quick": settings.quick, **describe_gpu(), "rows": measurements}
    (settings.out / "gpu_search.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
