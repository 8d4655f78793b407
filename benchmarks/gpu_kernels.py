"""The layers of `asng.fused` beside torch's on a GPU: microseconds of forward and backward inside a CUDA graph.

    python benchmarks/gpu_kernels.py --out runs/gpu_kernels           some minutes, most of them for compiling
    python benchmarks/gpu_kernels.py --out runs/gpu_kernels --quick   two shapes
    python benchmarks/gpu_kernels.py --out runs/gpu_kernels --only sep --profile   by name; and each kernel

How it is measured. A graph holds 20 times forward and backward of a layer, on 4 inputs in turn; its replays are timed
by events, and the median is divided by 20. Shapes are those of the paper's CIFAR-10 search (64 images) and of
retraining (80 images), channels last; float32 with TF32, and bfloat16 with float32 weights, by autocast. Before that
both layers are compared with torch's in float64: the norm of the difference over the norm, the largest of the output
and all gradients. The floor is the time to read and write each of the layer's inputs, outputs and their gradients once,
and to read inputs again where their gradients need them, at the speed of a large copy; reductions read half of the
pixels. A layer that fails is reported and left out, and so are those to more channels than kernels take.
"""

import argparse
import contextlib
import copy
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from gpu_measure import describe_gpu
from torch import Tensor, nn

from asng import fused
from asng.experiments.cifar10.layers import AveragePool, FactorizedReduce, PathSum, pointwise, separable
from asng.experiments.cifar10.nodes import join_ends
from asng.fused._pointwise import MAX_OUTPUTS

SEARCH = [(64, 16, 32, 32), (64, 32, 16, 16), (64, 64, 8, 8)]
RETRAINING = [(80, 42, 32, 32), (80, 84, 16, 16), (80, 168, 8, 8)]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
REPEATS, INPUTS, REPLAYS = 20, 4, 30
JOINED = 3  # maps; cells of the paper have one to five loose ends


class NormAddReLU(nn.Module):
    """Batch norm, an addition and a ReLU, by torch or in one."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, add: Tensor) -> Tensor:
        return fused.batch_norm(x, self.norm, add=add, relu=True)


class Join(nn.Module):
    """A 1x1 convolution of rectified maps side by side, normalized, as cells join their loose ends."""

    def __init__(self, channels: int, maps: int) -> None:
        super().__init__()
        layers: Any = pointwise(maps * channels, channels, affine=True)
        self.conv, self.norm = layers

    def forward(self, *maps: Tensor) -> Tensor:
        return join_ends(maps, self.conv.weight, self.norm)


class DropPathSum(nn.Module):
    """The sum of two maps, each of which is dropped from every second image, as cells of retraining add up paths."""

    def __init__(self, add: nn.Module) -> None:
        super().__init__()
        self.add, self.scale = add, torch.empty(0)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.scale.dtype != a.dtype or len(self.scale) != len(a):  # in the first call, which is not timed
            self.scale = (2 * (torch.arange(len(a), device=a.device) % 2)).to(a.dtype).view(-1, 1, 1, 1)
        result: Tensor = self.add(a, b, self.scale, self.scale)
        return result


def layers(channels: int) -> Iterator[tuple[str, nn.Module, nn.Module, int]]:
    """Name, ours, torch's, number of inputs."""
    for stride in (1, 2):
        yield f"avg_pool stride {stride}", fused.AvgPool2d(3, stride, 1), AveragePool(stride), 1
        yield f"max_pool stride {stride}", fused.MaxPool2d(3, stride, 1), nn.MaxPool2d(3, stride, 1), 1
    yield "batch_norm", fused.BatchNorm2d(channels), nn.BatchNorm2d(channels), 1
    yield "batch_norm add relu", NormAddReLU(fused.BatchNorm2d(channels)), NormAddReLU(nn.BatchNorm2d(channels)), 2
    for name, outputs in (("pointwise", channels), ("pointwise to twice", 2 * channels)):
        if outputs <= MAX_OUTPUTS:
            torchs = pointwise(channels, outputs, affine=True)
            yield name, fused.PointwiseConv2d(*copy.deepcopy(torchs)), torchs, 1
    for kernel in (3, 5):
        for stride in (1, 2):
            torchs = separable(channels, kernel, stride, affine=True)
            yield f"sep_conv{kernel} stride {stride}", fused.SeparableConv2d(*copy.deepcopy(torchs)), torchs, 1
    yield "sum", DropPathSum(fused.ScaledSum()), DropPathSum(PathSum()), 2
    if 2 * channels <= MAX_OUTPUTS:
        reduction = FactorizedReduce(channels, 2 * channels, affine=True)
        yield "reduction", fused.fuse(copy.deepcopy(reduction)), reduction, 1
    join = Join(channels, JOINED)
    yield f"join of {JOINED}", fused.fuse(copy.deepcopy(join)), join, JOINED


