"""CIFAR-10 (section 3.2 of the paper): two cells, searched with shared weights, then trained from scratch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas
from asng._checks import check_settings
from asng._progress import Progress, no_progress
from asng.experiments._images import ImageSet, Transform
from asng.experiments._settings import EpochSettings, SearchSettings, parse_device
from asng.experiments._task import DataSettings, EvaluateSettings, Kernels, Task, Values
from asng.experiments.cifar10 import data, drawing, space
from asng.experiments.cifar10.drop_path import measure_cut_off
from asng.experiments.cifar10.network import Net, set_drop_path, use_fused_kernels
from asng.space import Variable


@dataclass(frozen=True)
class Cifar10DataSettings(DataSettings):
    """The folder of the images, the device and its kernels."""

    kernels: Kernels = "fused"
    """On a GPU: fused, Triton kernels for pools, batch norms and separable convolutions; torch, torch's kernels."""


@dataclass(frozen=True, kw_only=True)
class Cifar10SearchSettings(SearchSettings, EpochSettings):
    """Search the two cells of an image classifier on CIFAR-10: section 3.2 of the paper.

    One half of the training images trains the weights, the other scores architectures. Writes a line of metrics.jsonl
    and a checkpoint after every epoch, and architecture.json, summary.json and pictures of the cells at the end. Ctrl-C
    saves; the same command continues. Missing data is downloaded.

    Examples:
      asng cifar10 search                  as in the paper: 100 epochs, for a GPU
      asng cifar10 search --small          a short run, five minutes on two cores
      asng cifar10 search --dry-run        an estimate of time and memory
      asng cifar10 search --method sng --out runs/sng
      asng cifar10 search --max-params 200000 --epochs 50
    """

    epochs: int = 100
    """Passes over one half of the training images; the other half scores architectures."""
    channels: int = 16
    """Channels of the first cell."""
    cells: int = 8
    """Number of cells; those at a third and at two thirds of the network are reduction cells."""
    num_train_images: int = 50_000
    """Number of training images, both halves together."""
    num_test_images: int = 10_000
    """Number of test images after each epoch."""

    def __post_init__(self) -> None:
        check_settings(self, channels=2, cells=3, batch_size=2, population_size=2)


