"""Training an autoencoder from scratch on faces with holes, and testing what it restores."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asng import nas
from asng._files import replacing
from asng.experiments import Progress, curves, training
from asng.experiments.descent import Descent
from asng.experiments.inpainting.data import Batches, Faces, described
from asng.experiments.inpainting.encoding import Values, describe
from asng.experiments.inpainting.masks import Mask
from asng.experiments.inpainting.network import fresh, placed
from asng.experiments.inpainting.pictures import picture
from asng.experiments.inpainting.search import (
    TESTED,
    Settings,
    Tested,
    check_stretch,
    loss_of,
    searching_of,
    supernet,
    used_of,
)
from asng.experiments.searching import TRAIN, check, config, config_in, settings_in
from asng.nas.architecture import from_dict, to_dict
from asng.runs import METRICS, Run, write_json

DROPS = (0.4, 0.8)  # shares of the training after which the learning rate is a tenth of what it was


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """Training an architecture from scratch; the paper's values are the defaults."""

    mask: Mask = "center"
    """What is missing: the central square, 80 % of the pixels, or a half of the image; of a RUN, its own."""
    iterations: int = 500_000
    """Steps of Adam."""
    stretch: int = 5000
    """Iterations between two checkpoints and lines of metrics."""
    batch: int = 16
    """Faces in a mini-batch."""
    rate: float = 1e-3
    """Learning rate at the start; a tenth of it after two fifths, a hundredth after four fifths."""
    images: int | None = None
    """The most training faces to use, from all over their order; all by default."""
    amp_dtype: training.AmpDtype = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""

    def __post_init__(self) -> None:
        check(self, iterations=1, stretch=1, batch=1, seed=0)
        check_stretch(self.iterations, self.stretch)


SMALL_RETRAINING = Retraining(mask="pixel", iterations=1500, stretch=250, images=4000)


def rate_at(start: float, done: float) -> float:
    """The learning rate when a share `done` of the training is behind it.

    >>> [round(rate_at(1.0, done), 9) for done in (0.0, 0.39, 0.4, 0.79, 0.8)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return start * 0.1 ** sum(done >= drop for drop in DROPS)


def retrain(
    settings: Retraining,
    values: Mapping[str, Any],
    folder: Path,
    train: Faces,
    test: Faces,
    show: training.Show = training.silent,
) -> dict[str, Any]:
    """Train an architecture from scratch, or go on with it; leaves the weights and a summary in the folder."""
    job = Retrain(settings, values, train, test)
    what = {"architecture": to_dict(values), "faces": described(train, test)}
    stretches = settings.iterations // settings.stretch
    with Run(folder, {**config("inpainting", "retrain", settings), **what}, METRICS) as kept:
        write_json(folder / "architecture.json", to_dict(values))
        records = training.run(
            job, kept, epochs=stretches, steps=settings.stretch, images=settings.batch, show=show, unit="stretch"
        )
        height, width = train.images.shape[2:]
        summary = {
            "chain": describe(values, (height, width)).splitlines(),
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "machine": training.machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "summary.json", summary)
        curves.draw({"": records}, folder)
    return summary


def descent_of(settings: Retraining, values: Values, size: tuple[int, int], device: torch.device) -> Descent:
    """An architecture with its first weights, and how they are moved."""
    torch.manual_seed(settings.seed)
    model = placed(fresh(values, size), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, fused=device.type == "cuda")
    return Descent(model, optimizer, loss_of, max_grad_norm=5.0, amp_dtype=training.parse_amp_dtype(settings.amp_dtype))


class Retrain:
    """Training from scratch as a job."""

    def __init__(self, settings: Retraining, values: Mapping[str, Any], train: Faces, test: Faces) -> None:
        self._settings, self.device = settings, train.images.device
        height, width = train.images.shape[2:]
        self._descent = descent_of(settings, values, (height, width), self.device)
        self.model = self._descent.model
        used = used_of(train, settings.images)
        self._batches = Batches(train, used, settings.batch, settings.mask, settings.seed, TRAIN)
        self._test = Tested(test, settings.mask, TESTED)

    def step(self, number: int) -> dict[str, training.Number]:
        training.set_rate(self._descent.optimizer, rate_at(self._settings.rate, number / self._settings.iterations))
        return {"train_loss": self._descent(self._batches(number))}

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        return self._test.means(self.model)

    def state_dict(self) -> dict[str, Any]:
        return self._descent.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._descent.load_state_dict(state)


def evaluate(folder: Path, test: Faces, progress: Progress = lambda done: None, name: str = "") -> dict[str, Any]:
    """PSNR and SSIM on test faces of what a run has trained so far; leaves evaluation.json and restored.png.

    With a name of the test faces the files are evaluation-NAME.json and restored-NAME.png.
    """
    there = config_in(folder, "inpainting")
    height, width = test.images.shape[2:]
    model, iterations = trained(folder, there, (height, width), test.images.device)
    tested = Tested(test, there["mask"])
    scores = tested.scores(model, progress)
    report = {"kind": there["kind"], "iterations": iterations, **scores.report(tested.names)}
    ending = f"-{name}" if name else ""
    report["picture"] = f"restored{ending}.png"
    grid, report["shown"] = picture(model, tested.images, tested.masks, scores)
    with replacing(folder / report["picture"]) as file:
        grid.save(file, "PNG")
    write_json(folder / f"evaluation{ending}.json", report)
    return report


def trained(
    folder: Path, there: Mapping[str, Any], size: tuple[int, int], device: torch.device
) -> tuple[nn.Module, int]:
    """The network that a run has trained so far, or found, for images of a size; and after how many iterations."""
    path = folder / training.CHECKPOINT
    if there["kind"] == "search":
        settings = settings_in(Settings, there)
        model = supernet(settings, size, device)
        searching = searching_of(settings, model)
        number: int = training.loaded(path, searching, there)["number"]
        return nas.extract(model, searching.found_in(folder)), number
    descent = descent_of(settings_in(Retraining, there), from_dict(there["architecture"]), size, device)
    number = training.loaded(path, descent, there)["number"]
    return descent.model, number
