"""The search on CIFAR-10 (section 3.2 of the paper): two cells, searched with shared weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas
from asng.experiments import Progress, curves, training
from asng.experiments.cifar10 import drawing
from asng.experiments.cifar10.data import Cifar10Batches, Images, normalize, to_channels_last
from asng.experiments.cifar10.network import Net
from asng.experiments.cifar10.space import SMALLEST, code_of, num_parameters
from asng.experiments.data import halves
from asng.experiments.searching import (
    TRAIN,
    VALID,
    SearchJob,
    SearchSettings,
    check_max_params,
    check_settings,
    run_config,
)
from asng.nas.architecture import to_dict
from asng.runs import METRICS, Run, write_json

CALIBRATION = 25  # mini-batches from which the batch norms of the most likely architecture are re-estimated


@dataclass(frozen=True, kw_only=True)
class Cifar10SearchSettings(SearchSettings):
    """The search; the paper's values are the defaults."""

    epochs: int = 100
    """Over one half of the training images; the other half judges architectures."""
    channels: int = 16
    """Of the first cell."""
    cells: int = 8
    """Of which those at a third and at two thirds reduce."""
    batch: int = 64
    """Images in a mini-batch."""
    num_train_images: int = 50_000
    """How many of the training images are used."""
    num_test_images: int = 10_000
    """How many of the test images are used after an epoch."""

    def __post_init__(self) -> None:
        check_settings(
            self, epochs=1, channels=2, cells=3, batch=2, population_size=2, num_random=1, num_test_images=1, seed=0
        )
        if self.num_train_images // 2 < self.batch:
            raise ValueError(
                f"num_train_images must be at least two mini-batches of {self.batch}, got {self.num_train_images}"
            )


# Small enough for two cores: it learns something visible in about five minutes.
SMALL = Cifar10SearchSettings(epochs=10, channels=8, cells=3, num_train_images=10_000, num_test_images=2000)


def search(
    settings: Cifar10SearchSettings,
    folder: Path,
    train: Images,
    test: Images,
    show: training.Show = training.show_nothing,
    *,
    capture: bool = True,
) -> dict[str, Any]:
    """Search, or continue; leaves architecture, pictures of the cells and a summary in the folder.

    `capture` runs each step as one CUDA graph where the images are on a GPU.
    """
    job = Cifar10SearchJob(settings, train, test, capture=capture)  # first, so that a refusal leaves no folder behind
    with Run(folder, run_config("cifar10", "search", settings), METRICS) as run:
        records = training.run_job(
            job,
            run,
            epochs=settings.epochs,
            steps=job.steps,
            images=2 * settings.batch,
            show=show,
            status=job.search_job.certainty,
        )
        found = job.search_job.result(job.valid, job.valid.steps, show)
        summary = {**found, "machine": training.describe_machine(job.device), "last": records[-1]}
        write_json(folder / "architecture.json", to_dict(found["values"]))
        write_json(folder / "summary.json", summary)
        drawing.draw_cells(found["values"], folder, found["distribution"])
        curves.draw_curves({"": records}, folder)
    return summary


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross entropy, and the accuracy."""
    scores = model(batch[0])
    return F.cross_entropy(scores, batch[1]), {"accuracy": (scores.argmax(1) == batch[1]).double().mean()}


class Cifar10SearchJob:
    """The search as a job."""

    def __init__(self, settings: Cifar10SearchSettings, train: Images, test: Images, *, capture: bool = False) -> None:
        self._settings, self._test, self.device = settings, test, train.images.device
        check_max_params(settings.max_params, self.size(None, SMALLEST))
        torch.manual_seed(settings.seed)
        self.model = Net(settings.channels, settings.cells).to(self.device)
        first, second = halves(settings.num_train_images, settings.seed)
        self._train = Cifar10Batches(train, first, settings.batch, settings.seed, TRAIN)
        self.valid = Cifar10Batches(train, second, settings.batch, settings.seed, VALID)
        self.steps = self._train.steps
        self.calibration = min(CALIBRATION, self.steps)
        capture = capture and self.device.type == "cuda"
        self.search_job = SearchJob(settings, self.model, loss_of, size=self.size, weight_decay=3e-4, capture=capture)
        # Plain steps are faster as the images lie, captured ones with channels last.
        self._format = torch.channels_last if capture else torch.preserve_format

    def size(self, model: nn.Module | None, values: Mapping[str, Any]) -> int:
        """The parameters of an architecture in the network of the search."""
        return num_parameters(values, self._settings.channels, self._settings.cells, affine=False)

    def step(self, number: int) -> dict[str, training.Number]:
        done = number // self.steps / self._settings.epochs
        train, valid = (
            (images.to(memory_format=self._format), labels)
            for images, labels in (self._train(number), self.valid(number))
        )
        return self.search_job.step(train, valid, done)

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        record: dict[str, Any] = self.search_job.certainty()
        likely = self.search_job.top_values()
        if likely is not None:
            record["architecture"] = code_of(likely)
        if likely is None or not self._settings.test:
            return record
        measured = self.test_accuracy(likely, self._settings.num_test_images)
        return {**record, "test_accuracy": measured, "calibration_batches": self.calibration}

    def test_accuracy(
        self, values: Mapping[str, Any], num_images: int | None = None, progress: Progress = lambda done: None
    ) -> float:
        """Test accuracy of an architecture with the weights of the search and re-estimated batch statistics."""
        network = nas.extract(self.model, values)
        nas.recalibrate(network, (self._train(number)[0] for number in range(self.calibration)))
        return accuracy(
            network, Images(self._test.images[:num_images], self._test.labels[:num_images]), progress=progress
        )

    def state_dict(self) -> dict[str, Any]:
        return self.search_job.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.search_job.load_state_dict(state)


def accuracy(
    network: nn.Module, images: Images, batch: int | None = None, progress: Progress = lambda done: None
) -> float:
    """The accuracy of a network, in evaluation mode."""
    batch = batch or (1000 if images.images.is_cuda else 100)  # small ones stay in a CPU's cache
    mode = network.training
    network.eval()
    correct = torch.zeros((), dtype=torch.int64, device=images.images.device)
    with torch.no_grad():
        for first in range(0, len(images), batch):
            progress(first / len(images))
            part, labels = images.images[first : first + batch], images.labels[first : first + batch]
            correct += (network(to_channels_last(normalize(part))).argmax(1) == labels).sum()
    progress(1.0)
    network.train(mode)
    return correct.item() / len(images)
