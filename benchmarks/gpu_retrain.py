"""A training step of the paper's retraining on a GPU: plain and captured, in one run.

    python benchmarks/gpu_retrain.py --out runs/gpu_retrain           about two minutes on an H200
    python benchmarks/gpu_retrain.py --out runs/gpu_retrain --quick   a smoke run; its numbers mean little

How it is measured. Networks of 20 cells with as many channels as 4.0e6 parameters allow, auxiliary head, drop path,
mini-batches of 80 random images, SGD with momentum and clipping. The architectures are random ones, by their seeds, and
those of files. Plain steps in float32 are NCHW, the others channels last, each its faster way. A step is timed until
the GPU has finished: the median. Kernels are those of torch's profiler, on three more steps.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_measure import describe_gpu, measure, print_table, require_gpu
from torch import Tensor, nn

from asng import nas
from asng.experiments._train_step import TrainStep
from asng.experiments.cifar10.network import Net, set_drop_path, use_fused_kernels
from asng.experiments.cifar10.space import SPACE, channels_for, random_values

WAYS = {  # type, channels last, captured, fused kernels
    "float32 (TF32), NCHW, plain": (None, False, False, False),
    "float32 (TF32), NCHW, captured": (None, False, True, False),
    "float32 (TF32), channels last, captured, fused kernels": (None, True, True, True),
    "bfloat16, channels last, plain": (torch.bfloat16, True, False, False),
    "bfloat16, channels last, captured": (torch.bfloat16, True, True, False),
    "bfloat16, channels last, captured, fused kernels": (torch.bfloat16, True, True, True),
}


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    logits, auxiliary = model(batch[0])
    return F.cross_entropy(logits, batch[1]) + 0.4 * F.cross_entropy(auxiliary, batch[1])


def train_step(values: dict[str, Any], channels: int, cells: int, way: str) -> TrainStep:
    amp_dtype, channels_last, _, fused = WAYS[way]
    torch.manual_seed(0)
    model: Any = nas.extract(Net(channels, cells, affine=True, auxiliary=True), values).to("cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    if fused:
        use_fused_kernels(model)
    set_drop_path(model, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4, fused=True)
    return TrainStep(model, optimizer, loss, max_grad_norm=5.0, amp_dtype=amp_dtype)


def rows(name: str, values: dict[str, Any], cells: int, size: int, steps: int) -> list[dict[str, Any]]:
    channels = channels_for(values, cells)
    result = []
    for way, (_, channels_last, captured, _) in WAYS.items():
        step = train_step(values, channels, cells, way)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = torch.randn(size, 3, 32, 32, device="cuda").contiguous(memory_format=layout)
        batch = images, torch.randint(10, (size,), device="cuda")
        call = partial(step if captured else step._step, batch)
        numbers = measure(call, steps if captured else max(3, steps // 4))
        result.append({"name": f"{name}, {channels} channels, {way}", **numbers})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_retrain"), help="folder for gpu_retrain.json")
    parser.add_argument("--architectures", type=Path, nargs="*", default=[], help="files architecture.json")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of random architectures")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    require_gpu("benchmarks/gpu_retrain.py")
    architectures = {f"random {seed}": random_values(seed) for seed in settings.seeds}
    architectures |= {str(path.parent): nas.from_json(path.read_text(), SPACE) for path in settings.architectures}
    measurements = []
    for name, values in architectures.items():
        measurements += rows(name, values, *(3, 8, 3) if settings.quick else (20, 80, 40))
    print_table(measurements)
    settings.out.mkdir(parents=True, exist_ok=True)
    result = {"quick": settings.quick, **describe_gpu(), "rows": measurements}
    (settings.out / "gpu_retrain.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
