"""Gradients of the paper's retraining beside those in float64: what precision and kernels do to one step.

    python benchmarks/gradients.py --data DIR               at the initial weights of what the search of seed 0 found
    python benchmarks/gradients.py RUN --data DIR           at the weights of a training, its folder with its checkpoint
    python benchmarks/gradients.py --data DIR --batches 2 --device cpu       minutes on two cores

The network, its loss with the auxiliary head, and the augmented mini-batches of 80 training images are those of
`asng cifar10 retrain`; no paths are dropped. Of each mini-batch the gradient of all weights, as one vector, is compared
with that of the same weights in float64:

    error        the norm of the difference, over the norm of the gradient in float64
    along it     the projection on the gradient in float64, over its norm: 1 if there is no error
    of the mean  the error of the mean over all mini-batches, which averages independent errors out
    loss         how much the loss is above that in float64, on average

On a GPU there are rows with TF32 and with fused kernels, too. The file gradients.json in --out holds the numbers.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from gpu_measure import find_versions
from torch import Tensor, nn

from asng import nas
from asng.experiments._image_runs import load_trained
from asng.experiments._jobs import TrainJob
from asng.experiments._settings import AMP_DTYPES, parse_device
from asng.experiments.cifar10.data import load_cifar10
from asng.experiments.cifar10.space import SPACE
from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings
from asng.runs import read_config, settings_from_config

FOUND = Path(__file__).parents[1] / "results" / "cifar10" / "seed0" / "architecture.json"
HEAD = "| gradient | error | along it | of the mean | loss |\n|---|---|---|---|---|"


class Way(NamedTuple):
    """How a gradient is computed."""

    amp_dtype: Any = "off"
    kernels: Any = "torch"
    tf32: bool = False


def list_ways(device: torch.device) -> dict[str, Way]:
    ways = {"float32": Way(), "bfloat16": Way("bfloat16")}
    if device.type == "cuda":
        ways = {"float32": Way(), "float32 (TF32)": Way(tf32=True), "bfloat16": Way("bfloat16", tf32=True)}
        ways |= {f"{name}, fused kernels": way._replace(kernels="fused") for name, way in ways.items()}
    return ways


class Start(NamedTuple):
    """Where gradients are computed: an architecture, the settings of its training, its weights."""

    settings: Cifar10RetrainSettings
    values: Mapping[str, Any]
    weights: Mapping[str, Any]


def find_start(task: Cifar10, run: Path | None) -> Start:
    """The weights of a training, or the initial ones of what was found."""
    if run is None:
        settings, values = Cifar10RetrainSettings(), nas.from_json(FOUND.read_text(), SPACE)
        return Start(settings, values, TrainJob(task, settings, values).model.state_dict())
    config = read_config(run, "cifar10")
    if config.get("kind") != "retrain":
        raise SystemExit(f"{run} is no training; give the folder of an asng cifar10 retrain")
    trained = load_trained(task, run, config)
    settings = settings_from_config(Cifar10RetrainSettings, config, run)
    return Start(settings, trained.values, trained.network.state_dict())


def gradient_of(
    task: Cifar10, settings: Cifar10RetrainSettings, model: nn.Module, batch: tuple[Tensor, ...]
) -> tuple[float, Tensor]:
    """The loss, and the gradient of all weights in float64, zero for those without influence."""
    dtype, kind = AMP_DTYPES[settings.amp_dtype], task.device.type
    images = batch[0].to(next(model.parameters()).dtype)
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        loss = task.train_loss(settings, model, (images, *batch[1:]))
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), torch.cat([gradient.double().flatten() for gradient in found])


def compute_gradients(
    task: Cifar10, start: Start, batches: Sequence[tuple[Tensor, ...]], way: Way, dtype: torch.dtype = torch.float32
) -> list[tuple[float, Tensor]]:
    """The loss and the gradient of each mini-batch."""
    task = Cifar10(task.train, task.test, kernels=way.kernels)
    settings: Any = replace(start.settings, amp_dtype=way.amp_dtype)
    model = task.build_network(settings, start.values)
    model.load_state_dict(start.weights)
    task.set_phase(settings, model.to(dtype).train(), 0.0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = way.tf32
    return [gradient_of(task, settings, model, batch) for batch in batches]


def compare(found: Sequence[tuple[float, Tensor]], expected: Sequence[tuple[float, Tensor]]) -> dict[str, float]:
    pairs = [(g, r) for (_, g), (_, r) in zip(found, expected, strict=True)]
    total, expected_total = (torch.stack(vectors).mean(0) for vectors in zip(*pairs, strict=True))
    return {
        "error": mean(float((g - r).norm() / r.norm()) for g, r in pairs),
        "along": mean(float(g @ r / (r @ r)) for g, r in pairs),
        "of_mean": float((total - expected_total).norm() / expected_total.norm()),
        "loss": mean(loss - other for (loss, _), (other, _) in zip(found, expected, strict=True)),
    }


def show(name: str, row: Mapping[str, float]) -> str:
    return f"| {name} | {row['error']:.4f} | {row['along']:.4f} | {row['of_mean']:.4f} | {row['loss']:+.5f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="folder of a training; by default initial weights")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10, as for asng cifar10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("runs/gradients"), help="folder for gradients.json")
    given = parser.parse_args()
    task = Cifar10(*load_cifar10(given.data, parse_device(given.device)), kernels="torch")
    start = find_start(task, given.run)
    draw = TrainJob(task, start.settings, start.values).train_batches
    batches = [draw(number) for number in range(given.batches)]
    expected = compute_gradients(task, start, batches, Way(), torch.float64)
    print(HEAD)
    rows = {}
    given.out.mkdir(parents=True, exist_ok=True)
    for name, way in list_ways(task.device).items():
        rows[name] = compare(compute_gradients(task, start, batches, way), expected)
        print(show(name, rows[name]), flush=True)
        result = {"run": str(given.run), "device": str(task.device), "batches": given.batches, **find_versions()}
        (given.out / "gradients.json").write_text(json.dumps({**result, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
