"""Training an architecture from scratch on CIFAR-10, and testing what was trained."""

import math
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
from asng.experiments.cifar10.data import Batches, Images
from asng.experiments.cifar10.network import Net, set_drop_path, size
from asng.experiments.cifar10.search import Search, Settings, accuracy
from asng.experiments.cifar10.space import channels_for
from asng.experiments.descent import Descent
from asng.experiments.searching import TRAIN, check, config, config_in, settings_in
from asng.nas.architecture import from_dict, to_dict
from asng.runs import METRICS, Run, write_json


@dataclass(frozen=True)
class Retraining:
    """Training an architecture from scratch; the paper's values are the defaults."""

    epochs: int = 600
    """Over all training images."""
    channels: int | None = None
    """Of the first cell; by default as many as the parameters allow."""
    most_parameters: int = 4_000_000
    """What the number of channels is chosen by; the auxiliary head does not count."""
    cells: int = 20
    """Of which those at a third and at two thirds reduce."""
    batch: int = 80
    """Images in a mini-batch."""
    rate: float = 0.025
    """Learning rate at the start of its cosine."""
    drop_path: float = 0.3
    """Probability of dropping a path at the end; it grows linearly from 0."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    images: int = 50_000
    """How many of the training images are used."""
    amp_dtype: training.AmpDtype = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""

    def __post_init__(self) -> None:
        check(self, epochs=1, cells=3, batch=2, seed=0, most_parameters=1)
        if self.channels is not None:
            check(self, channels=1)
        if self.images < self.batch:
            raise ValueError(f"images must be at least a mini-batch of {self.batch}, got {self.images}")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {self.drop_path}")
        if not 0 <= self.auxiliary < math.inf:
            raise ValueError(f"auxiliary must be at least 0, got {self.auxiliary}")


SMALL_RETRAINING = Retraining(epochs=10, channels=8, cells=5, images=10_000)


def retrain(
    settings: Retraining,
    values: Mapping[str, Any],
    folder: Path,
    train: Images,
    test: Images,
    show: training.Show = training.silent,
) -> dict[str, Any]:
    """Train an architecture from scratch, or go on with it; leaves the weights and a summary in the folder."""
    job = Retrain(settings, values, train, test)  # first: what it refuses leaves no folder behind
    what = {**config("cifar10", "retrain", settings), "architecture": to_dict(values)}
    with Run(folder, what, METRICS) as kept:
        write_json(folder / "architecture.json", to_dict(values))
        drawing.draw(values, folder)
        records = training.run(job, kept, epochs=settings.epochs, steps=job.steps, images=settings.batch, show=show)
        summary = {
            "channels": job.channels,
            "parameters": job.parameters,
            "machine": training.machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "summary.json", summary)
        curves.draw({"": records}, folder)
    return summary


class Retrain:
    """Training from scratch as a job."""

    def __init__(self, settings: Retraining, values: Mapping[str, Any], train: Images, test: Images) -> None:
        self._settings, self._test, self.device = settings, test, train.images.device
        self._rate = 0.0  # of dropped paths
        self.channels = settings.channels or channels_for(values, settings.cells, settings.most_parameters)
        torch.manual_seed(settings.seed)
        self.model = trainable(self.channels, settings.cells, values).to(self.device)
        self.parameters = size(self.model)
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=settings.rate, momentum=0.9, weight_decay=3e-4, fused=self.device.type == "cuda"
        )
        self._descent = Descent(
            self.model, optimizer, self._loss, max_grad_norm=5.0, amp_dtype=training.parse_amp_dtype(settings.amp_dtype)
        )
        indices = torch.arange(settings.images)
        self._batches = Batches(train, indices, settings.batch, settings.seed, TRAIN)
        self.steps = self._batches.steps

    def _loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits, auxiliary = model(batch[0])
        return F.cross_entropy(logits, batch[1]) + self._settings.auxiliary * F.cross_entropy(auxiliary, batch[1])

    def step(self, number: int) -> dict[str, training.Number]:
        done = number // self.steps / self._settings.epochs
        self._drop(self._settings.drop_path * done)
        training.set_rate(self._descent.optimizer, training.cosine(self._settings.rate, done))
        return {"train_loss": self._descent(self._batches(number))}

    def _drop(self, rate: float) -> None:
        if rate != self._rate:  # once in an epoch, and when it goes on
            set_drop_path(self.model, rate)
            self._descent.forget()
            self._rate = rate

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        return {"test_accuracy": accuracy(self.model, self._test)}

    def state_dict(self) -> dict[str, Any]:
        return self._descent.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._descent.load_state_dict(state)


def trainable(channels: int, cells: int, values: Mapping[str, Any]) -> nn.Module:
    """The plain network of an architecture, as it is trained from scratch."""
    return nas.extract(Net(channels, cells, affine=True, auxiliary=True), values)


def evaluate(folder: Path, train: Images, test: Images, progress: Progress = lambda done: None) -> dict[str, Any]:
    """Test accuracy of what a run has trained so far: a network from scratch, or the architecture found by a search."""
    there = config_in(folder, "cifar10")
    path = folder / training.CHECKPOINT
    if there["kind"] == "search":
        search = Search(settings_in(Settings, there), train, test)
        state = training.loaded(path, search, there)
        result = search.test_accuracy(search.searching.found_in(folder), progress=progress)
    else:
        retrain = Retrain(settings_in(Retraining, there), from_dict(there["architecture"]), train, test)
        state = training.loaded(path, retrain, there)
        result = accuracy(retrain.model, test, progress=progress)
    return {"kind": there["kind"], "steps": state["number"], "test_accuracy": result}