def gradients(layer: nn.Module, inputs: list[Tensor], amp: bool, dy: Tensor | None) -> list[Tensor]:
    """The output and all gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        y: Tensor = layer(*inputs)
    dy = torch.ones_like(y) if dy is None else dy.to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [*inputs, *layer.parameters()], dy)]


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


def compile_kernels(job: tuple[tuple[int, ...], str, str]) -> None:
    """Run our layers once: Triton keeps what it compiled on disk."""
    shape, dtype, only = job
    for name, ours, _, number in layers(shape[1]):
        if only in name:
            inputs = [random(shape, dtype) for _ in range(number)]
            with contextlib.suppress(Exception):  # reported when it is measured
                gradients(ours.cuda(), inputs, dtype == "bfloat16", None)


def measure(
    shape: tuple[int, ...], dtype: str, ours: nn.Module, torchs: nn.Module, number: int, profile: bool
) -> dict[str, Any]:
    """Times and errors of a layer of ours and torch's, with the bytes of inputs and outputs."""
    amp = dtype == "bfloat16"
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
    kernels = kernel_times(pair[0], sets, amp, dy) if profile else {}
    return {
        "fused_us": times[0],
        "torch_us": times[1],
        "fused_error": errors[0],
        "torch_error": errors[1],
        "x_bytes": sets[0][0].nbytes * number,
        "y_bytes": dy.nbytes,
        "kernels_us": kernels,
    }


def passes_of(name: str) -> float:
    """How often the inputs are read or written, forward and backward, over two."""
    return 1 if any(kind in name for kind in ("pool", "sum", "reduction")) else 1.5


def kernel_times(layer: nn.Module, sets: list[list[Tensor]], amp: bool, dy: Tensor) -> dict[str, float]:
    """Microseconds of each kernel, all its launches in a forward and backward pass together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for index in range(REPEATS):
            gradients(layer, sets[index % len(sets)], amp, dy)
        torch.cuda.synchronize()
    return {event.key[:40]: event.self_device_time_total / REPEATS for event in profiler.key_averages()}


def random(shape: tuple[int, ...], dtype: str) -> Tensor:
    return torch.randn(shape, device="cuda").to(DTYPES[dtype]).contiguous(memory_format=torch.channels_last)


HEAD = f"{'layer':<21}{'shape':<15}{'type':<10}{'fused':>8}{'torch':>8}{'ratio':>7}{'floor':>7}{'error':>9}{'torch':>9}"


def line(row: dict[str, Any]) -> str:
    times = f"{row['fused_us']:>8.1f}{row['torch_us']:>8.1f}{row['torch_us'] / row['fused_us']:>7.2f}"
    errors = f"{row['floor_us']:>7.1f}{row['fused_error']:>9.1e}{row['torch_error']:>9.1e}"
    kernels = "".join(f"\n    {us:>6.1f} {name}" for name, us in row["kernels_us"].items())
    return f"{row['layer']:<21}{row['shape']:<15}{row['dtype']:<10}{times}{errors}{kernels}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_kernels"), help="folder for gpu_kernels.json")
    parser.add_argument("--only", default="", help="part of a layer's name")
    parser.add_argument("--quick", action="store_true", help="one shape of the search and one of retraining")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="types of the inputs")
    parser.add_argument("--profile", action="store_true", help="times of all kernels of our layers")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_kernels.py needs a CUDA device")
    bandwidth = copy_bandwidth()
    machine = describe_gpu()
    print(f"{machine}, copy: {bandwidth / 1e12:.2f} TB/s")
    rows: list[dict[str, Any]] = []
    settings.out.mkdir(parents=True, exist_ok=True)
    shapes = [SEARCH[0], RETRAINING[0]] if settings.quick else [*SEARCH, *RETRAINING]
    jobs = [(shape, dtype, settings.only) for shape in shapes for dtype in settings.dtypes.split(",")]
    start = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernels, jobs))
    print(f"{time.perf_counter() - start:.0f} s for compiling\n{HEAD}")
    for shape, dtype, only in jobs:
        for name, ours, torchs, number in layers(shape[1]):
            if only not in name:
                continue
            row: dict[str, Any] = {"layer": name, "shape": "x".join(map(str, shape)), "dtype": dtype}
            try:
                row |= measure(shape, dtype, ours, torchs, number, settings.profile)
            except Exception as error:
                print(f"{name} {shape} {dtype} failed: {str(error)[:500]!r}")
                continue
            row["floor_us"] = 1e6 * 2 * (passes_of(name) * row["x_bytes"] + row["y_bytes"]) / bandwidth
            rows.append(row)
            print(line(row), flush=True)
        result = {**machine, "copy_bytes_per_s": bandwidth, "rows": rows}
        (settings.out / "gpu_kernels.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
