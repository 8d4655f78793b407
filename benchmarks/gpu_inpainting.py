"""A search step of the paper's inpainting setting on a GPU, plain and captured, in both encodings.

    python benchmarks/gpu_inpainting.py --out runs/gpu_inpainting           two minutes on an H200
    python benchmarks/gpu_inpainting.py --out runs/gpu_inpainting --quick   a smoke run; its numbers mean little

How it is measured. 20 layers of 64 to 256 channels, mini-batches of 16 random images of 64x64, two candidates in each
half, SGD with momentum and clipping; float32 with TF32, and bfloat16. A step is timed from its call to its losses on
the host: the median over steps with random candidates, the same for all rows. Plain steps come after 100 others, in
which torch settles how to compute convolutions of most shapes. Kernels are those of torch's profiler, on three more
steps; "GPU busy" is the sum of their times, which counts kernels that run side by side twice, and "busy share" is the
time in which at least one of them runs, of that of steps without the profiler.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_measure import Row, run_benchmark
from torch import Tensor, nn

from asng import RandomSearch
from asng.experiments.inpainting.encoding import Encoding, search_space
from asng.experiments.inpainting.network import Net, to_device_format
from asng.nas import OneShot

PRECISIONS = {"float32 (TF32)": None, "bfloat16": torch.bfloat16}
SETTLING = 100  # steps


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[1]), batch[0])


def search_step(
    encoding: Encoding, layers: int, side: int, amp_dtype: torch.dtype | None, capture: bool
) -> Callable[[], Any]:
    torch.manual_seed(0)
    space = search_space(encoding, layers)
    model = to_device_format(Net(space, (side, side)), torch.device("cuda"))
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9)
    search = OneShot(
        model,
        RandomSearch(space, seed=0),
        weight_optimizer,
        loss,
        max_grad_norm=5.0,
        amp_dtype=amp_dtype,
        capture=capture,
    )
    images = torch.rand(2, 2, 16, 3, side, side, device="cuda")
    step = partial(search.step, tuple(images[0]), tuple(images[1]))
    for _ in range(0 if capture else SETTLING):
        step()
    return step


def rows(quick: bool) -> Iterator[Row]:
    layers, side, steps = (4, 8, 3) if quick else (20, 64, 100)
    encodings: tuple[Encoding, ...] = ("int", "cat")
    for encoding in encodings:
        for precision, amp_dtype in PRECISIONS.items():
            for capture in (False, True):
                name = f"{encoding}, {precision}, {'captured' if capture else 'plain'}"
                yield Row(name, partial(search_step, encoding, layers, side, amp_dtype, capture), steps)


if __name__ == "__main__":
    run_benchmark(__doc__, "gpu_inpainting", rows)
