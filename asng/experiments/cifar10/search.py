"""The search on CIFAR-10 (section 3.2 of the paper): two cells, searched with shared weights."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import SNG, Uniform, __version__, nas
from asng.asktell import AskTell
from asng.experiments import training
from asng.experiments.cifar10 import drawing
from asng.experiments.cifar10.data import Batches, Images, normalise
from asng.experiments.cifar10.network import Net
from asng.experiments.data import halves
from asng.nas.architecture import to_dict
from asng.optimizer import ASNG
from asng.runs import METRICS, Run, write_json

TRAIN, VALID = 0, 1  # streams of random numbers
CALIBRATION = 25  # mini-batches from which the batch norms of the most likely architecture are estimated anew
FINALISTS = 10  # of random search, judged on all images of the half that judges
METHODS: dict[str, Callable[..., AskTell]] = {"asng": ASNG, "sng": SNG, "uniform": Uniform}


@dataclass(frozen=True)
class Settings:
    """The search; the paper's values are the defaults."""

    epochs: int = 100
    """Over one half of the training images; the other half judges architectures."""
    channels: int = 16
    """Of the first cell."""
    cells: int = 8
    """Of which those at a third and at two thirds reduce."""
    batch: int = 64
    """Images in a mini-batch."""
    samples: int = 2
    """Architectures per half of an iteration (lambda)."""
    rate: float = 0.025
    """Learning rate of the weights at the start of its cosine."""
    method: Literal["asng", "sng", "uniform"] = "asng"
    """How the distribution moves: asng; sng, with a constant step; uniform, not at all (random search)."""
    candidates: int = 1000
    """With the method uniform: architectures drawn at the end, of which the best one is taken."""
    most_parameters: int | None = None
    """A hard limit on the parameters of an architecture, at the size of the search."""
    images: int = 50_000
    """How many of the training images are used."""
    test: bool = True
    """Test the most likely architecture after every epoch, its batch statistics estimated anew."""
    amp: training.Amp = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""

    def __post_init__(self) -> None:
        check(
            self, least={"epochs": 1, "channels": 2, "cells": 3, "batch": 2, "samples": 2, "candidates": 1, "seed": 0}
        )
        if self.images // 2 < self.batch:
            raise ValueError(f"images must be at least two mini-batches of {self.batch}, got {self.images}")


# Small enough for two cores: it learns something visible in about five minutes.
SMALL = Settings(epochs=12, channels=8, cells=3, images=10_000)


