"""Training an autoencoder from scratch on faces with holes, and testing what it restores."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asng import nas
from asng._files import atomic_write
from asng.experiments import Progress, curves, training
from asng.experiments.descent import TrainStep
from asng.experiments.inpainting.data import FaceBatches, Faces, describe_faces
from asng.experiments.inpainting.encoding import Values, describe_chain
from asng.experiments.inpainting.masks import Mask
from asng.experiments.inpainting.network import new_autoencoder, to_device_format
from asng.experiments.inpainting.pictures import picture
from asng.experiments.inpainting.search import (
    NUM_TEST_FACES,
    InpaintingSearchSettings,
    MaskedTestSet,
    build_search,
    build_supernet,
    check_checkpoint_every,
    face_indices,
    reconstruction_loss,
)
from asng.experiments.searching import (
    TRAIN,
    check_settings,
    read_checkpointed_config,
    run_config,
    settings_from_config,
)
from asng.nas.architecture import from_dict, to_dict
from asng.runs import METRICS, Run, write_json

DROPS = (0.4, 0.8)  # shares of the training after which the learning rate is a tenth of what it was


@dataclass(frozen=True, kw_only=True)
class InpaintingRetrainSettings:
    """Training an architecture from scratch; the paper's values are the defaults."""

    mask: Mask = "center"
    """What is missing: the central square, 80 % of the pixels, or a half of the image; of a RUN, its own."""
    iterations: int = 500_000
    """Steps of Adam."""
    checkpoint_every: int = 5000
    """Iterations between two checkpoints and lines of metrics."""
    batch: int = 16
    """Faces in a mini-batch."""
    lr: float = 1e-3
    """Learning rate at the start; a tenth of it after two fifths, a hundredth after four fifths."""
    num_train_images: int | None = None
    """The most training faces to use, from all over their order; all by default."""
    amp_dtype: training.AmpDtype = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""

    def __post_init__(self) -> None:
        check_settings(self, iterations=1, checkpoint_every=1, batch=1, seed=0)
        check_checkpoint_every(self.iterations, self.checkpoint_every)


SMALL_RETRAIN = InpaintingRetrainSettings(mask="pixel", iterations=1500, checkpoint_every=250, num_train_images=4000)


def step_lr(start: float, done: float) -> float:
    """The learning rate after the fraction `done` of the training.

    >>> [round(step_lr(1.0, done), 9) for done in (0.0, 0.39, 0.4, 0.79, 0.8)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return start * 0.1 ** sum(done >= drop for drop in DROPS)


def retrain(
    settings: InpaintingRetrainSettings,
    values: Mapping[str, Any],
    folder: Path,
    train: Faces,
    test: Faces,
    show: training.Show = training.show_nothing,
) -> dict[str, Any]:
    """Train an architecture from scratch, or continue; leaves the weights and a summary in the folder."""
    job = InpaintingRetrainJob(settings, values, train, test)
    what = {"architecture": to_dict(values), "faces": describe_faces(train, test)}
    num_checkpoints = settings.iterations // settings.checkpoint_every
    with Run(folder, {**run_config("inpainting", "retrain", settings), **what}, METRICS) as run:
        write_json(folder / "architecture.json", to_dict(values))
        records = training.run_job(
            job,
            run,
            epochs=num_checkpoints,
            steps=settings.checkpoint_every,
            images=settings.batch,
            show=show,
            unit="checkpoint",
        )
        height, width = train.images.shape[2:]
        summary = {
            "chain": describe_chain(values, (height, width)).splitlines(),
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "machine": training.describe_machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "summary.json", summary)
        curves.draw_curves({"": records}, folder)
    return summary


def build_train_step(
    settings: InpaintingRetrainSettings, values: Values, size: tuple[int, int], device: torch.device
) -> TrainStep:
    """The training step of an architecture with its initial weights."""
    torch.manual_seed(settings.seed)
    model = to_device_format(new_autoencoder(values, size), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=device.type == "cuda")
    return TrainStep(
        model, optimizer, reconstruction_loss, max_grad_norm=5.0, amp_dtype=training.parse_amp_dtype(settings.amp_dtype)
    )


class InpaintingRetrainJob:
    """Training from scratch as a job."""

    def __init__(
        self, settings: InpaintingRetrainSettings, values: Mapping[str, Any], train: Faces, test: Faces
    ) -> None:
        self._settings, self.device = settings, train.images.device
        height, width = train.images.shape[2:]
        self._train_step = build_train_step(settings, values, (height, width), self.device)
        self.model = self._train_step.model
        used = face_indices(train, settings.num_train_images)
        self._batches = FaceBatches(train, used, settings.batch, settings.mask, settings.seed, TRAIN)
        self._test = MaskedTestSet(test, settings.mask, NUM_TEST_FACES)

    def step(self, number: int) -> dict[str, training.Number]:
        training.set_lr(self._train_step.optimizer, step_lr(self._settings.lr, number / self._settings.iterations))
        return {"train_loss": self._train_step(self._batches(number))}

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        return self._test.means(self.model)

    def state_dict(self) -> dict[str, Any]:
        return self._train_step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._train_step.load_state_dict(state)


def evaluate(folder: Path, test: Faces, progress: Progress = lambda done: None, name: str = "") -> dict[str, Any]:
    """PSNR and SSIM on test faces of what a run has trained so far; leaves evaluation.json and restored.png.

    With a name of the test faces the files are evaluation-NAME.json and restored-NAME.png.
    """
    config = read_checkpointed_config(folder, "inpainting")
    height, width = test.images.shape[2:]
    model, iterations = load_trained(folder, config, (height, width), test.images.device)
    tested = MaskedTestSet(test, config["mask"])
    scores = tested.scores(model, progress)
    report = {"kind": config["kind"], "iterations": iterations, **scores.report(tested.names)}
    ending = f"-{name}" if name else ""
    report["picture"] = f"restored{ending}.png"
    grid, report["shown"] = picture(model, tested.images, tested.masks, scores)
    with atomic_write(folder / report["picture"]) as file:
        grid.save(file, "PNG")
    write_json(folder / f"evaluation{ending}.json", report)
    return report


def load_trained(
    folder: Path, config: Mapping[str, Any], size: tuple[int, int], device: torch.device
) -> tuple[nn.Module, int]:
    """The network that a run has trained so far, or found, for images of a size; and after how many iterations."""
    path = folder / training.CHECKPOINT
    if config["kind"] == "search":
        settings = settings_from_config(InpaintingSearchSettings, config)
        model = build_supernet(settings, size, device)
        search_job = build_search(settings, model)
        number: int = training.load_checkpoint(path, search_job, config)["number"]
        return nas.extract(model, search_job.load_result(folder)), number
    train_step = build_train_step(
        settings_from_config(InpaintingRetrainSettings, config), from_dict(config["architecture"]), size, device
    )
    number = training.load_checkpoint(path, train_step, config)["number"]
    return train_step.model, number
