"""A training step of the paper's retraining on a GPU: the authors' procedure, plain and captured, in one run.

    python benchmarks/gpu_retrain.py --out runs/gpu_retrain           some minutes on an H200
    python benchmarks/gpu_retrain.py --out runs/gpu_retrain --quick   a smoke run; its numbers mean little

How it is measured. Networks of 20 cells with as many channels as 4.0e6 parameters allow, auxiliary head, drop path,
mini-batches of 80 random images, SGD with momentum and clipping. The architectures are what the search of seed 0 found
(results/cifar10/seed0) and a random one. The authors' procedure is that of authors_retrain.py, NCHW. A step is timed
until the GPU has finished: the median. The first step captures, and compiles fused kernels that were not compiled
before. Kernels are those of torch's profiler, on three more steps; "GPU busy" is the sum of their times, "busy share"
the time in which at least one of them runs, of that of steps without the profiler.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import authors_retrain
import torch
import torch.nn.functional as F
from gpu_measure import Row, run_benchmark
from torch import Tensor, nn

from asng import nas
from asng.experiments._train_step import TrainStep
from asng.experiments.cifar10.network import Net, set_drop_path, use_fused_kernels
from asng.experiments.cifar10.space import SPACE, channels_for, code_of, random_values

FOUND = Path(__file__).parents[1] / "results" / "cifar10" / "seed0" / "architecture.json"
NCHW, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
WAYS: dict[str, dict[str, Any]] = {
    "float32 (TF32), NCHW, plain": {"capture": False},
    "float32 (TF32), NCHW, captured": {},
    "float32 (TF32), channels last, captured, fused kernels": {"layout": CHANNELS_LAST, "fused": True},
    "bfloat16, channels last, plain": {"amp_dtype": torch.bfloat16, "layout": CHANNELS_LAST, "capture": False},
    "bfloat16, channels last, captured": {"amp_dtype": torch.bfloat16, "layout": CHANNELS_LAST},
    "bfloat16, channels last, captured, fused kernels": {
        "amp_dtype": torch.bfloat16,
        "layout": CHANNELS_LAST,
        "fused": True,
    },
}


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    logits, auxiliary = model(batch[0])
    return F.cross_entropy(logits, batch[1]) + 0.4 * F.cross_entropy(auxiliary, batch[1])


def train_step(
    values: dict[str, Any],
    cells: int,
    size: int,
    *,
    amp_dtype: torch.dtype | None = None,
    layout: torch.memory_format = NCHW,
    capture: bool = True,
    fused: bool = False,
) -> Callable[[], Any]:
    torch.manual_seed(0)
    net = Net(channels_for(values, cells), cells, affine=True, auxiliary=True)
    model: Any = nas.extract(net, values).to("cuda")
    model = model.to(memory_format=layout)
    if fused:
        use_fused_kernels(model)
    set_drop_path(model, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4, fused=True)
    step = TrainStep(model, optimizer, loss, max_grad_norm=5.0, amp_dtype=amp_dtype)
    images = torch.randn(size, 3, 32, 32, device="cuda").contiguous(memory_format=layout)
    return partial(step if capture else step._step, (images, torch.randint(10, (size,), device="cuda")))


def authors_step(values: dict[str, Any], cells: int, size: int) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = authors_retrain.Net(channels_for(values, cells), cells, code_of(values)).to("cuda")
    images, labels = torch.randn(size, 3, 32, 32, device="cuda"), torch.randint(10, (size,), device="cuda")
    return partial(authors_retrain.Training(model, 0.1).step, images, labels)


def rows(quick: bool) -> Iterator[Row]:
    cells, size, steps = (3, 8, 3) if quick else (20, 80, 40)
    for name, values in {"found": nas.from_json(FOUND.read_text(), SPACE), "random": random_values(0)}.items():
        label, setting = f"{name}, {channels_for(values, cells)} channels", (values, cells, size)
        yield Row(f"{label}, authors' procedure, float32 (TF32)", partial(authors_step, *setting), steps)
        for way, settings in WAYS.items():
            yield Row(f"{label}, {way}", partial(train_step, *setting, **settings), steps)


if __name__ == "__main__":
    run_benchmark(__doc__, "gpu_retrain", rows)
