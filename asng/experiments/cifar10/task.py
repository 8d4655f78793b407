"""CIFAR-10 (section 3.2 of the paper): two cells, searched with shared weights, then trained from scratch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas
from asng._checks import check_settings
from asng._progress import Progress, no_progress
from asng.experiments._image_runs import load_trained
from asng.experiments._images import ImageSet, Transform
from asng.experiments._jobs import Task, Values
from asng.experiments._settings import EpochSettings, SearchSettings
from asng.experiments.cifar10 import drawing
from asng.experiments.cifar10.data import augment_batches, normalize, to_channels_last
from asng.experiments.cifar10.network import Net, count_without_auxiliary, set_drop_path, use_fused_kernels
from asng.experiments.cifar10.space import SMALLEST, channels_for, code_of, num_parameters

Kernels = Literal["fused", "torch"]


@dataclass(frozen=True, kw_only=True)
class Cifar10SearchSettings(SearchSettings, EpochSettings):
    """The search; the paper's values are the defaults."""

    epochs: int = 100
    """Over one half of the training images; the other half judges architectures."""
    channels: int = 16
    """Of the first cell."""
    cells: int = 8
    """Of which those at a third and at two thirds reduce."""
    num_train_images: int = 50_000
    """How many of the training images are used."""
    num_test_images: int = 10_000
    """How many of the test images are used after an epoch."""

    def __post_init__(self) -> None:
        check_settings(self, channels=2, cells=3, batch=2, population_size=2)


@dataclass(frozen=True, kw_only=True)
class Cifar10RetrainSettings(EpochSettings):
    """Training an architecture from scratch; the paper's values are the defaults."""

    epochs: int = 600
    """Over all training images."""
    channels: int | None = None
    """Of the first cell; by default as many as the parameters allow."""
    max_params: int = 4_000_000
    """What the number of channels is chosen by; the auxiliary head does not count."""
    cells: int = 20
    """Of which those at a third and at two thirds reduce."""
    batch: int = 80
    """Images in a mini-batch."""
    drop_path: float = 0.3
    """Probability of dropping a path at the end; it grows linearly from 0."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    num_train_images: int = 50_000
    """How many of the training images are used."""

    def __post_init__(self) -> None:
        check_settings(self, cells=3, batch=2)
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {self.drop_path}")
        if not 0 <= self.auxiliary < math.inf:
            raise ValueError(f"auxiliary must be at least 0, got {self.auxiliary}")


# Small enough for two cores: it learns something visible in about five minutes.
SMALL = Cifar10SearchSettings(epochs=10, channels=8, cells=3, num_train_images=10_000, num_test_images=2000)
SMALL_RETRAIN = Cifar10RetrainSettings(epochs=10, channels=8, cells=5, num_train_images=10_000)


class Cifar10(Task):
    """Search and training on CIFAR-10, which `load_cifar10` gives.

    Args:
        train, test: Images.
        kernels: On a GPU, those of torch or fused ones; the latter run channels last.
    """

    name = "cifar10"
    search_settings, train_settings = Cifar10SearchSettings, Cifar10RetrainSettings
    search_weight_decay = 3e-4
    calibration_batches = 25

    def __init__(self, train: ImageSet, test: ImageSet, *, kernels: Kernels = "fused") -> None:
        super().__init__(train, test)
        self.kernels = kernels
        self._is_fused = kernels == "fused" and self.device.type == "cuda"

    def train_indices(self, settings: Cifar10SearchSettings | Cifar10RetrainSettings) -> Tensor:
        return torch.arange(settings.num_train_images)

    def transform(self, settings: Any) -> Transform:
        return augment_batches

    def build_supernet(self, settings: Cifar10SearchSettings) -> nn.Module:
        net = Net(settings.channels, settings.cells).to(self.device)
        return use_fused_kernels(net) if self._is_fused else net

    def search_loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy, and the accuracy."""
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1]), {"accuracy": (scores.argmax(1) == batch[1]).double().mean()}

    def size_of(self, settings: Cifar10SearchSettings) -> Callable[[nn.Module, Values], int]:
        return lambda model, values: num_parameters(values, settings.channels, settings.cells, affine=False)

    def smallest_values(self, model: nn.Module) -> Values:
        return SMALLEST

    def build_network(self, settings: Cifar10RetrainSettings, values: Values) -> nn.Module:
        net = Net(_channels(settings, values), settings.cells, affine=True, auxiliary=True)
        network = nas.extract(net, values).to(self.device)
        return use_fused_kernels(network) if self._is_fused else network

    def build_optimizer(self, settings: Cifar10RetrainSettings, model: nn.Module) -> torch.optim.Optimizer:
        fused = self.device.type == "cuda"
        return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=3e-4, fused=fused)

    def train_loss(self, settings: Cifar10RetrainSettings, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        images = batch[0].contiguous(memory_format=torch.channels_last) if self._is_fused else batch[0]
        logits, auxiliary = model(images)
        return F.cross_entropy(logits, batch[1]) + settings.auxiliary * F.cross_entropy(auxiliary, batch[1])

    def set_phase(self, settings: Cifar10RetrainSettings, model: nn.Module, fraction: float) -> None:
        set_drop_path(model, settings.drop_path * fraction)

    def measure(self, model: nn.Module, settings: Any) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, self.test, getattr(settings, "num_test_images", None))}

    def summarize(self, settings: Any, values: Values, model: nn.Module | None = None) -> dict[str, Any]:
        if model is None:
            return {}
        return {"channels": _channels(settings, values), "parameters": count_without_auxiliary(model)}

    def record_of(self, values: Values) -> dict[str, Any]:
        return {"architecture": code_of(values)}

    def draw(self, values: Values, folder: Path, distribution: Mapping[str, Any] | None = None) -> None:
        drawing.draw_cells(values, folder, distribution)


def _channels(settings: Cifar10RetrainSettings, values: Values) -> int:
    return settings.channels or channels_for(values, settings.cells, settings.max_params)


def evaluate(
    task: Cifar10, folder: Path, config: Mapping[str, Any], progress: Progress = no_progress
) -> dict[str, Any]:
    """Test accuracy of what a run has trained so far: a network from scratch, or the architecture found by a search."""
    network, steps = load_trained(task, folder, config)
    return {"kind": config["kind"], "steps": steps, "test_accuracy": accuracy(network, task.test, progress=progress)}


def accuracy(
    network: nn.Module, images: ImageSet, max_images: int | None = None, progress: Progress = no_progress
) -> float:
    """The accuracy of a network, in evaluation mode, on all images or the first ones."""
    assert images.labels is not None
    n = min(len(images), max_images or len(images))
    batch = 1000 if images.device.type == "cuda" else 100  # small ones stay in a CPU's cache
    mode = network.training
    network.eval()
    correct = torch.zeros((), dtype=torch.int64, device=images.device)
    with torch.no_grad():
        for first in range(0, n, batch):
            progress(first / n)
            part = slice(first, min(first + batch, n))
            scores = network(to_channels_last(normalize(images.images[part])))
            correct += (scores.argmax(1) == images.labels[part]).sum()
    progress(1.0)
    network.train(mode)
    return correct.item() / n