def check(settings: Any, least: Mapping[str, int]) -> None:
    for name, minimum in least.items():
        if getattr(settings, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {getattr(settings, name)}")
    if not settings.rate > 0 or not math.isfinite(settings.rate):
        raise ValueError(f"rate must be above 0, got {settings.rate}")


def search(
    settings: Settings, folder: Path, train: Images, test: Images, show: training.Show = training.silent
) -> dict[str, Any]:
    """Search, or go on with a search; leaves architecture, pictures of the cells and a summary in the folder."""
    kept = Run(folder, config("search", settings), METRICS)
    job = Search(settings, train, test)
    records = training.run(job, kept, epochs=settings.epochs, steps=job.steps, images=2 * settings.batch, show=show)
    found = job.found()
    distribution = {name: np.asarray(p).tolist() for name, p in job.optimizer.distribution().items()}
    summary = {
        **found,
        "machine": training.machine(train.images.device),
        "last": records[-1],
        "distribution": distribution,
    }
    write_json(folder / "architecture.json", to_dict(found["values"]))
    write_json(folder / "summary.json", summary)
    drawing.draw(found["values"], folder, distribution)
    return summary


class Search:
    """The one-shot search as a job."""

    def __init__(self, settings: Settings, train: Images, test: Images) -> None:
        self._settings, self._test, self.device = settings, test, train.images.device
        torch.manual_seed(settings.seed)
        self.model = Net(settings.channels, settings.cells).to(self.device)
        streams = np.random.SeedSequence(settings.seed).spawn(2)
        self.optimizer = METHODS[settings.method](nas.space_of(self.model), samples=settings.samples, seed=streams[0])
        self._judges = streams[1]
        weights = torch.optim.SGD(
            self.model.parameters(), lr=settings.rate, momentum=0.9, weight_decay=3e-4, fused=self.device.type == "cuda"
        )
        limits = [] if settings.most_parameters is None else [nas.Limit(nas.parameters, settings.most_parameters)]
        self._correct: list[Tensor] = []
        self.oneshot = nas.OneShot(
            self.model,
            self.optimizer,
            weights,
            self._loss,
            clip_norm=5.0,
            limits=limits,
            amp=training.dtype_of(settings.amp),
        )
        first, second = halves(settings.images, settings.seed)
        self._train = Batches(train, first, settings.batch, settings.seed, TRAIN)
        self._valid = Batches(train, second, settings.batch, settings.seed, VALID)
        self.steps = self._train.steps

    def _loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        if not torch.is_grad_enabled():  # an architecture is judged
            self._correct.append((logits.argmax(1) == batch[1]).double().mean())
        return F.cross_entropy(logits, batch[1])

    def step(self, number: int) -> dict[str, training.Number]:
        done = number // self.steps / self._settings.epochs
        training.set_rate(self.oneshot.weights, training.cosine(self._settings.rate, done))
        self._correct.clear()
        step = self.oneshot.step(self._train(number), self._valid(number))
        accuracy = torch.stack(self._correct).mean() if self._correct else math.nan
        return {"train_loss": step.train_loss, "valid_loss": step.valid_loss, "valid_accuracy": accuracy}

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        record: dict[str, Any] = training.certainty(self.optimizer)
        if self._settings.test and self._settings.method != "uniform":
            record["test_accuracy"] = self.test_accuracy(nas.most_likely(self.oneshot).values)
        return record

    def test_accuracy(self, values: Mapping[str, Any]) -> float:
        """Of an architecture with the weights of the search, its batch statistics estimated anew."""
        network = nas.extract(self.model, values)
        nas.recalibrate(network, (self._train(number)[0] for number in range(min(CALIBRATION, self.steps))))
        return accuracy(network, self._test)

    def found(self) -> dict[str, Any]:
        """The architecture that the search ends with."""
        if self._settings.method == "uniform":
            values, inside, probability = self._best_of_random(), True, None
        else:
            choice = nas.most_likely(self.oneshot)
            values, inside, probability = choice.values, choice.inside, choice.probability
        return {"values": values, "inside": inside, "probability": probability}

    def _best_of_random(self) -> dict[str, Any]:
        """Random search with shared weights: many on a mini-batch each, the best few on the whole half that judges."""
        drawn = Uniform(nas.space_of(self.model), seed=self._judges).ask(self._settings.candidates)
        architectures = [c.values for c in drawn if not self.oneshot.excess(c.values)]
        if not architectures:
            raise RuntimeError("no architecture that was drawn meets the limit; raise most_parameters")
        losses = [
            self._judged(values, range(k % self._valid.steps, k % self._valid.steps + 1))
            for k, values in enumerate(architectures)
        ]
        best = [architectures[place] for place in np.argsort(losses, kind="stable")[:FINALISTS]]
        return min(best, key=lambda values: self._judged(values, range(self._valid.steps)))

    def _judged(self, values: Mapping[str, Any], numbers: range) -> float:
        nas.select(self.model, values)
        with torch.no_grad():
            losses = [self._loss(self.model, self._valid(number)) for number in numbers]
        return torch.stack(losses).mean().item()

    def state_dict(self) -> dict[str, Any]:
        return self.oneshot.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.oneshot.load_state_dict(state)


def accuracy(network: nn.Module, images: Images, batch: int = 1000) -> float:
    """The share of images that a network tells right, in evaluation mode."""
    training_before = network.training
    network.eval()
    correct = torch.zeros((), dtype=torch.int64, device=images.images.device)
    with torch.no_grad():
        for part, labels in zip(images.images.split(batch), images.labels.split(batch), strict=True):
            correct += (network(normalise(part)).argmax(1) == labels).sum()
    network.train(training_before)
    return correct.item() / len(images.labels)


def config(kind: str, settings: Any) -> dict[str, Any]:
    return {"experiment": "cifar10", "kind": kind, "version": __version__, **asdict(settings)}
