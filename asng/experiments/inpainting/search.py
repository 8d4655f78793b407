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
from asng.experiments.inpainting.data import Batches, Faces, described
from asng.experiments.inpainting.encoding import Encoding, describe, least_values
from asng.experiments.inpainting.masks import Mask, fixed
from asng.experiments.inpainting.network import Net, placed
from asng.experiments.searching import TRAIN, VALID, Searching, SearchSettings, check, check_limit, config
from asng.nas.architecture import to_dict
from asng.runs import METRICS, Run, write_json

TESTED = 200  # faces, after each stretch of iterations; the whole test set is the affair of `evaluate`
MASKS = 0  # seed of the masks of test faces, the same for all runs


def check_stretch(iterations: int, stretch: int) -> None:
    """Raise ValueError where stretches do not fill the iterations."""
    if iterations % stretch:
        raise ValueError(f"iterations must be a multiple of stretch, {stretch}, got {iterations}")


@dataclass(frozen=True, kw_only=True)
class Settings(SearchSettings):
    """The search; the paper's values are the defaults."""

    encoding: Encoding = "cat"
    """cat: choices alone; int: integers for kernels and channels."""
    mask: Mask = "center"
    """What is missing: the central square, 80 % of the pixels, or a half of the image."""
    iterations: int = 50_000
    """Each moves the weights and the distribution once."""
    stretch: int = 1000
    """Iterations between two checkpoints and lines of metrics."""
    layers: int = 20
    """Hidden layers; those that the output does not lead back to are inactive."""
    widths: tuple[int, ...] | None = None
    """Channels of a layer: all choices of the encoding cat, the least and the most of int; 64 to 256 by default."""
    batch: int = 16
    """Faces in a mini-batch."""
    images: int | None = None
    """The most training faces to use, from all over their order; all by default."""

    def __post_init__(self) -> None:
        check(self, iterations=1, stretch=1, layers=2, batch=1, population_size=2, candidates=1, seed=0)
        check_stretch(self.iterations, self.stretch)


# Small enough for two cores; at the learning rate of the paper, so few iterations would teach single layers only.
SMALL = Settings(mask="pixel", iterations=600, stretch=100, layers=6, widths=(8, 32), images=4000, rate=0.1)


def spread(n: int, most: int) -> Tensor:
    """At most so many of the numbers below n, from all over them: the order of CelebA is not that of chance.

    >>> spread(10, 4), spread(3, 4)
    (tensor([0, 2, 5, 7]), tensor([0, 1, 2]))
    """
    chosen = min(n, most)
    return torch.arange(chosen) * n // chosen


def used_of(faces: Faces, images: int | None) -> Tensor:
    """The numbers of the faces that are used, at most `images` of them."""
    if images is not None and images < 1:
        raise ValueError(f"images must be at least 1, got {images}")
    return spread(len(faces), images or len(faces))


def search(
    settings: Settings, folder: Path, train: Faces, test: Faces, show: training.Show = training.silent
) -> dict[str, Any]:
    """Search, or go on with a search; leaves the architecture and a summary in the folder."""
    job = Search(settings, train, test)
    what = {**config("inpainting", "search", settings), "faces": described(train, test)}
    stretches = settings.iterations // settings.stretch
    with Run(folder, what, METRICS) as kept:
        records = training.run(
            job,
            kept,
            epochs=stretches,
            steps=settings.stretch,
            images=2 * settings.batch,
            show=show,
            glance=job.searching.certainty,
            unit="stretch",
        )
        found = job.searching.found(job.valid, job.valid.steps, show)
        summary = {
            **found,
            "chain": describe(found["values"], job.model.size).splitlines(),
            "machine": training.machine(job.device),
            "last": records[-1],
        }
        write_json(folder / "architecture.json", to_dict(found["values"]))
        write_json(folder / "summary.json", summary)
        curves.draw({"": records}, folder)
    return summary


def loss_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean squared error over whole images, from a mini-batch of originals and their corrupted twins."""
    return F.mse_loss(model(batch[1]), batch[0])


def supernet(settings: Settings, size: tuple[int, int], device: torch.device) -> Net:
    """The network of a search on images of a size, with its first weights."""
    torch.manual_seed(settings.seed)
    return placed(Net(settings.encoding, settings.layers, widths=settings.widths, size=size), device)


def searching_of(settings: Settings, model: Net) -> Searching:
    """How its weights and its architecture are moved."""
    return Searching(settings, model, loss_of, size=nas.parameters, weight_decay=0.0)


class Search:
    """The search as a job."""

    def __init__(self, settings: Settings, train: Faces, test: Faces) -> None:
        self._settings, self.device = settings, train.images.device
        height, width = train.images.shape[2:]
        self.model = supernet(settings, (height, width), self.device)
        check_limit(settings.most_parameters, nas.parameters(self.model, least_values(nas.space_of(self.model))))
        used = used_of(train, settings.images)
        self._train, self.valid = (
            Batches(train, used[half], settings.batch, settings.mask, settings.seed, stream)
            for half, stream in zip(halves(len(used), settings.seed), (TRAIN, VALID), strict=True)
        )
        self.searching = searching_of(settings, self.model)
        self._test = Tested(test, settings.mask, TESTED)

    def step(self, number: int) -> dict[str, training.Number]:
        done = number / self._settings.iterations
        return self.searching.step(self._train(number), self.valid(number), done)

    def finish_epoch(self, epoch: int) -> dict[str, Any]:
        record: dict[str, Any] = self.searching.certainty()
        likely = self.searching.most_likely() if self._settings.test else None
        return record if likely is None else {**record, **self._test.means(nas.extract(self.model, likely))}

    def state_dict(self) -> dict[str, Any]:
        return self.searching.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.searching.load_state_dict(state)


class Tested:
    """Test faces behind masks that are the same for all runs; at most `most` of them, from all over their order."""

    def __init__(self, faces: Faces, mask: Mask, most: int | None = None) -> None:
        n, (height, width) = len(faces), faces.images.shape[2:]
        chosen = spread(n, most or n)
        tested = faces.part(chosen)
        self.images, self.names = tested.images, tested.names
        self.masks = fixed(mask, n, (height, width), MASKS)[chosen]

    def scores(self, model: nn.Module, progress: Progress = lambda done: None) -> measures.Scores:
        """PSNR and SSIM of each face that a model restores."""
        return measures.evaluate(model, self.images, self.masks, progress=progress)

    def means(self, model: nn.Module) -> dict[str, Any]:
        """Means of both, as a record has them."""
        report = self.scores(model).report()
        return {"test_psnr": report["psnr"], "test_ssim": report["ssim"]}
