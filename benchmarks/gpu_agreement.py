"""Losses of captured steps beside those of plain ones: the first 20 steps of the paper's CIFAR-10 search on a GPU.

    python benchmarks/gpu_agreement.py --out runs/gpu_agreement           some minutes on an H200
    python benchmarks/gpu_agreement.py --out runs/gpu_agreement --quick   a smoke run: 3 steps of a small network
    python benchmarks/gpu_agreement.py --out runs/gpu_agreement --only bfloat16   rows by name, beside their plain steps

How it is compared. 8 cells of 16 channels, mini-batches of 64 random images, two candidates in each half, SGD with
momentum and clipping, channels last. All rows of a precision begin with the same weights and see the same mini-batches;
each is compared with the plain steps of that precision, loss by loss. In float64 ASNG with the same seed draws the
candidates, and each search tells it its own losses. In float32 with TF32 and in bfloat16 candidates are random and the
same, since a rounding error may exchange two ranks. How far rounding alone drives losses apart is the row of plain
steps that begin with the weights of the first convolution times 1 + epsilon of the precision, about a last place.
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from gpu_measure import choose_names, describe_gpu
from gpu_search import batches, loss

from asng import ASNG, RandomSearch
from asng.experiments.cifar10.network import Net, use_fused_kernels
from asng.nas import OneShot, space_of

PRECISIONS = {"float64": torch.float64, "float32 (TF32)": torch.float32, "bfloat16": torch.bfloat16}
ROWS: dict[str, dict[str, Any]] = {
    "plain, moved by a last place": {"moved": True},
    "captured": {"capture": True},
    "captured, fused kernels": {"capture": True, "fused": True},
}


def first_losses(
    setting: tuple[int, int, int],
    steps: int,
    precision: str,
    *,
    moved: bool = False,
    capture: bool = False,
    fused: bool = False,
    device: str = "cuda",
) -> torch.Tensor:
    """The losses of steps, (steps, 4): two of candidates that are trained, two of candidates that are judged."""
    channels, cells, size = setting
    dtype = torch.float64 if precision == "float64" else torch.float32
    torch.manual_seed(0)
    model: Any = Net(channels, cells).to(device, dtype)
    model = model.to(memory_format=torch.channels_last)
    if fused:
        use_fused_kernels(model)
    if moved:
        model.stem[0].weight.data *= 1 + torch.finfo(PRECISIONS[precision]).eps
    search = OneShot(
        model,
        (ASNG if precision == "float64" else RandomSearch)(space_of(model), seed=0),
        torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4),
        loss,
        max_grad_norm=5.0,
        amp_dtype=torch.bfloat16 if precision == "bfloat16" else None,
        capture=capture,
    )
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        train, valid = ((images.to(dtype), labels) for images, labels in batches(size, torch.channels_last, device))
        step = search.step(train, valid)
        losses.append([*step.train_losses, *step.valid_losses])
    if capture and not search.capture_cost:
        raise SystemExit("the step was not captured")
    return torch.tensor(losses, dtype=torch.float64)


def row_names(precision: str) -> dict[str, str]:
    """The names of the rows of a precision, each with its key in `ROWS`; float64 has no fused kernels."""
    ways = [way for way, options in ROWS.items() if precision != "float64" or not options.get("fused")]
    return {f"{precision}, {way}": way for way in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_agreement"), help="folder for gpu_agreement.json")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="compare rows of these names, or that contain one of these"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    names = choose_names([name for precision in PRECISIONS for name in row_names(precision)], settings.only)
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_agreement.py needs a CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    setting, steps = ((8, 3, 16), 3) if settings.quick else ((16, 8, 64), 20)
    result: dict[str, Any] = {"quick": settings.quick, **describe_gpu(), "rows": []}
    settings.out.mkdir(parents=True, exist_ok=True)
    for precision in PRECISIONS:
        chosen = {name: way for name, way in row_names(precision).items() if name in names}
        expected = first_losses(setting, steps, precision) if chosen else torch.empty(0)
        for name, way in chosen.items():
            gc.collect()  # an earlier graph and its memory
            torch.cuda.empty_cache()
            start = time.perf_counter()
            differences = (first_losses(setting, steps, precision, **ROWS[way]) - expected).abs()
            row = {"name": name, "losses": differences.numel()}
            row |= {"largest": differences.max().item(), "first": differences[0].max().item()}
            numbers = f"{row['largest']:.1e} at most, {row['first']:.1e} in the first step"
            print(f"{name}: {numbers} ({time.perf_counter() - start:.0f} s)", flush=True)
            result["rows"].append(row)
            (settings.out / "gpu_agreement.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
