"""A search step over the widths of a convolutional network on a GPU, plain and captured with masks.

    python benchmarks/gpu_widths.py --out runs/gpu_widths           two minutes on an H200
    python benchmarks/gpu_widths.py --out runs/gpu_widths --quick   a smoke run; its numbers mean little

Plain steps compute the selected channels. Captured steps compute all of them and set those to 0 that are not selected,
since 16 widths in each of 12 layers have too many combinations for switches: fewer launches, more arithmetic.

How it is measured. 12 convolutions with batch norm, a stride of 2 before the fifth and the ninth; widths from a
sixteenth of the largest to the largest, which is that of the row in the first four layers, then twice and four times as
many. Mini-batches of 64 random images of 32x32, two candidates in each half, SGD with momentum and clipping, channels
last; float32 with TF32, and bfloat16. A step is timed from its call to its losses on the host: the median over steps
with random candidates, the same for all rows. Plain steps come after 100 others, in which torch settles how to compute
convolutions of most shapes. Kernels are those of torch's profiler, on three more steps; "GPU busy" is the sum of their
times, and "busy share" the time in which at least one of them runs, of that of steps without the profiler.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_measure import Row, run_benchmark
from torch import Tensor, nn

from asng import RandomSearch, nas

PRECISIONS = {"float32 (TF32)": None, "bfloat16": torch.bfloat16}
SETTLING = 100  # steps
LAYERS, CHOICES = 12, 16


def network(largest: int) -> nn.Module:
    layers: list[nn.Module] = []
    before: Any = 3
    for index in range(LAYERS):
        stage = index * 3 // LAYERS
        unit = largest * 2**stage // CHOICES
        width = nas.Width(f"layer{index}", [unit * n for n in range(1, CHOICES + 1)])
        stride = 2 if stage and index * 3 % LAYERS == 0 else 1
        conv = nas.Conv2d(before, width, 3, stride, padding=1, bias=False)
        layers += [conv, nas.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nas.Linear(before, 10))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def search_step(largest: int, side: int, amp_dtype: torch.dtype | None, capture: bool) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = network(largest).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    search = nas.OneShot(
        model,
        RandomSearch(nas.space_of(model), seed=0),
        torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9),
        loss,
        max_grad_norm=5.0,
        amp_dtype=amp_dtype,
        capture=capture,
    )
    images = [torch.rand(64, 3, side, side).cuda().to(memory_format=torch.channels_last) for _ in range(2)]
    labels = torch.randint(10, (2, 64), device="cuda")
    step = partial(search.step, (images[0], labels[0]), (images[1], labels[1]))
    for _ in range(0 if capture else SETTLING):
        step()
    return step


def rows(quick: bool) -> Iterator[Row]:
    side, steps = (8, 3) if quick else (32, 100)
    for largest in (16,) if quick else (16, 128):
        for precision, amp_dtype in PRECISIONS.items():
            for capture in (False, True):
                name = f"{largest} to {4 * largest} channels, {precision}, {'captured' if capture else 'plain'}"
                yield Row(name, partial(search_step, largest, side, amp_dtype, capture), steps)


if __name__ == "__main__":
    run_benchmark(__doc__, "gpu_widths", rows)
