"""The layers of `asng.fused` beside torch's on a GPU: microseconds of forward and backward inside a CUDA graph.

    python benchmarks/kernels.py --out runs/kernels           some minutes, most of them for compiling
    python benchmarks/kernels.py --out runs/kernels --quick   a few shapes
    python benchmarks/kernels.py --out runs/kernels --only sep  the layers with this in their names

How it is measured. A graph holds 20 times forward and backward of a layer, on 4 inputs in turn; its replays are timed
by events, and the median is divided by 20. Shapes are those of the paper's CIFAR-10 search (64 images) and of retraining
(80 images), channels last; float32 with TF32, and bfloat16 with float32 weights, by autocast. Before that both layers
are compared with torch's in float64: the norm of the difference over the norm, the largest of the output and all
gradients. The floor is the time to read and write each of the layer's inputs, outputs and their gradients once, at the
speed of a large copy.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import fused
from asng.experiments.cifar10.network import AveragePool, separable

SEARCH = [(64, 16, 32, 32), (64, 32, 16, 16), (64, 64, 8, 8)]
RETRAINING = [(80, 57, 32, 32), (80, 116, 16, 16), (80, 228, 8, 8)]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
REPEATS, INPUTS, REPLAYS = 20, 4, 30


class NormAddReLU(nn.Module):
    """Batch norm, an addition and a ReLU, by torch or in one."""

    def __init__(self, channels: int, one: bool) -> None:
        super().__init__()
        self.norm = fused.BatchNorm2d(channels) if one else nn.BatchNorm2d(channels)
        self.one = one

    def forward(self, x: Tensor, add: Tensor) -> Tensor:
        result: Tensor = self.norm(x, add, relu=True) if self.one else F.relu(self.norm(x) + add)
        return result


def layers(channels: int) -> Iterator[tuple[str, nn.Module, nn.Module, int]]:
    """Name, ours, torch's, number of inputs."""
    for stride in (1, 2):
        yield f"avg_pool stride {stride}", fused.AvgPool2d(3, stride, 1), AveragePool(stride), 1
        yield f"max_pool stride {stride}", fused.MaxPool2d(3, stride, 1), nn.MaxPool2d(3, stride, 1), 1
    yield "batch_norm", fused.BatchNorm2d(channels), nn.BatchNorm2d(channels), 1
    yield "batch_norm add relu", NormAddReLU(channels, True), NormAddReLU(channels, False), 2
    if hasattr(fused, "SeparableConv2d"):
        for kernel in (3, 5):
            for stride in (1, 2):
                ours = fused.SeparableConv2d(channels, kernel, stride)
                yield f"sep_conv{kernel} stride {stride}", ours, separable(channels, kernel, stride, True), 1


def gradients(layer: nn.Module, inputs: list[Tensor], amp: bool, dy: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        y: Tensor = layer(*inputs)
    return [y, *torch.autograd.grad(y, [*inputs, *layer.parameters()], dy.to(y.dtype))]


def largest_error(got: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(got, expected, strict=True)
    return max(float((a.double() - b).norm() / b.norm().clamp_min(1e-12)) for a, b in pairs)


def microseconds(layer: nn.Module, sets: list[list[Tensor]], amp: bool, dy: Tensor) -> float:
    def repeat() -> None:
        for index in range(REPEATS):
            gradients(layer, sets[index % len(sets)], amp, dy)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients(layer, sets[0], amp, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeat()
    times = []
    for _ in range(REPLAYS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / REPEATS)
    return statistics.median(times[3:])


def copy_bandwidth() -> float:
    """Bytes read and written in a second by a copy of a gigabyte."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return 2 * 4 * source.numel() / statistics.median(times)


def measure(shape: tuple[int, ...], dtype: str, only: str, bandwidth: float) -> Iterator[dict[str, Any]]:
    amp = dtype == "bfloat16"
    for name, ours, torchs, number in layers(shape[1]):
        if only not in name:
            continue
        torch.manual_seed(0)
        torchs.load_state_dict(ours.state_dict())
        reference = copy.deepcopy(torchs).double().cuda()
        pair: list[Any] = [ours.cuda(), torchs.cuda()]
        pair = [layer.to(memory_format=torch.channels_last) for layer in pair]
        sets = [[random(shape, dtype) for _ in range(number)] for _ in range(INPUTS)]
        with torch.no_grad():
            dy = random(reference(*(x.double() for x in sets[0])).shape, dtype)
        expected = gradients(reference, [x.double().contiguous() for x in sets[0]], False, dy)
        errors = [largest_error(gradients(layer, sets[0], amp, dy), expected) for layer in pair]
        times = [microseconds(layer, sets, amp, dy) for layer in pair]
        x_bytes, y_bytes = sets[0][0].nbytes * number, dy.nbytes
        reads_again = 0 if "pool" in name else x_bytes  # the input, for its gradient
        yield {
            "layer": name,
            "shape": "x".join(map(str, shape)),
            "dtype": dtype,
            "fused_us": times[0],
            "torch_us": times[1],
            "floor_us": 1e6 * (2 * x_bytes + 2 * y_bytes + reads_again) / bandwidth,
            "fused_error": errors[0],
            "torch_error": errors[1],
        }


def random(shape: tuple[int, ...], dtype: str) -> Tensor:
    return torch.randn(shape, device="cuda").to(DTYPES[dtype]).contiguous(memory_format=torch.channels_last)


HEAD = f"{'layer':<21}{'shape':<15}{'type':<10}{'fused':>8}{'torch':>8}{'ratio':>7}{'floor':>7}{'error':>9}{'torch':>9}"


def line(row: dict[str, Any]) -> str:
    times = f"{row['fused_us']:>8.1f}{row['torch_us']:>8.1f}{row['torch_us'] / row['fused_us']:>7.2f}"
    errors = f"{row['floor_us']:>7.1f}{row['fused_error']:>9.1e}{row['torch_error']:>9.1e}"
    return f"{row['layer']:<21}{row['shape']:<15}{row['dtype']:<10}{times}{errors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/kernels"), help="folder for kernels.json")
    parser.add_argument("--only", default="", help="part of a layer's name")
    parser.add_argument("--quick", action="store_true", help="one shape of the search and one of retraining, bfloat16")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/kernels.py needs a CUDA device")
    bandwidth = copy_bandwidth()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    print(f"{machine}, copy: {bandwidth / 1e12:.2f} TB/s\n{HEAD}")
    rows: list[dict[str, Any]] = []
    settings.out.mkdir(parents=True, exist_ok=True)
    for shape in [SEARCH[0], RETRAINING[0]] if settings.quick else [*SEARCH, *RETRAINING]:
        for dtype in ["bfloat16"] if settings.quick else DTYPES:
            for row in measure(shape, dtype, settings.only, bandwidth):
                rows.append(row)
                print(line(row), flush=True)
        result = {**machine, "copy_bytes_per_s": bandwidth, "rows": rows}
        (settings.out / "kernels.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
