"""A search step of the paper's CIFAR-10 setting on a GPU: the plain path and the captured one, in one run.

    python benchmarks/gpu_search.py --out runs/gpu_search           about two minutes on an H200
    python benchmarks/gpu_search.py --out runs/gpu_search --quick   a smoke run; its numbers mean little

How it is measured. 8 cells of 16 channels, mini-batches of 64 random images, two candidates in each half, SGD with
momentum and clipping, channels last; float32 with TF32, and bfloat16. A step is timed from its call to its losses,
which are on the host when it returns: the median over steps with candidates of their own. Capturing is timed apart:
the first captured step finds all switches, captures them and launches once.
"""

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import ASNG
from asng.experiments.cifar10.network import Net
from asng.nas import OneShot, space_of

PRECISIONS = {"float32 (TF32)": None, "bfloat16": torch.bfloat16}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batch(size: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(size, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    return images, torch.randint(10, (size,), device="cuda")


def oneshot(model: nn.Module, amp_dtype: torch.dtype | None, capture: bool) -> OneShot:
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    arch_optimizer = ASNG(space_of(model), seed=0)
    return OneShot(
        model, arch_optimizer, weight_optimizer, loss, max_grad_norm=5.0, amp_dtype=amp_dtype, capture=capture
    )


def measured(search: OneShot, size: int, steps: int) -> dict[str, Any]:
    """Milliseconds of steps, seconds of the first, gigabytes."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = []
    for _ in range(steps + 3):
        train, valid = batch(size), batch(size)
        torch.cuda.synchronize()
        start = time.perf_counter()
        search.step(train, valid)
        seconds.append(time.perf_counter() - start)
    first, times = seconds[0], seconds[3:]
    return {
        "step_ms": 1e3 * statistics.median(times),
        "fastest_ms": 1e3 * min(times),
        "slowest_ms": 1e3 * max(times),
        "first_step_s": first,
        "peak_gb": (torch.cuda.max_memory_allocated() - before) / 1e9,
        "reserved_gb": torch.cuda.memory_reserved() / 1e9,
    }


def rows(cells: int, channels: int, size: int, steps: int) -> list[dict[str, Any]]:
    result = []
    for name, amp_dtype in PRECISIONS.items():
        torch.manual_seed(0)
        model: Any = Net(channels, cells).to("cuda")
        model = model.to(memory_format=torch.channels_last)
        for capture in (False, True):
            search = oneshot(copy.deepcopy(model), amp_dtype, capture)
            number = steps if capture else max(3, steps // 4)
            result.append({"precision": name, "captured": capture, **measured(search, size, number)})
            del search
    return result


def table(measurements: list[dict[str, Any]]) -> None:
    print(f"{'':<16}{'':<10}{'ms a step':>10}{'fastest':>9}{'slowest':>9}{'first, s':>10}{'reserved GB':>13}")
    for row in measurements:
        kind = "captured" if row["captured"] else "plain"
        numbers = (
            f"{row['step_ms']:>10.1f}{row['fastest_ms']:>9.1f}{row['slowest_ms']:>9.1f}{row['first_step_s']:>10.1f}"
        )
        print(f"{row['precision']:<16}{kind:<10}{numbers}{row['reserved_gb']:>13.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_search"), help="folder for gpu_search.json")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_search.py needs a CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measurements = rows(3, 8, 16, 4) if settings.quick else rows(8, 16, 64, 60)
    table(measurements)
    settings.out.mkdir(parents=True, exist_ok=True)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    result = {"quick": settings.quick, **machine, "rows": measurements}
    (settings.out / "gpu_search.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
