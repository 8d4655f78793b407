"""Inpainting (section 3.3 of the paper): autoencoders that fill holes in faces, in both encodings."""

from collections.abc import Mapping
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
from asng.experiments._images import ImageSet, Transform
from asng.experiments._settings import IterationSettings, SearchSettings, parse_device
from asng.experiments._task import DataSettings, EvaluateSettings, Kernels, Task, Values
from asng.experiments.inpainting import encoding, measures
from asng.experiments.inpainting.data import (
    Mask,
    describe_faces,
    faces_folder,
    fixed_masks,
    load_faces,
    load_folder,
    mask_batches,
)
from asng.experiments.inpainting.encoding import Encoding
from asng.experiments.inpainting.network import Net, new_autoencoder, to_device_format
from asng.experiments.inpainting.pictures import picture
from asng.space import Variable

NUM_TEST_FACES = 200  # faces tested at each checkpoint; `evaluate` uses the whole test set
DEFAULT_MASK: Mask = "center"
MASK_SEED = 0  # seed of the masks of test faces, the same for all runs
MAX_SHOWN = 5  # images that could not be read
MAX_LAYERS = 1000
DROPS = (0.4, 0.8)  # shares of the training after which the learning rate is a tenth of what it was


@dataclass(frozen=True)
class FaceSettings(DataSettings):
    """The faces, the lists that split them where their folders do not, the device and its kernels."""

    kernels: Kernels = "fused"
    """On a GPU: fused, Triton kernels; torch, torch's kernels, which also disable the capture of a search."""
    train_list: Path | None = None
    """Text file with the names of the training images, one per line."""
    test_list: Path | None = None
    """Text file with the names of the test images."""


