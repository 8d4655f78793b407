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
from asng.experiments.cifar10.data import Cifar10Batches, Images
from asng.experiments.cifar10.network import Net, count_without_auxiliary, set_drop_path
from asng.experiments.cifar10.search import Cifar10SearchJob, Cifar10SearchSettings, accuracy
from asng.experiments.cifar10.space import channels_for
from asng.experiments.descent import TrainStep
from asng.experiments.searching import (
    TRAIN,
    check_settings,
    read_checkpointed_config,
    run_config,
    settings_from_config,
)
from asng.nas.architecture import from_dict, to_dict
from asng.runs import METRICS, Run, write_json


@dataclass(frozen=True)
class Cifar10RetrainSettings:
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
    lr: float = 0.025
    """Learning rate at the start of its cosine."""
    drop_path: float = 0.3
    """Probability of dropping a path at the end; it grows linearly from 0."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    num_train_images: int = 50_000
    """How many of the training images are used."""
    amp_dtype: training.AmpDtype = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""

    def __post_init__(self) -> None:
        check_settings(self, epochs=1, cells=3, batch=2, seed=0, max_params=1)
        if self.channels is not None:
            check_settings(self, channels=1)
        if self.num_train_images < self.batch:
            raise ValueError(
                f"num_train_images must be at least a mini-batch of {self.batch}, got {self.num_train_images}"
            )
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {self.drop_path}")
        if not 0 <= self.auxiliary < math.inf:
            raise ValueError(f"auxiliary must be at least 0, got {self.auxiliary}")


SMALL_RETRAIN = Cifar10RetrainSettings(epochs=10, channels=8, cells=5, num_train_images=10_000)


def retrain(
    settings: Cifar10RetrainSettings,
    values: Mapping[str, Any],
    folder: Path,
    train: Images,
    test: Images,
    show: training.Show = training.show_nothing,
) -> dict[str, Any]:
    """Train an architecture from scratch, or continue; leaves the weights and a summary in the folder."""
    job = Cifar10RetrainJob(settings, values, train, test)  # first, so that a refusal leaves no folder behind
    what = {**run_config("cifar10", "retrain", settings), "architecture": to_dict(values)}
    with Run(folder, what, METRICS) as run:
        write_json(folder / "architecture.json", to_dict(values))
        drawing.draw_cells(values, folder)
        records = training.run_job(job, run, epochs=settings.epochs, steps=job.steps, images=settings.batch, show=show)
        summary = {
            "channels": job.channels,
            "parameters": job.parameters,
            "machine": training.describe_machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "summary.json", summary)
        curves.draw_curves({"": records}, folder)
    return summary


class Cifar10RetrainJob:
    """Training from scratch as a job."""

    def __init__(
        self, settings: Cifar10RetrainSettings, values: Mapping[str, Any], train: Images, test: Images
    ) -> None:
        self._settings, self._test, self.device = settings, test, train.images.device
        self._drop_prob = 0.0  # of dropped paths
        self.channels = settings.channels or channels_for(values, settings.cells, settings.max_params)
        torch.manual_seed(settings.seed)
        self.model = build_trainable(self.channels, settings.cells, values).to(self.device)
        self.parameters = count_without_auxiliary(self.model)
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=3e-4, fused=self.device.type == "cuda"
        )
        self._train_step = TrainStep(
            self.model, optimizer, self._loss, max_grad_norm=5.0, amp_dtype=training.parse_amp_dtype(settings.amp_dtype)
        )
        indices = torch.arange(settings.num_train_images)
        self._batches = Cifar10Batches(train, indices, settings.batch, settings.seed, TRAIN)
        self.steps = self._batches.steps

    def _loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits, auxiliary = model(batch[0])
        return F.cross_entropy(logits, batch[1]) + self._settings.auxiliary * F.cross_entropy(auxiliary, batch[1])

    def step(self, number: int) -> dict[str, training.Number]:
        done = number // self.steps / self._settings.epochs
        self._drop(self._settings.drop_path * done)
        training.set_lr(self._train_step.optimizer, training.cosine_lr(self._settings.lr, done))
        return {"train_loss": self._train_step(self._batches(number))}

    def _drop(self, drop_prob: float) -> None:
        if drop_prob != self._drop_prob:  # once in an epoch, and after resuming
            set_drop_path(self.model, drop_prob)
            self._train_step.reset_graph()
            self._drop_prob = drop_prob

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        return {"test_accuracy": accuracy(self.model, self._test)}

    def state_dict(self) -> dict[str, Any]:
        return self._train_step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._train_step.load_state_dict(state)


def build_trainable(channels: int, cells: int, values: Mapping[str, Any]) -> nn.Module:
    """The static network of an architecture, to be trained from scratch."""
    return nas.extract(Net(channels, cells, affine=True, auxiliary=True), values)


def evaluate(folder: Path, train: Images, test: Images, progress: Progress = lambda done: None) -> dict[str, Any]:
    """Test accuracy of what a run has trained so far: a network from scratch, or the architecture found by a search."""
    config = read_checkpointed_config(folder, "cifar10")
    path = folder / training.CHECKPOINT
    if config["kind"] == "search":
        search = Cifar10SearchJob(settings_from_config(Cifar10SearchSettings, config), train, test)
        state = training.load_checkpoint(path, search, config)
        result = search.test_accuracy(search.search_job.load_result(folder), progress=progress)
    else:
        retrain = Cifar10RetrainJob(
            settings_from_config(Cifar10RetrainSettings, config), from_dict(config["architecture"]), train, test
        )
        state = training.load_checkpoint(path, retrain, config)
        result = accuracy(retrain.model, test, progress=progress)
    return {"kind": config["kind"], "steps": state["number"], "test_accuracy": result}
