"""The search of an autoencoder that fills holes in faces (section 3.3 of the paper), in both encodings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas
from asng.experiments import Progress, curves, training
from asng.experiments.data import halves
from asng.experiments.inpainting import measures
from asng.experiments.inpainting.data import FaceBatches, Faces, describe_faces
from asng.experiments.inpainting.encoding import Encoding, describe_chain, smallest_values
from asng.experiments.inpainting.masks import Mask, fixed_masks
from asng.experiments.inpainting.network import Net, to_device_format
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

NUM_TEST_FACES = 200  # faces tested at each checkpoint; `evaluate` uses the whole test set
MASK_SEED = 0  # seed of the masks of test faces, the same for all runs


def check_checkpoint_every(iterations: int, checkpoint_every: int) -> None:
    """Raise ValueError if iterations are not a multiple of checkpoint_every."""
    if iterations % checkpoint_every:
        raise ValueError(f"iterations must be a multiple of checkpoint_every, {checkpoint_every}, got {iterations}")


@dataclass(frozen=True, kw_only=True)
class InpaintingSearchSettings(SearchSettings):
    """The search; the paper's values are the defaults."""

    encoding: Encoding = "cat"
    """cat: choices alone; int: integers for kernels and channels."""
    mask: Mask = "center"
    """What is missing: the central square, 80 % of the pixels, or a half of the image."""
    iterations: int = 50_000
    """Each moves the weights and the distribution once."""
    checkpoint_every: int = 1000
    """Iterations between two checkpoints and lines of metrics."""
    layers: int = 20
    """Hidden layers; those that the output does not lead back to are inactive."""
    widths: tuple[int, ...] | None = None
    """Channels of a layer: all choices of the encoding cat, the least and the most of int; 64 to 256 by default."""
    batch: int = 16
    """Faces in a mini-batch."""
    num_train_images: int | None = None
    """The most training faces to use, from all over their order; all by default."""

    def __post_init__(self) -> None:
        check_settings(
            self, iterations=1, checkpoint_every=1, layers=2, batch=1, population_size=2, num_random=1, seed=0
        )
        check_checkpoint_every(self.iterations, self.checkpoint_every)


# Small enough for two cores; at the learning rate of the paper, so few iterations would teach single layers only.
SMALL = InpaintingSearchSettings(
    mask="pixel", iterations=600, checkpoint_every=100, layers=6, widths=(8, 32), num_train_images=4000, lr=0.1
)


def evenly_spaced(n: int, max: int) -> Tensor:
    """At most `max` of the numbers below n, evenly spaced: the order of CelebA is not random.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 4)
    (tensor([0, 2, 5, 7]), tensor([0, 1, 2]))
    """
    chosen = min(n, max)
    return torch.arange(chosen) * n // chosen


def face_indices(faces: Faces, num_train_images: int | None) -> Tensor:
    """The numbers of the faces that are used, at most `num_train_images` of them."""
    if num_train_images is not None and num_train_images < 1:
        raise ValueError(f"num_train_images must be at least 1, got {num_train_images}")
    return evenly_spaced(len(faces), num_train_images or len(faces))


def search(
    settings: InpaintingSearchSettings,
    folder: Path,
    train: Faces,
    test: Faces,
    show: training.Show = training.show_nothing,
) -> dict[str, Any]:
    """Search, or continue; leaves the architecture and a summary in the folder."""
    job = InpaintingSearchJob(settings, train, test)
    what = {**run_config("inpainting", "search", settings), "faces": describe_faces(train, test)}
    num_checkpoints = settings.iterations // settings.checkpoint_every
    with Run(folder, what, METRICS) as run:
        records = training.run_job(
            job,
            run,
            epochs=num_checkpoints,
            steps=settings.checkpoint_every,
            images=2 * settings.batch,
            show=show,
            status=job.search_job.certainty,
            unit="checkpoint",
        )
        found = job.search_job.result(job.valid, job.valid.steps, show)
        summary = {
            **found,
            "chain": describe_chain(found["values"], job.model.size).splitlines(),
            "machine": training.describe_machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "architecture.json", to_dict(found["values"]))
        write_json(folder / "summary.json", summary)
        curves.draw_curves({"": records}, folder)
    return summary


def reconstruction_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean squared error over whole images, from a mini-batch of originals and their corrupted twins."""
    return F.mse_loss(model(batch[1]), batch[0])


def build_supernet(settings: InpaintingSearchSettings, size: tuple[int, int], device: torch.device) -> Net:
    """The network of a search on images of a size, with its first weights."""
    torch.manual_seed(settings.seed)
    return to_device_format(Net(settings.encoding, settings.layers, widths=settings.widths, size=size), device)


def build_search(settings: InpaintingSearchSettings, model: Net) -> SearchJob:
    """The one-shot search of a supernet."""
    return SearchJob(settings, model, reconstruction_loss, size=nas.parameters, weight_decay=0.0)


class InpaintingSearchJob:
    """The search as a job."""

    def __init__(self, settings: InpaintingSearchSettings, train: Faces, test: Faces) -> None:
        self._settings, self.device = settings, train.images.device
        height, width = train.images.shape[2:]
        self.model = build_supernet(settings, (height, width), self.device)
        check_max_params(settings.max_params, nas.parameters(self.model, smallest_values(nas.space_of(self.model))))
        used = face_indices(train, settings.num_train_images)
        self._train, self.valid = (
            FaceBatches(train, used[half], settings.batch, settings.mask, settings.seed, stream)
            for half, stream in zip(halves(len(used), settings.seed), (TRAIN, VALID), strict=True)
        )
        self.search_job = build_search(settings, self.model)
        self._test = MaskedTestSet(test, settings.mask, NUM_TEST_FACES)

    def step(self, number: int) -> dict[str, training.Number]:
        done = number / self._settings.iterations
        return self.search_job.step(self._train(number), self.valid(number), done)

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        record: dict[str, Any] = self.search_job.certainty()
        likely = self.search_job.top_values() if self._settings.test else None
        return record if likely is None else {**record, **self._test.means(nas.extract(self.model, likely))}

    def state_dict(self) -> dict[str, Any]:
        return self.search_job.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.search_job.load_state_dict(state)


class MaskedTestSet:
    """Test faces behind masks that are the same for all runs; at most `max` of them, from all over their order."""

    def __init__(self, faces: Faces, mask: Mask, max: int | None = None) -> None:
        n, (height, width) = len(faces), faces.images.shape[2:]
        chosen = evenly_spaced(n, max or n)
        tested = faces.subset(chosen)
        self.images, self.names = tested.images, tested.names
        self.masks = fixed_masks(mask, n, (height, width), MASK_SEED)[chosen]

    def scores(self, model: nn.Module, progress: Progress = lambda done: None) -> measures.Scores:
        """PSNR and SSIM of each face that a model restores."""
        return measures.evaluate(model, self.images, self.masks, progress=progress)

    def means(self, model: nn.Module) -> dict[str, Any]:
        """Means of both, as a record has them."""
        report = self.scores(model).report()
        return {"test_psnr": report["psnr"], "test_ssim": report["ssim"]}
