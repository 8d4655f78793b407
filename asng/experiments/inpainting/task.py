"""Inpainting (section 3.3 of the paper): autoencoders that fill holes in faces, in both encodings."""

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
from asng._files import atomic_write
from asng._progress import Progress, no_progress
from asng.experiments._image_runs import load_trained
from asng.experiments._images import ImageSet, Transform
from asng.experiments._jobs import Task, Values
from asng.experiments._settings import IterationSettings, SearchSettings
from asng.experiments.inpainting import measures
from asng.experiments.inpainting.data import describe_faces, mask_batches
from asng.experiments.inpainting.encoding import Encoding, describe_chain, search_space, smallest_values
from asng.experiments.inpainting.masks import Mask, fixed_masks
from asng.experiments.inpainting.network import Net, new_autoencoder, to_device_format
from asng.experiments.inpainting.pictures import picture
from asng.runs import write_json

NUM_TEST_FACES = 200  # faces tested at each checkpoint; `evaluate` uses the whole test set
DEFAULT_MASK: Mask = "center"
MASK_SEED = 0  # seed of the masks of test faces, the same for all runs
DROPS = (0.4, 0.8)  # shares of the training after which the learning rate is a tenth of what it was


@dataclass(frozen=True, kw_only=True)
class InpaintingSearchSettings(SearchSettings, IterationSettings):
    """The search; the paper's values are the defaults."""

    encoding: Encoding = "cat"
    """cat: choices alone; int: integers for kernels and channels."""
    mask: Mask = DEFAULT_MASK
    """What is missing: the central square, 80 % of the pixels, or a half of the image."""
    iterations: int = 50_000
    """Each moves the weights and the distribution once."""
    layers: int = 20
    """Hidden layers; those that the output does not lead back to are inactive."""
    widths: tuple[int, ...] | None = None
    """Channels of a layer: all choices of the encoding cat, the least and the most of int; 64 to 256 by default."""
    batch: int = 16
    """Faces in a mini-batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, layers=2, population_size=2)


@dataclass(frozen=True, kw_only=True)
class InpaintingRetrainSettings(IterationSettings):
    """Training an architecture from scratch; the paper's values are the defaults."""

    mask: Mask | None = None
    """What is missing: the central square, 80 % of the pixels, or a half of the image; by default as in RUN."""
    iterations: int = 500_000
    """Steps of Adam."""
    checkpoint_every: int = 5000
    """Iterations between two checkpoints and lines of metrics."""
    batch: int = 16
    """Faces in a mini-batch."""
    lr: float = 1e-3
    """Learning rate at the start; a tenth of it after two fifths, a hundredth after four fifths."""

    def lr_at(self, fraction: float) -> float:
        """The learning rate after a fraction of the training.

        >>> [round(InpaintingRetrainSettings(lr=1.0).lr_at(fraction), 9) for fraction in (0.0, 0.39, 0.4, 0.79, 0.8)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
        """
        return self.lr * 0.1 ** sum(fraction >= drop for drop in DROPS)


# Small enough for two cores; at the learning rate of the paper, so few iterations would teach single layers only.
SMALL = InpaintingSearchSettings(
    mask="pixel", iterations=600, checkpoint_every=100, layers=6, widths=(8, 32), num_train_images=4000, lr=0.1
)
SMALL_RETRAIN = InpaintingRetrainSettings(iterations=1500, checkpoint_every=250, num_train_images=4000)


def evenly_spaced(n: int, max: int) -> Tensor:
    """At most `max` of the numbers below n, evenly spaced: the order of CelebA is not random.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 4)
    (tensor([0, 2, 5, 7]), tensor([0, 1, 2]))
    """
    chosen = min(n, max)
    return torch.arange(chosen) * n // chosen


class Inpainting(Task):
    """Search and training on faces, which `load_faces` gives."""

    name = "inpainting"
    search_settings, train_settings = InpaintingSearchSettings, InpaintingRetrainSettings
    search_weight_decay = 0.0

    def train_indices(self, settings: InpaintingSearchSettings | InpaintingRetrainSettings) -> Tensor:
        return evenly_spaced(len(self.train), settings.num_train_images or len(self.train))

    def transform(self, settings: InpaintingSearchSettings | InpaintingRetrainSettings) -> Transform:
        return partial(mask_batches, settings.mask or DEFAULT_MASK)

    def identity(self) -> dict[str, Any]:
        return {"faces": describe_faces(self.train, self.test)}

    def build_supernet(self, settings: InpaintingSearchSettings) -> nn.Module:
        space = search_space(settings.encoding, settings.layers, widths=settings.widths)
        return to_device_format(Net(space, self.test.size), self.device)

    def search_loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean squared error over whole images, from a mini-batch of originals and their corrupted twins."""
        return F.mse_loss(model(batch[1]), batch[0])

    def size_of(self, settings: InpaintingSearchSettings) -> Callable[[nn.Module, Values], int]:
        return nas.parameters

    def smallest_values(self, model: nn.Module) -> Values:
        return smallest_values(nas.space_of(model))

    def build_network(self, settings: InpaintingRetrainSettings, values: Values) -> nn.Module:
        return to_device_format(new_autoencoder(values, self.test.size), self.device)

    def build_optimizer(self, settings: InpaintingRetrainSettings, model: nn.Module) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        return torch.optim.Adam(model.parameters(), lr=settings.lr, fused=on_gpu, capturable=on_gpu)

    def measure(self, model: nn.Module, settings: Any) -> dict[str, Any]:
        faces, masks = masked_faces(self.test, settings.mask or DEFAULT_MASK, NUM_TEST_FACES)
        report = measures.evaluate(model, faces.images, masks).report()
        return {"test_psnr": report["psnr"], "test_ssim": report["ssim"]}

    def summarize(self, settings: Any, values: Values, model: nn.Module | None = None) -> dict[str, Any]:
        chain = describe_chain(values, self.test.size).splitlines()
        return {"chain": chain, **super().summarize(settings, values, model)}


def masked_faces(faces: ImageSet, mask: Mask, max: int | None = None) -> tuple[ImageSet, Tensor]:
    """At most `max` faces, from all over their order, and their masks, which are the same for all runs."""
    chosen = evenly_spaced(len(faces), max or len(faces))
    return faces.subset(chosen), fixed_masks(mask, len(faces), faces.size, MASK_SEED)[chosen]


def evaluate(
    task: Inpainting, folder: Path, config: Mapping[str, Any], progress: Progress = no_progress, name: str = ""
) -> dict[str, Any]:
    """PSNR and SSIM on test faces of what a run has trained so far; leaves evaluation.json and restored.png.

    With a name of the test faces the files are evaluation-NAME.json and restored-NAME.png.
    """
    model, iterations = load_trained(task, folder, config)
    faces, masks = masked_faces(task.test, config["mask"] or DEFAULT_MASK)
    scores = measures.evaluate(model, faces.images, masks, progress=progress)
    report = {"kind": config["kind"], "iterations": iterations, **scores.report(faces.names)}
    ending = f"-{name}" if name else ""
    report["picture"] = f"restored{ending}.png"
    grid, report["shown"] = picture(model, faces.images, masks, scores)
    with atomic_write(folder / report["picture"]) as file:
        grid.save(file, "PNG")
    write_json(folder / f"evaluation{ending}.json", report)
    return report