@dataclass(frozen=True, kw_only=True)
class InpaintingSearchSettings(SearchSettings, IterationSettings):
    """Search an autoencoder that fills holes in faces: section 3.3 of the paper.

    --data, or the environment variable ASNG_DATA, is a folder of face images, or of CelebA as its authors distribute
    it. Writes a line of metrics.jsonl and a checkpoint every --checkpoint-every iterations, and architecture.json and
    summary.json at the end. Ctrl-C saves; the same command continues. --small also changes the learning rate and the
    mask.

    Examples:
      asng inpainting search                 as in the paper, for a GPU
      asng inpainting search --encoding int --mask pixel
      asng inpainting search --small         a short run, minutes on two cores
    """

    encoding: Encoding = "cat"
    """cat: only choices; int: integers for kernels and channels."""
    mask: Mask = DEFAULT_MASK
    """Missing pixels: the central square, 80 % of the pixels, or a half of the image."""
    iterations: int = 50_000
    """Steps of the search; each moves the weights and the distribution once."""
    layers: int = 20
    """Number of hidden layers; layers without a path to the output are inactive."""
    widths: tuple[int, ...] | None = None
    """Channels of a layer: all choices for cat, minimum and maximum for int; by default 64 to 256."""
    batch_size: int = 16
    """Batch size, in faces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, layers=2, population_size=2)
        if self.layers > MAX_LAYERS:
            raise ValueError(f"layers must be at most {MAX_LAYERS}, got {self.layers}")


@dataclass(frozen=True, kw_only=True)
class InpaintingRetrainSettings(IterationSettings):
    """Train an autoencoder from scratch on faces with holes, and test it.

    By default the mask is that of the search; another mask becomes part of the folder's name. The baseline random is
    drawn from the space of RUN, or of the paper. The baseline base has as many layers as the result of RUN, each 3x3
    with a skip and 64 channels, or the nearest number of channels in the search. Ctrl-C saves; the same command
    continues.

    Examples:
      asng inpainting retrain runs/inpainting-cat-center-asng-seed0
      asng inpainting retrain runs/faces --architecture base    a baseline
      asng inpainting retrain --architecture random --seed 3 --mask pixel
      asng inpainting retrain --architecture network.json --iterations 20000
    """

    mask: Mask | None = None
    """Missing pixels: the central square, 80 % of the pixels, or a half of the image; by default as in RUN."""
    iterations: int = 500_000
    """Steps of Adam."""
    checkpoint_every: int = 5000
    """Iterations between two checkpoints and lines of metrics."""
    batch_size: int = 16
    """Batch size, in faces."""
    lr: float = 1e-3
    """Initial learning rate; a tenth of it after two fifths, a hundredth after four fifths."""

    def lr_at(self, fraction: float) -> float:
        """The learning rate after a fraction of the training.

        >>> [round(InpaintingRetrainSettings(lr=1.0).lr_at(fraction), 9) for fraction in (0.0, 0.39, 0.4, 0.79, 0.8)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
        """
        return self.lr * 0.1 ** sum(fraction >= drop for drop in DROPS)


@dataclass(frozen=True)
class InpaintingEvaluateSettings(EvaluateSettings):
    """Test the network of a run by PSNR and SSIM on all test faces; writes evaluation.json and restored.png.

    The masks of the test faces are the same for all runs.

    Examples:
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0/retrain-seed0
      asng inpainting evaluate runs/inpainting-cat-center-asng-seed0
      asng inpainting evaluate runs/faces/retrain-seed0 --pictures family
    """

    pictures: Path | None = None
    """Folder of faces to test on instead; no other data is needed. Writes evaluation-NAME.json, restored-NAME.png."""

    @property
    def ending(self) -> str:
        return "" if self.pictures is None else f"-{self.pictures.resolve().name}"


# Small enough for two cores; at the learning rate of the paper, so few iterations would teach single layers only.
SMALL = InpaintingSearchSettings(
    mask="pixel", iterations=600, checkpoint_every=100, layers=6, widths=(8, 32), num_train_images=4000, lr=0.1
)
SMALL_RETRAIN = InpaintingRetrainSettings(iterations=1500, checkpoint_every=250, num_train_images=4000)


def spread_indices(n: int, max: int) -> Tensor:
    """At most `max` of the numbers below n, evenly spaced: the order of CelebA is not random.

    >>> spread_indices(10, 4), spread_indices(3, 4)
    (tensor([0, 2, 5, 7]), tensor([0, 1, 2]))
    """
    chosen = min(n, max)
    return torch.arange(chosen) * n // chosen


class Inpainting(Task):
    """Search and training on faces, which `load_faces` gives.

    Args:
        train, test: Faces.
        split: How they were told apart.
        damaged: What was wrong with images that were left out.
        kernels: On a GPU, those of torch or fused ones, which captured steps need.
    """

    name, noun, loading = "inpainting", "faces", "reading faces"
    image_size = encoding.SIZE
    inputs = "Images (n, 3, 64, 64), RGB from 0 to 1, with zeros where pixels are missing; the restored images."
    search_settings, train_settings = InpaintingSearchSettings, InpaintingRetrainSettings
    evaluate_settings, data_settings = InpaintingEvaluateSettings, FaceSettings
    small_search, small_train = SMALL, SMALL_RETRAIN
    inherited = ("mask",)
    baselines = ("random", "base")
    weight_decay = 0.0

    def __init__(
        self,
        train: ImageSet,
        test: ImageSet,
        split: str = "",
        damaged: Mapping[str, str] | None = None,
        *,
        kernels: Kernels = "fused",
    ) -> None:
        super().__init__(train, test)
        self.is_capturable = kernels == "fused"
        self._split, self._damaged = split, dict(damaged or {})

    @classmethod
    def load(cls, where: FaceSettings, progress: Progress = no_progress) -> "Inpainting":
        if (where.train_list is None) != (where.test_list is None):
            raise ValueError("give --train-list and --test-list together, or neither")
        lists = None if where.train_list is None or where.test_list is None else (where.train_list, where.test_list)
        faces = load_faces(where.data, parse_device(where.device), lists=lists, progress=progress)
        return cls(*faces, kernels=where.kernels)

    @classmethod
    def load_for_test(cls, where: Any, config: Mapping[str, Any], settings: Any, progress: Progress) -> "Inpainting":
        if settings.pictures is not None:
            faces, damaged = load_folder(settings.pictures, parse_device(where.device))
            return cls(faces, faces, damaged=damaged)
        task = cls.load(where, progress)
        if (these := task.identity()["faces"]) != config.get("faces"):
            raise ValueError(
                f"the run was made with other faces ({config.get('faces')}) than these ({these}); give the same --data "
                "and lists, or name a folder to test on by --pictures"
            )
        return task

    @classmethod
    def describe_source(cls, where: FaceSettings) -> str:
        return f"faces in {faces_folder(where.data)}"

    def train_indices(self, settings: InpaintingSearchSettings | InpaintingRetrainSettings) -> Tensor:
        return spread_indices(len(self.train), settings.num_train_images or len(self.train))

    def transform(self, settings: InpaintingSearchSettings | InpaintingRetrainSettings) -> Transform:
        return partial(mask_batches, settings.mask or DEFAULT_MASK)

    def identity(self) -> dict[str, Any]:
        return {"faces": describe_faces(self.train, self.test)}

    @classmethod
    def search_space(cls, searched: Mapping[str, Any]) -> Mapping[str, Variable]:
        return encoding.search_space(searched["encoding"], searched["layers"], widths=searched["widths"])

    @classmethod
    def read_values(cls, text: str, searched: Mapping[str, Any]) -> dict[str, Any]:
        return encoding.read_values(text)

    @classmethod
    def baseline_values(cls, name: str, seed: int, searched: Mapping[str, Any], run: Path | None) -> dict[str, Any]:
        space = cls.search_space(searched)
        if name == "random":
            return encoding.random_values(space, seed)
        if run is None:
            raise ValueError("base has as many layers as what a search found; give the folder of the search, too")
        channels = min(encoding.widths_of(space), key=lambda width: abs(width - 64))
        return encoding.base_values(space, encoding.depth(cls.load_values(run, searched)), channels)

    def build_supernet(self, settings: InpaintingSearchSettings) -> nn.Module:
        return to_device_format(Net(self.search_space(vars(settings)), self.test.size), self.device)

    def search_loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean squared error over whole images, from a mini-batch of originals and their corrupted twins."""
        return F.mse_loss(model(batch[1]), batch[0])

    def smallest_values(self, model: nn.Module) -> Values:
        return encoding.smallest_values(nas.space_of(model))

    def build_network(self, settings: InpaintingRetrainSettings, values: Values) -> nn.Module:
        return to_device_format(new_autoencoder(values, self.test.size), self.device)

    def build_optimizer(self, settings: InpaintingRetrainSettings, model: nn.Module) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        return torch.optim.Adam(model.parameters(), lr=settings.lr, fused=on_gpu, capturable=on_gpu)

    def measure(self, model: nn.Module, settings: Any = None, progress: Progress = no_progress) -> dict[str, Any]:
        faces, masks = masked_faces(self.test, settings.mask or DEFAULT_MASK, NUM_TEST_FACES)
        report = measures.score_restoration(model, faces.images, masks).report()
        return {"test_psnr": report["psnr"], "test_ssim": report["ssim"]}

    def summarize(self, settings: Any, values: Values, model: nn.Module | None = None) -> dict[str, Any]:
        chain = encoding.describe_chain(values, self.test.size).splitlines()
        return {"chain": chain, **super().summarize(settings, values, model)}

    def evaluate(
        self, model: nn.Module, config: Mapping[str, Any], folder: Path, settings: Any, progress: Progress
    ) -> dict[str, Any]:
        faces, masks = masked_faces(self.test, config["mask"] or DEFAULT_MASK)
        scores = measures.score_restoration(model, faces.images, masks, progress=progress)
        grid, shown = picture(model, faces.images, masks, scores)
        name = f"restored{settings.ending}.png"
        with atomic_write(folder / name) as file:
            grid.save(file, "PNG")
        return {**scores.report(faces.names), "picture": name, "shown": shown}

    @classmethod
    def label(cls, settings: InpaintingSearchSettings) -> str:
        return f"{settings.encoding}-{settings.mask}-{settings.method}"

    def describe_data(self, settings: Any = None) -> list[str]:
        n, reasons = len(self.train), list(self._damaged.items())
        used = n if settings is None else min(n, settings.num_train_images or n)
        train = f"{n:,}" if used == n else f"{used:,} of {n:,}"
        split = f"{train} faces to train with, {len(self.test):,} to test with ({self._split})"
        left_out = [f"Left out: {name} ({reason})" for name, reason in reasons[:MAX_SHOWN]]
        more = [f"... and {len(reasons) - MAX_SHOWN} more"] if len(reasons) > MAX_SHOWN else []
        return [*([split] if self._split else []), *left_out, *more]

    def describe_found(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        return ["Found (the other layers are inactive):", *summary["chain"]]

    def describe_trained(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        return [*summary["chain"], f"{summary['parameters']:,} parameters"]

    def describe_test(self, report: Mapping[str, Any], folder: Path) -> list[str]:
        psnr = "infinite" if report["psnr"] is None else f"{report['psnr']:.2f} dB"
        measured = f"PSNR {psnr}, SSIM {report['ssim']:.4f} on {report['images']:,} faces"
        return [measured, f"Picture: {folder / report['picture']}"]


def masked_faces(faces: ImageSet, mask: Mask, max: int | None = None) -> tuple[ImageSet, Tensor]:
    """At most `max` faces, from all over their order, and their masks, which are the same for all runs."""
    chosen = spread_indices(len(faces), max or len(faces))
    return faces.subset(chosen), fixed_masks(mask, len(faces), faces.size, MASK_SEED)[chosen]
