"""What a step of the inpainting search costs on the channels in use, beside one that pads all layers to 256 channels.

    python benchmarks/inpainting.py --out runs/inpainting            about a minute, on small images
    python benchmarks/inpainting.py --device cuda --size 64 --batch-size 16 --steps 60     as in the paper
    python benchmarks/inpainting.py --out runs/inpainting --quick    a smoke run; its numbers mean little

How it is measured. One core and process time, or a GPU. The supernet is the paper's, in both encodings: 20
layers of up to 256 channels. A step runs two architectures forward and backward and two more forward, all
drawn from the distribution with which a search begins; both ways run the same ones, with the same weights
and the same outputs, and both run the active chain alone. The padded way computes with all of every weight,
and multiplies the channels that are not there by zero. Operations are counted by torch, two for a
multiplication with addition, at the size that is measured and at the paper's, 16 images of 64x64. "new" is
the mean over steps that each see architectures for the first time, as a search does; "again" that of the
same ones once more, when torch has settled how to compute them. "step" is the mean of whole steps of
`OneShot`: new architectures, the gradient clipped, and SGD with momentum over all 184 million weights,
which costs both ways the same.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import asng
from asng.experiments.inpainting.encoding import Encoding, random_values, search_space
from asng.experiments.inpainting.network import IMAGE_CHANNELS, Net, to_device_format
from asng.nas import OneShot, space_of
from asng.nas.supernet import Supernet

PAPER = (64, 16)  # side and number of images


class Padded(Net):
    """Computes all channels and sets to zero those that are not there."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        most = self.last.in_channels
        self.register_buffer("there", torch.ones(most, most).tril(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        run = self._chain((height, width))
        encoder, decoder = self._layers(run)
        there: Any = self.there
        masks = [there[layer.channels - 1].view(-1, 1, 1) for layer in run]
        nodes = [F.pad(images, (0, 0, 0, 0, 0, self.last.in_channels - IMAGE_CHANNELS))]
        for conv, mask in zip(encoder, masks, strict=True):
            nodes.append(torch.relu_(F.conv2d(nodes[-1], conv.weight, None, conv.stride, conv.padding) * mask))
        x = nodes[-1]
        for mirror, mask in zip(reversed(decoder), reversed(masks), strict=True):
            beside, before = nodes.pop(), nodes[-1]
            outside = [(side + 1) % 2 if mirror.stride != (1, 1) else 0 for side in before.shape[-2:]]
            x = F.conv_transpose2d(x, mirror.weight, None, mirror.stride, mirror.padding, outside) * mask
            if mirror.stride == (1, 1):
                x += beside
            x = torch.relu_(x)
        return F.conv_transpose2d(x, self.last.weight, None, padding=1)


def mse(model: nn.Module, images: Tensor) -> Tensor:
    return F.mse_loss(model(images), images)


def candidates(supernet: Supernet, images: Tensor, architectures: Sequence[dict[str, Any]]) -> None:
    """What a step computes: half of the architectures forward and backward, the others forward."""
    half = len(architectures) // 2
    for values in architectures[:half]:
        supernet.choose(values)
        mse(supernet.model, images).backward()
    with torch.no_grad():
        for values in architectures[half:]:
            supernet.choose(values)
            mse(supernet.model, images)


def operations(net: type[Net], encoding: Encoding, layers: int, steps: Sequence[Any], side: int, images: int) -> float:
    """Of a step, on average; counted without computing anything."""
    with torch.device("meta"):
        model, batch = net(search_space(encoding, layers)), torch.empty(images, IMAGE_CHANNELS, side, side)
    supernet = Supernet(model)
    with FlopCounterMode(display=False) as counter:
        for architectures in steps:
            candidates(supernet, batch, architectures)
    return counter.get_total_flops() / len(steps)


def mean(device: torch.device, functions: Sequence[Callable[[], Any]]) -> float:
    """Seconds of one of these calls: of the processor, or until the device has finished."""
    on_device = device.type == "cuda"
    clock = time.perf_counter if on_device else time.process_time
    seconds = []
    for function in functions:
        start = clock()
        function()
        if on_device:
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return statistics.fmean(seconds)


def measure(net: type[Net], encoding: Encoding, settings: argparse.Namespace, steps: Sequence[Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    device = torch.device(settings.device)
    model = to_device_format(net(search_space(encoding, settings.layers), (settings.size, settings.size)), device)
    images = torch.rand(settings.batch_size, IMAGE_CHANNELS, settings.size, settings.size).to(device)
    supernet = Supernet(model)
    with torch.no_grad():
        supernet.choose(steps[0][0])
        output = model(images).double().sum().item()
    warmup, *steps = steps  # the first convolution of all pays for more than itself
    candidates(supernet, images, warmup)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    calls = [lambda group=group: candidates(supernet, images, group) for group in steps]
    new, again = mean(device, calls), mean(device, calls)
    memory = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9)
    oneshot = OneShot(model, asng.ASNG(space_of(model), seed=1), weight_optimizer, mse, max_grad_norm=5.0)
    oneshot.step(images, images)
    return {
        "encoding": encoding,
        "way": "padded" if net is Padded else "slices",
        "output": output,
        "gflop": operations(net, encoding, settings.layers, steps, settings.size, settings.batch_size) / 1e9,
        "paper_gflop": operations(net, encoding, settings.layers, steps, *PAPER) / 1e9,
        "new_ms": new * 1e3,
        "again_ms": again * 1e3,
        "step_ms": mean(device, [lambda: oneshot.step(images, images)] * len(steps)) * 1e3,
        "memory_mib": memory,
    }


def table(rows: list[dict[str, Any]], settings: argparse.Namespace) -> None:
    print(
        f"One step on {settings.device}: means over {settings.steps}, {settings.batch_size} images of "
        f"{settings.size}x{settings.size}, 2 architectures forward and backward and 2 forward"
    )
    columns = {
        "GFLOP": "gflop",
        "paper's": "paper_gflop",
        "new ms": "new_ms",
        "again ms": "again_ms",
        "step ms": "step_ms",
        "MiB": "memory_mib",
    }
    print("  ".join(f"{name:>9}" for name in ["encoding", "way", *columns]))
    for row in rows:
        cells = ["-" if row[key] is None else f"{row[key]:,.1f}" for key in columns.values()]
        print("  ".join(f"{cell:>9}" for cell in [row["encoding"], row["way"], *cells]))
    for slices, padded in zip(rows[::2], rows[1::2], strict=True):
        ratios = {name: padded[key] / slices[key] for name, key in columns.items() if slices[key]}
        shown = ", ".join(f"{name.removesuffix(' ms')} {ratio:.1f}" for name, ratio in ratios.items())
        print(f"padded over slices, {slices['encoding']}: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/inpainting"), help="folder for inpainting.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--layers", type=int, default=20, help="of the supernet")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    settings = parser.parse_args()
    if settings.quick:
        settings.size, settings.batch_size, settings.layers, settings.steps = 4, 1, 4, 1
    torch.set_num_threads(1)
    rows = []
    for encoding in ("cat", "int"):
        space = search_space(encoding, settings.layers)
        random_split = [random_values(space, seed) for seed in range(4 * (settings.steps + 1))]
        steps = [random_split[first : first + 4] for first in range(0, len(random_split), 4)]
        pair = [measure(net, encoding, settings, steps) for net in (Net, Padded)]
        outputs = [row.pop("output") for row in pair]
        assert abs(outputs[0] - outputs[1]) < 1e-3 * abs(outputs[0]), f"both ways must agree, but give {outputs}"
        rows += pair
    table(rows, settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    result = {
        "quick": settings.quick,
        "device": torch.cuda.get_device_name() if settings.device.startswith("cuda") else settings.device,
        "size": settings.size,
        "batch_size": settings.batch_size,
        "layers": settings.layers,
        "steps": settings.steps,
        "rows": rows,
        "machine": platform.platform(),
        "torch": torch.__version__,
    }
    (settings.out / "inpainting.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