@dataclass(frozen=True, kw_only=True)
class Cifar10RetrainSettings(EpochSettings):
    """Train an architecture from scratch on all of CIFAR-10's training images, and test it.

    The number of channels is the largest within --max-params. Ctrl-C saves; the same command continues.

    Examples:
      asng cifar10 retrain runs/cifar10-asng-seed0         the result of a search
      asng cifar10 retrain runs/cifar10-small-asng-seed0 --small
      asng cifar10 retrain --architecture cell.json --epochs 100
      asng cifar10 retrain --architecture random --seed 3  a baseline
    """

    epochs: int = 600
    """Passes over all training images."""
    channels: int | None = None
    """Channels of the first cell; by default as many as --max-params allows."""
    max_params: int = 4_000_000
    """Maximum number of parameters, which determines the channels; the auxiliary head does not count."""
    cells: int = 20
    """Number of cells; those at a third and at two thirds of the network are reduction cells."""
    batch_size: int = 80
    """Batch size, in images."""
    drop_path: float = 0.3
    """Final probability of dropping a path; it grows linearly from 0."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    num_train_images: int = 50_000
    """Number of training images."""

    def drop_path_in(self, epoch: int) -> float:
        """The probability of dropping a path in an epoch, the first of which is 1."""
        return self.drop_path * self.fraction_done(epoch - 1, steps_per_epoch=1)

    def __post_init__(self) -> None:
        check_settings(self, cells=3, batch_size=2)
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {self.drop_path}")
        if not 0 <= self.auxiliary < math.inf:
            raise ValueError(f"auxiliary must be at least 0, got {self.auxiliary}")


class Cifar10EvaluateSettings(EvaluateSettings):
    """Test the network of a run: trained from scratch, or the most likely one of a search, with its shared weights.

    Writes evaluation.json.

    Examples:
      asng cifar10 evaluate runs/cifar10-asng-seed0/retrain-seed0
      asng cifar10 evaluate runs/cifar10-asng-seed0
    """


MANY_CUT_OFF = 0.1  # a share of the training images that is worth a line before the training

# Small enough for two cores: it learns something visible in about five minutes.
SMALL = Cifar10SearchSettings(epochs=10, channels=8, cells=3, num_train_images=10_000, num_test_images=2000)
SMALL_RETRAIN = Cifar10RetrainSettings(epochs=10, channels=8, cells=5, num_train_images=10_000)


class Cifar10(Task):
    """Search and training on CIFAR-10, which `load_cifar10` gives.

    Args:
        train, test: Images.
        kernels: On a GPU, those of torch or fused ones.
    """

    name, loading = "cifar10", "download"
    inputs = (
        "Images (n, 3, 32, 32), RGB from 0 to 255, of each channel minus the mean "
        f"({', '.join(f'{mean:.4g}' for mean in data.MEAN)}) and divided by the standard deviation "
        f"({', '.join(f'{deviation:.4g}' for deviation in data.STD)}); scores of the ten classes."
    )
    search_settings, train_settings = Cifar10SearchSettings, Cifar10RetrainSettings
    evaluate_settings, data_settings = Cifar10EvaluateSettings, Cifar10DataSettings
    small_search, small_train = SMALL, SMALL_RETRAIN
    calibration_batches = 25

    def __init__(self, train: ImageSet, test: ImageSet, *, kernels: Kernels = "fused") -> None:
        super().__init__(train, test)
        self.kernels = kernels
        self._is_fused = kernels == "fused" and self.device.type == "cuda"

    @classmethod
    def load(cls, where: Cifar10DataSettings, progress: Progress = no_progress) -> "Cifar10":
        return cls(*data.load_cifar10(where.data, parse_device(where.device), progress), kernels=where.kernels)

    @classmethod
    def load_for_estimate(cls, where: Cifar10DataSettings, progress: Progress) -> "Cifar10":
        if data.has_cifar10(where.data):
            return cls.load(where, progress)
        return cls(*data.make_noise(parse_device(where.device)), kernels=where.kernels)

    @classmethod
    def describe_source(cls, where: Cifar10DataSettings) -> str:
        return data.describe_source(where.data)

    def train_indices(self, settings: Cifar10SearchSettings | Cifar10RetrainSettings) -> Tensor:
        return torch.arange(settings.num_train_images)

    def transform(self, settings: Any) -> Transform:
        return data.augment_batches

    @classmethod
    def search_space(cls, searched: Mapping[str, Any]) -> Mapping[str, Variable]:
        return space.SPACE

    @classmethod
    def baseline_values(cls, name: str, seed: int, searched: Mapping[str, Any], run: Path | None) -> dict[str, Any]:
        return space.random_values(seed)

    def build_supernet(self, settings: Cifar10SearchSettings) -> nn.Module:
        net = Net(settings.channels, settings.cells).to(self.device)
        return use_fused_kernels(net) if self._is_fused else net

    def search_loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy, and the accuracy."""
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1]), {"accuracy": (scores.argmax(1) == batch[1]).double().mean()}

    def size_of(self, settings: Cifar10SearchSettings) -> Callable[[nn.Module, Values], int]:
        return lambda model, values: space.num_parameters(values, settings.channels, settings.cells, affine=False)

    def smallest_values(self, model: nn.Module) -> Values:
        return space.SMALLEST

    def build_network(self, settings: Cifar10RetrainSettings, values: Values) -> nn.Module:
        net = Net(_channels(settings, values), settings.cells, affine=True, auxiliary=True)
        network: nn.Module = nas.extract(net, values).to(self.device)
        network = network.to(memory_format=self._train_format(settings))  # type: ignore[call-overload]
        return use_fused_kernels(network) if self._is_fused else network

    def train_loss(self, settings: Cifar10RetrainSettings, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits, auxiliary = model(batch[0].to(memory_format=self._train_format(settings)))
        return F.cross_entropy(logits, batch[1]) + settings.auxiliary * F.cross_entropy(auxiliary, batch[1])

    def _train_format(self, settings: Cifar10RetrainSettings) -> torch.memory_format:
        # Of torch's own kernels, those for channels last are fast in lower precision only.
        is_last = self._is_fused or (settings.amp_dtype != "off" and self.device.type == "cuda")
        return torch.channels_last if is_last else torch.preserve_format

    def set_phase(self, settings: Cifar10RetrainSettings, model: nn.Module, fraction: float) -> None:
        set_drop_path(model, settings.drop_path * fraction)

    def measure(self, model: nn.Module, settings: Any = None, progress: Progress = no_progress) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, self.test, getattr(settings, "num_test_images", None), progress)}

    def summarize(self, settings: Any, values: Values, model: nn.Module | None = None) -> dict[str, Any]:
        channels, is_trained = _channels(settings, values), model is not None
        count = partial(space.num_parameters, values, channels, settings.cells, affine=is_trained)
        sizes = {"parameters": count(), "effective_parameters": count(effective=True)}
        if is_trained:
            return {"channels": channels, **sizes}
        return {**sizes, "cells_without_influence": space.idle_cells(values, settings.cells)}

    def record_of(self, values: Values) -> dict[str, Any]:
        return {"architecture": space.code_of(values)}

    def draw(self, values: Values, folder: Path, distribution: Mapping[str, Any] | None = None) -> None:
        drawing.draw_cells(values, folder, distribution)

    def describe_training(self, settings: Cifar10RetrainSettings, values: Values) -> list[str]:
        last, half = settings.drop_path_in(settings.epochs), settings.drop_path / 2
        share, less = (measure_cut_off(values, settings.cells, p).output for p in (last, last / 2))
        if share < MANY_CUT_OFF:
            return []
        return [
            f"By the end of this training dropped paths cut {share:.0%} of the images off from the output, "
            f"which then learns nothing from them ({less:.0%} with --drop-path {half:g})"
        ]

    def describe_found(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        sources = ["cell k-2", "cell k-1", *(f"node {node}" for node in range(space.NODES))]
        nodes = [
            f"{kind} node {node}: " + " + ".join(f"{operation} of {sources[source]}" for source, operation in pair)
            for kind in space.CELL_KINDS
            for node, pair in enumerate(space.cell_paths(summary["values"], kind))
        ]
        idle = space.describe_idle_parts(
            summary["values"], summary["cells_without_influence"], (sources[0], sources[1])
        )
        size = f"{_describe_size(summary)} with the channels of the search"
        return ["Found:", *nodes, *idle, size, f"Cells: {folder / 'cells.png'}"]

    def describe_trained(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        accuracy = 100 * summary["last"]["test_accuracy"]
        return [f"Test accuracy {accuracy:.2f} %, {_describe_size(summary)}, {summary['channels']} channels"]

    def describe_test(self, report: Mapping[str, Any], folder: Path) -> list[str]:
        found = report["kind"] == "search"
        what = "the architecture found so far, with shared weights" if found else "trained from scratch"
        return [f"Test accuracy {100 * report['test_accuracy']:.2f} % after {report['steps']:,} steps ({what})"]


def _describe_size(summary: Mapping[str, Any]) -> str:
    parameters, effective = summary["parameters"], summary["effective_parameters"]
    note = f" ({effective:,} with an influence on the output)" if effective < parameters else ""
    return f"{parameters:,} parameters{note}"


def _channels(settings: Any, values: Values) -> int:
    return int(settings.channels or space.channels_for(values, settings.cells, settings.max_params))


def accuracy(
    network: nn.Module, images: ImageSet, max_images: int | None = None, progress: Progress = no_progress
) -> float:
    """The accuracy of a network, in evaluation mode, on all images or the first ones."""
    assert images.labels is not None
    n = min(len(images), max_images or len(images))
    batch_size = 1000 if images.device.type == "cuda" else 100  # small ones stay in a CPU's cache
    mode = network.training
    network.eval()
    correct = torch.zeros((), dtype=torch.int64, device=images.device)
    with torch.no_grad():
        for first in range(0, n, batch_size):
            progress(first / n)
            part = slice(first, min(first + batch_size, n))
            scores = network(data.to_fast_layout(data.normalize(images.images[part])))
            correct += (scores.argmax(1) == images.labels[part]).sum()
    progress(1.0)
    network.train(mode)
    return correct.item() / n
