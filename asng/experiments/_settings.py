"""Settings that image experiments share: devices, precision, learning rates, and how long a run is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from asng import SNG, RandomSearch
from asng._asktell import Optimizer
from asng._checks import check_settings
from asng.optimizer import ASNG
from asng.space import Variable

AmpDtype = Literal["off", "bfloat16", "float16"]
Method = Literal["asng", "sng", "uniform"]
AMP_DTYPES: dict[AmpDtype, torch.dtype | None] = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
METHODS: dict[Method, Callable[..., Optimizer]] = {"asng": ASNG, "sng": SNG, "uniform": RandomSearch}
STEP_SIZES: dict[Method, str] = {"asng": "delta_init", "sng": "delta"}  # arguments of the optimizers


@dataclass(frozen=True, kw_only=True)
class JobSettings(ABC):
    """Settings of all searches and trainings on images."""

    unit: ClassVar[str]

    batch_size: int = 64
    """Batch size, in images."""
    lr: float = 0.025
    """Initial learning rate of the weights (cosine schedule)."""
    amp_dtype: AmpDtype = "off"
    """dtype of mixed precision; off computes in float32."""
    seed: int = 0
    """Seed of all random numbers."""
    test: bool = True
    """Skip the test after each epoch (its time is not counted); a training is still tested at the end."""

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Epochs, or checkpoints."""

    def steps_per_epoch(self, batches: int) -> int:
        """Steps in an epoch; `batches` is the number of mini-batches in a pass over the images."""
        return batches

    def fraction_done(self, index: int, steps_per_epoch: int) -> float:
        """The fraction of the run before step `index`, as the learning rate follows it."""
        return index / (self.epochs * steps_per_epoch)

    def lr_at(self, fraction: float) -> float:
        """The learning rate after a fraction of the run."""
        return self.lr * (1 + math.cos(math.pi * fraction)) / 2


@dataclass(frozen=True, kw_only=True)
class EpochSettings(JobSettings):
    """Settings of a run in epochs, each a pass over the images; the learning rate changes after an epoch."""

    unit: ClassVar[str] = "epoch"

    epochs: int = 100
    """Passes over the training images."""

    def fraction_done(self, index: int, steps_per_epoch: int) -> float:
        return index // steps_per_epoch / self.epochs


@dataclass(frozen=True, kw_only=True)
class IterationSettings(JobSettings):
    """Settings of a run in iterations; the learning rate changes after each."""

    unit: ClassVar[str] = "checkpoint"

    iterations: int = 50_000
    """Steps of the run."""
    checkpoint_every: int = 1000
    """Iterations between two checkpoints and lines of metrics."""
    num_train_images: int | None = None
    """Maximum number of training images, evenly spaced over all; by default all."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.iterations % self.checkpoint_every:
            every = self.checkpoint_every
            raise ValueError(f"iterations must be a multiple of checkpoint_every, {every}, got {self.iterations}")

    @property
    def epochs(self) -> int:
        return self.iterations // self.checkpoint_every

    def steps_per_epoch(self, batches: int) -> int:
        return self.checkpoint_every


@dataclass(frozen=True, kw_only=True)
class SearchSettings(JobSettings):
    """Settings of all searches."""

    population_size: int = 2
    """Architectures per half of an iteration (lambda)."""
    method: Method = "asng"
    """Update of the distribution: asng; sng, with a constant step size; uniform, none (random search)."""
    delta: float | None = None
    """Step size: asng starts with it (by default 1), sng keeps it (by default 1/n_theta)."""
    num_random: int = 1000
    """With the method uniform: number of architectures drawn at the end, to take the best of them."""
    max_params: int | None = None
    """Maximum number of parameters of an architecture at the size of the search; by default no limit."""

    def build_optimizer(self, space: Mapping[str, Variable], seed: np.random.SeedSequence) -> Optimizer:
        """The optimizer of the architecture, by `method`."""
        if self.delta is not None and self.method not in STEP_SIZES:
            raise ValueError(f"the method {self.method} has no step size, got delta={self.delta}; leave it out")
        step_size = {} if self.delta is None else {STEP_SIZES[self.method]: self.delta}
        return METHODS[self.method](space, population_size=self.population_size, seed=seed, **step_size)


def parse_device(name: str) -> torch.device:
    """A device by its name; "auto" is the GPU where there is one."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if name.startswith("cuda") and not gpus:
        raise ValueError(f"device {name!r} was asked for, but torch {torch.__version__} sees no GPU; give cpu or auto")
    if name not in ("cpu", "cuda", *gpus):  # torch knows more, of which some, as meta, compute nothing
        raise ValueError(f"there is no device {name!r}; give {', '.join(['cpu', *gpus])} or auto")
    return torch.device(name)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all groups; one that is a tensor, which a CUDA graph may read, is filled."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def describe_machine(device: torch.device) -> str:
    """The device and the version of torch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
