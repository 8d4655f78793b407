"""An image experiment: all that searches, trainings, tests and commands need to know of it.

The flags of a command are the fields of the settings here, and its help is their docstring.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from asng import RandomSearch, nas
from asng._progress import Progress, no_progress
from asng._untrusted import read_text
from asng.experiments._images import ImageSet, Transform, data_folder
from asng.experiments._settings import JobSettings, SearchSettings
from asng.nas._candidates import to_outcome
from asng.nas.architecture import from_json
from asng.runs import ARCHITECTURE, nearest_path, read_config
from asng.space import Variable

Values = Mapping[str, Any]
Kernels = Literal["fused", "torch"]  # of a GPU


@dataclass(frozen=True)
class DataSettings:
    """The folder of the images and the device."""

    data: Path | None = None
    """Folder of the data; by default that of the environment variable ASNG_DATA, or else the user's cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto is the GPU where there is one."""


@dataclass(frozen=True)
class EvaluateSettings:
    """Test what a run has trained, from scratch or in a search; leaves evaluation.json."""

    @property
    def ending(self) -> str:
        """Of the names of the files that a test leaves."""
        return ""


class Task(ABC):
    """An image experiment: its data, networks, losses and tests.

    Args:
        train: Images to train with; trainings and searches alone need them.
        test: Images to test with.
    """

    name: ClassVar[str]
    noun: ClassVar[str] = "images"
    image_size: ClassVar[tuple[int, int]] = (32, 32)
    inputs: ClassVar[str] = "Images (n, 3, 32, 32)."  # of the networks, in words
    loading: ClassVar[str] = "reading images"  # title of the progress bar
    search_settings: ClassVar[type[SearchSettings]]
    train_settings: ClassVar[type[JobSettings]]
    evaluate_settings: ClassVar[type[EvaluateSettings]] = EvaluateSettings
    data_settings: ClassVar[type[DataSettings]] = DataSettings
    small_search: ClassVar[SearchSettings]  # for two cores
    small_train: ClassVar[JobSettings]
    inherited: ClassVar[tuple[str, ...]] = ()  # settings of trainings, by default those of the search
    baselines: ClassVar[tuple[str, ...]] = ("random",)  # architectures to train, besides those of searches and files
    weight_decay: ClassVar[float] = 3e-4
    is_capturable: bool = True  # whether a step of its search can be one CUDA graph
    calibration_batches: ClassVar[int] = 0  # from which batch statistics of a network that was found are re-estimated

    def __init__(self, train: ImageSet, test: ImageSet) -> None:
        self.train: ImageSet = train
        self.test: ImageSet = test
        self.device: torch.device = test.device

    # Data.

    @classmethod
    @abstractmethod
    def load(cls, where: Any, progress: Progress = no_progress) -> Self:
        """The task, on the data that the settings name."""

    @classmethod
    def without_images(cls) -> Self:
        """The task without data, on the CPU, for uses that need networks alone."""
        none = ImageSet(torch.zeros(0, 3, *cls.image_size, dtype=torch.uint8))
        return cls(none, none)

    @classmethod
    def load_for_test(cls, where: Any, config: Mapping[str, Any], settings: Any, progress: Progress) -> Self:
        """The task, on the data that a run is tested with."""
        return cls.load(where, progress)

    @classmethod
    def load_for_estimate(cls, where: Any, progress: Progress) -> Self:
        """The task, to time some steps with; nothing is downloaded."""
        return cls.load(where, progress)

    @classmethod
    def describe_source(cls, where: Any) -> str:
        """Where the data is, or what would be downloaded."""
        return f"{cls.noun} in {data_folder(where.data)}"

    def train_indices(self, settings: Any) -> Tensor:
        """Indices of the training images that are used; all by default."""
        return torch.arange(len(self.train))

    @abstractmethod
    def transform(self, settings: Any) -> Transform:
        """The function that makes mini-batches of images."""

    def identity(self) -> dict[str, Any]:
        """Entries about the data in the configuration of a run."""
        return {}

    # Architectures. `searched` are the settings of a search.

    @classmethod
    @abstractmethod
    def search_space(cls, searched: Mapping[str, Any]) -> Mapping[str, Variable]:
        """The variables of an architecture."""

    @classmethod
    def read_values(cls, text: str, searched: Mapping[str, Any]) -> dict[str, Any]:
        """An architecture from JSON."""
        return from_json(text, cls.search_space(searched))

    @classmethod
    def load_values(cls, path: Path, searched: Mapping[str, Any]) -> dict[str, Any]:
        """An architecture from a file, or from the folder of a run."""
        if path.is_dir():
            read_config(path, cls.name, needs=ARCHITECTURE)
            path /= ARCHITECTURE
        if not path.is_file():
            cure = nearest_path(path) or f"; give one as {ARCHITECTURE}, or the word random"
            raise ValueError(f"there is no file {path}{cure}")
        try:
            return cls.read_values(read_text(path, f"give one as {ARCHITECTURE}"), searched)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def baseline_values(cls, name: str, seed: int, searched: Mapping[str, Any], run: Path | None) -> dict[str, Any]:
        """The architecture of a baseline, beside a search if its folder is given."""
        return RandomSearch(cls.search_space(searched), seed=seed).ask(1)[0].values

    # Searches.

    @abstractmethod
    def build_supernet(self, settings: Any) -> nn.Module:
        """The network with decisions, on the device."""

    @abstractmethod
    def search_loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Any:
        """Of a mini-batch: a scalar, or a pair of one and metrics."""

    def size_of(self, settings: Any) -> Callable[[nn.Module, Values], int]:
        """A function that counts the parameters of an architecture."""
        return nas.parameters

    def smallest_values(self, model: nn.Module) -> Values | None:
        """The architecture with the fewest parameters, if it is known."""
        return None

    # Trainings.

    @abstractmethod
    def build_network(self, settings: Any, values: Values) -> nn.Module:
        """The static network of an architecture, with its initial weights, on the device."""

    def build_optimizer(self, settings: Any, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a static network."""
        fused = self.device.type == "cuda"
        return torch.optim.SGD(
            model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=self.weight_decay, fused=fused
        )

    def train_loss(self, settings: Any, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Of a mini-batch; by default that of searches."""
        return to_outcome(self.search_loss(model, batch)).loss

    def set_phase(self, settings: Any, model: nn.Module, fraction: float) -> None:  # noqa: B027
        """Change buffers of the network after a fraction of the training."""

    # Results.

    @abstractmethod
    def measure(self, model: nn.Module, settings: Any = None, progress: Progress = no_progress) -> dict[str, Any]:
        """Test a network after an epoch, or without settings at the end; names begin with `test_`."""

    def evaluate(
        self, model: nn.Module, config: Mapping[str, Any], folder: Path, settings: Any, progress: Progress
    ) -> dict[str, Any]:
        """Test the network of a run on all test images; may leave pictures in its folder."""
        return self.measure(model, progress=progress)

    def summarize(self, settings: Any, values: Values, model: nn.Module | None = None) -> dict[str, Any]:
        """Fields of a summary about an architecture, and the network that was trained from scratch."""
        return {} if model is None else {"parameters": sum(parameter.numel() for parameter in model.parameters())}

    def record_of(self, values: Values) -> dict[str, Any]:
        """Fields of a search's records about its most likely architecture."""
        return {}

    def draw(self, values: Values, folder: Path, distribution: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """Leave pictures of an architecture in a folder."""

    # In words, a line each.

    @classmethod
    def label(cls, settings: Any) -> str:
        """The part of a search's folder name that says what is searched."""
        return str(settings.method)

    def describe_data(self, settings: Any = None) -> list[str]:
        """Lines to print about the images that are used."""
        return []

    def describe_training(self, settings: Any, values: Values) -> list[str]:
        """Lines to print before an architecture is trained: what is known of it beforehand."""
        return []

    def describe_found(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        """The architecture that a search found."""
        return ["Found: " + ", ".join(f"{name}={value}" for name, value in summary["values"].items())]

    def describe_trained(self, summary: Mapping[str, Any], folder: Path) -> list[str]:
        """The result of a training from scratch."""
        return [f"{summary['parameters']:,} parameters", *self.describe_test(summary["last"], folder)]

    def describe_test(self, report: Mapping[str, Any], folder: Path) -> list[str]:
        """The result of a test."""
        measures = {name: number for name, number in report.items() if name.startswith("test_")}
        return [f"{name.replace('_', ' ').capitalize()} {number:.4g}" for name, number in measures.items()]
