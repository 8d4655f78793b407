"""Networks of the paper's CIFAR-10 space with torch's layers and with fused ones: forward and backward in a CUDA graph.

    python benchmarks/fused_networks.py --out runs/fused_networks

How it is measured. Random architectures, extracted: of the search (8 cells of 16 channels, batches of 64) and of
retraining (20 cells of 57 channels, batches of 80), random images, channels last, bfloat16 by autocast and float32 with
TF32. A graph holds the loss and the gradients of all weights; the median over its replays, after the losses of both
networks have been compared.
"""

import argparse
import copy
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import fused, nas
from asng.experiments.cifar10.network import AveragePool, Net
from asng.experiments.cifar10.space import SPACE

SETTINGS = {"search": (16, 8, 64, False), "retraining": (57, 20, 80, True)}
REPLAYS = 30


def random_network(channels: int, cells: int, affine: bool, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    values = {name: v.choices[int(torch.randint(len(v.choices), ()))] for name, v in SPACE.items()}
    network: Any = nas.extract(Net(channels, cells, affine=affine), values)
    result: nn.Module = network.cuda().to(memory_format=torch.channels_last)
    return result


def fuse(network: nn.Module) -> nn.Module:
    network = fused.fuse(copy.deepcopy(network))
    modules: Any = network.modules()
    for module in modules:
        if isinstance(module, AveragePool):
            object.__setattr__(module, "__class__", fused.AvgPool2d)
    return network


def milliseconds(network: nn.Module, images: Tensor, labels: Tensor, amp: bool) -> tuple[float, float]:
    """Of forward and backward, and the loss."""
    parameters = list(network.parameters())

    def loss_and_gradients() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp, cache_enabled=False):
            loss = F.cross_entropy(network(images), labels)
        torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            loss_and_gradients()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_and_gradients()
    times = []
    for _ in range(REPLAYS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:]), float(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/fused_networks"), help="folder for fused_networks.json")
    parser.add_argument("--seeds", type=int, default=2, help="number of architectures")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/fused_networks.py needs a CUDA device")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    rows = []
    for name, (channels, cells, size, affine) in SETTINGS.items():
        for seed in range(settings.seeds):
            network = random_network(channels, cells, affine, seed)
            images = torch.randn(size, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
            labels = torch.randint(10, (size,), device="cuda")
            for dtype in ("bfloat16", "float32"):
                plain, loss = milliseconds(network, images, labels, dtype == "bfloat16")
                ours, our_loss = milliseconds(fuse(network), images, labels, dtype == "bfloat16")
                row = {"network": name, "seed": seed, "dtype": dtype, "torch_ms": plain, "fused_ms": ours}
                rows.append(row | {"torch_loss": loss, "fused_loss": our_loss})
                times = f"torch {plain:6.2f} ms, fused {ours:6.2f} ms"
                print(f"{name:<12}{seed:>2} {dtype:<10}{times}, losses {loss:.4f} {our_loss:.4f}", flush=True)
    settings.out.mkdir(parents=True, exist_ok=True)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    (settings.out / "fused_networks.json").write_text(json.dumps({**machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
