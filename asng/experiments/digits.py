"""A search that takes a minute or two: scikit-learn's handwritten digits, 8x8 pixels, on the CPU.

The architecture is searched with shared weights, trained again from scratch and tested. Beside it are the best of as
many random architectures as take the gradients of the search, each trained alone and chosen by its accuracy on the
images that judge in the search, too; one random architecture; and a handcrafted one. Test images choose nothing.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas, runs
from asng._checks import check_settings
from asng._progress import Progress, no_progress, part_of
from asng._untrusted import mismatch, read_json_lines
from asng.experiments._digits_net import HANDCRAFTED as HANDCRAFTED
from asng.experiments._digits_net import Net as Net
from asng.nas._checkpoints import Checkpoint
from asng.nas._loader_job import LoaderJob, Schedules
from asng.nas._loop import run_job
from asng.nas._saving import decision_tree
from asng.nas.architecture import VERSION, from_dict, to_dict
from asng.optimizer import ASNG
from asng.runs import Run

KINDS = ("found", "random_best", "random_first", "handcrafted")  # that are tested
TOP_K = 20  # likely architectures that the second stage compares


@dataclass(frozen=True)
class DigitsSettings:
    """Settings of the default job; a minute or two on one core."""

    epochs: int = 180
    """Passes of the search over half of the training images; the other half scores architectures."""
    warmup: float = 2 / 3
    """Share of these epochs, at the start, that only train the weights, of random architectures."""
    training_epochs: int = 30
    """Passes over all training images when an architecture is trained from scratch."""
    batch_size: int = 64
    """Batch size, in images."""
    lr: float = 0.05
    """Initial learning rate of the weights (cosine schedule), in search and training."""
    seed: int = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be a share of the epochs, from 0 to below 1, got {self.warmup}")

    @property
    def warmup_epochs(self) -> int:
        """Epochs before the distribution moves; at least one is left for that."""
        return min(round(self.warmup * self.epochs), self.epochs - 1)

    @property
    def num_random(self) -> int:
        """Random architectures to train: as many as take the gradients of the search, of two architectures a step."""
        return max(1, round(2 * self.epochs / self.training_epochs))  # both are over half of the training images


Hyper = dict[str, float]
UNTUNED: Hyper = {"lr": DigitsSettings.lr, "weight_decay": 3e-4, "augmentation": 0.0}


@dataclass(frozen=True)
class Data:
    """Images (n, 1, 8, 8) in [0, 1] and labels, split by a seed: half of the training set judges."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load_split(seed: int) -> Data:
    """1,797 digits: 600 each to train and to judge in the search, 597 to test."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(labels)))
    parts = [(images[part], labels[part]) for part in torch.split(order, [600, 600, 597])]
    return Data(*parts)


class ShuffledBatches:
    """Shuffled mini-batches; the rest that does not fill one is left out."""

    def __init__(self, data: tuple[Tensor, Tensor], size: int, generator: torch.Generator) -> None:
        self._data, self._size = data, size
        self.generator: torch.Generator = generator

    def __len__(self) -> int:
        return len(self._data[1]) // self._size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._data[1]), generator=self.generator)
        for chosen in torch.split(order[: len(self) * self._size], self._size):
            yield self._data[0][chosen], self._data[1][chosen]


def random_affine(images: Tensor, strength: float) -> Tensor:
    """Images under random affine maps, whose entries differ from the identity's by normal numbers of that strength."""
    if not strength:
        return images
    maps = torch.eye(2, 3) + strength * torch.randn(len(images), 2, 3)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor], augmentation: float = 0.0) -> Tensor:
    """Cross entropy of a mini-batch."""
    return F.cross_entropy(model(random_affine(batch[0], augmentation)), batch[1])


def search(
    settings: DigitsSettings,
    data: Data,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """The architecture that ASNG and a second stage find, its probability, the most likely one, and the seconds."""
    oneshot, job = make_search(settings, data, callback)
    with closing(job):
        history = run_job(job, epochs=settings.epochs, checkpoint=checkpoint, progress=progress)
    start = time.perf_counter()
    best = second_stage(oneshot, data)
    (likely,) = nas.top(oneshot)
    seconds = sum(record["seconds"] for record in history) + time.perf_counter() - start
    found = {"values": best.values, "probability": best.probability, "most_likely": likely.values}
    return {**found, "certainty": likely.certainty, "seconds": seconds}


def second_stage(oneshot: nas.OneShot, data: Data) -> nas.Architecture:
    """Of the likely architectures, the one with the lowest loss on all validation images, with the shared weights."""
    settings: dict[str, Any] = {"k": TOP_K, "recalibrate_on": [data.train], "progress": False}
    return nas.rerank(oneshot, [data.valid], classification_loss, **settings)[0]


def make_search(
    settings: DigitsSettings, data: Data, callback: Callable[[Any], Any] | None = None
) -> tuple[nas.OneShot, LoaderJob]:
    """A search before its first step, and the job that runs it."""
    torch.manual_seed(settings.seed)
    model = Net()
    arch_optimizer = ASNG(nas.space_of(model), seed=settings.seed)
    weight_optimizer = make_weight_optimizer({**UNTUNED, "lr": settings.lr}, model)
    schedules = Schedules(weight_optimizer, settings.epochs)
    oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, classification_loss, max_grad_norm=5.0)
    generator = torch.Generator().manual_seed(settings.seed)
    train, valid = (ShuffledBatches(half, settings.batch_size, generator) for half in (data.train, data.valid))
    return oneshot, LoaderJob(oneshot, schedules, train, valid, settings.seed, callback, settings.warmup_epochs)


def make_weight_optimizer(hyper: Hyper, model: nn.Module) -> torch.optim.Optimizer:
    """The same in search and training."""
    return torch.optim.SGD(model.parameters(), lr=hyper["lr"], momentum=0.9, weight_decay=hyper["weight_decay"])


def train(
    settings: Any, data: Data, values: dict[str, Any], *, hold_out: bool = False, hyper: Hyper | None = None
) -> dict[str, Any]:
    """An architecture trained from scratch: accuracies, parameters and seconds.

    It is trained on all training images or, if `hold_out`, on the half that trains in the search; then the other half
    gives its `valid_accuracy`, which is None otherwise. `accuracy` is that on the test images. Of the settings,
    `training_epochs`, `batch_size` and `seed` are used, and `lr` where no hyperparameters are given.
    """
    start = time.perf_counter()
    model = train_network(settings, data, values, hold_out=hold_out, hyper=hyper)
    return {
        "values": values,
        "valid_accuracy": accuracy_of(model, data.valid) if hold_out else None,
        "accuracy": accuracy_of(model, data.test),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - start,
    }


def train_network(
    settings: Any, data: Data, values: dict[str, Any], *, hold_out: bool = False, hyper: Hyper | None = None
) -> nn.Module:
    """The network of `train`."""
    hyper = hyper or {**UNTUNED, "lr": settings.lr}
    torch.manual_seed(settings.seed)
    model = nas.extract(Net(), values)
    optimizer = make_weight_optimizer(hyper, model)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.training_epochs)
    generator = torch.Generator().manual_seed(settings.seed)
    both = torch.cat([data.train[0], data.valid[0]]), torch.cat([data.train[1], data.valid[1]])
    shuffled = ShuffledBatches(data.train if hold_out else both, settings.batch_size, generator)
    for _ in range(settings.training_epochs):
        for batch in shuffled:
            optimizer.zero_grad()
            classification_loss(model, batch, hyper["augmentation"]).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        lr_scheduler.step()
    return model


def accuracy_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """The share of images that a network classifies rightly, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).double().mean())


def draw_random(settings: DigitsSettings) -> list[dict[str, Any]]:
    """The random architectures, from the distribution with which a search begins."""
    draws = ASNG(nas.space_of(Net()), seed=np.random.SeedSequence([settings.seed, 2]))
    return [draws.ask(1)[0].values for _ in range(settings.num_random)]


class SearchRecord(TypedDict):
    """A search in results.jsonl."""

    seed: int
    kind: Literal["search"]
    values: dict[str, Any]
    probability: float
    most_likely: dict[str, Any]
    certainty: float
    seconds: float


class TrainRecord(TypedDict):
    """A training in results.jsonl: with half of the images held out if the kind is random, else without."""

    seed: int
    kind: Literal["found", "handcrafted", "random", "random_first", "random_best"]
    values: dict[str, Any]
    valid_accuracy: float | None
    accuracy: float
    parameters: int
    seconds: float


def run(
    settings: DigitsSettings,
    folder: Path,
    progress: Progress = no_progress,
    *,
    flags: Mapping[str, Any] | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Run what the folder does not hold yet; returns the summary, and writes it there.

    Called again after an interruption, it continues. `flags` are kept by the run, as what it was started with;
    `callback` is that of `nas.search`.
    """
    with Run(folder, runs.make_config("digits", "search", settings), flags=flags) as run, one_thread():
        seed, done = settings.seed, read_records(folder, settings)
        data, random = load_split(seed), draw_random(settings)
        if not done:
            checkpoint = Checkpoint(folder / runs.CHECKPOINT, run.config, runs.MetricsFile(run))
            result = search(settings, data, part_of(progress, 0.0, 0.5), checkpoint, callback)
            done.append({"seed": seed, "kind": "search", **result})
            run.append(done[0])
            checkpoint.remove()
        trainings = [("found", done[0]["values"]), ("handcrafted", HANDCRAFTED)]
        trainings += [("random", values) for values in random]
        trainings += [("random_first", random[0]), ("random_best", None)]
        for number, (kind, values) in enumerate(trainings, start=1):
            progress(0.5 + 0.5 * (number - 1) / len(trainings))
            if number >= len(done):
                chosen = values or best_random(done)["values"]
                record = train(settings, data, chosen, hold_out=kind == "random")
                done.append({"seed": seed, "kind": kind, **record})
                run.append(done[-1])
        summary = summarize(settings, done)
        runs.write_json(run.folder / runs.SUMMARY, summary)
        runs.write_json(run.folder / runs.ARCHITECTURE, to_dict(summary["rows"][-1]["values"]))
    return summary


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The records of the run in a folder; ValueError for damaged ones."""
    return read_records(folder, runs.settings_from_config(DigitsSettings, runs.read_config(folder, "digits"), folder))


def read_records(folder: Path, settings: DigitsSettings) -> list[dict[str, Any]]:
    """The finished records; ValueError for any that no run of these settings writes."""

    def find_fault(record: dict[str, Any]) -> str:
        shares = [record[name] for name in ("probability", "valid_accuracy", "accuracy") if name in record]
        if record["seed"] != settings.seed:
            return f"seed {record['seed']}, not {settings.seed}"
        if (None in shares) == (record["kind"] in ("search", "random")):
            return f"{record} has {'no' if None in shares else 'a'} valid_accuracy"
        return "" if all(share is None or 0 <= share <= 1 for share in shares) else f"{record} is no share"

    kinds = ["search", "found", "handcrafted", *["random"] * settings.num_random, "random_first", "random_best"]
    return check_records(folder, kinds, {"search": SearchRecord}, TrainRecord, find_fault)


def check_records(
    folder: Path, kinds: Sequence[str], shapes: Mapping[str, type], shape: type, find_fault: Callable[[Any], str]
) -> list[dict[str, Any]]:
    """The records in a folder: the first of these kinds, each of its shape, and with architectures of the space."""
    path, space = folder / runs.RESULTS, nas.space_of(Net())
    records = read_json_lines(path, "delete the folder") if path.exists() else []
    for record, kind in zip(records, [*kinds, *["nothing"] * len(records)], strict=False):
        fault = mismatch(record, shapes.get(kind, shape))
        if not fault:
            fault = find_fault(record) if record["kind"] == kind else f"{record['kind']}, where {kind} belongs"
        try:
            for name in [each for each in ("values", "most_likely") if each in record]:
                from_dict({"version": VERSION, "values": record[name]}, space)
        except ValueError as error:
            fault = fault or str(error)
        if fault:
            raise ValueError(f"{path} is damaged ({fault}); delete the folder")
    return records


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: so small networks gain little from more, and their rounding depends on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_random(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The random architecture with the highest accuracy on the images held out, the first of several."""
    random = [record for record in records if record["kind"] == "random"]
    return max(random, key=lambda record: record["valid_accuracy"])


def summarize(settings: DigitsSettings, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per seed the test accuracies beside each other, and their means with standard errors.

    Beside them is what each costs to choose: `gradients`, of mini-batches, and mean `seconds`.
    """
    rows = []
    for seed in sorted({record["seed"] for record in records}):
        of_seed = [record for record in records if record["seed"] == seed]
        by_kind = {record["kind"]: record for record in of_seed}
        row = {name: by_kind["search"][name] for name in ("seed", "values", "probability", "certainty", "seconds")}
        row |= {kind: {name: by_kind[kind][name] for name in ("accuracy", "parameters")} for kind in KINDS}
        row["random_seconds"] = sum(record["seconds"] for record in of_seed if record["kind"] == "random")
        rows.append(row)
    accuracy = {kind: _mean_and_error([row[kind]["accuracy"] for row in rows]) for kind in KINDS}
    differences = [row["found"]["accuracy"] - row["random_best"]["accuracy"] for row in rows]
    steps = len(ShuffledBatches(load_split(0).train, settings.batch_size, torch.Generator()))
    epochs = {"found": 2 * settings.epochs, "random_best": settings.num_random * settings.training_epochs}
    seconds = {"found": "seconds", "random_best": "random_seconds"}
    return {
        "rows": rows,
        "tree": decision_tree(Net()),
        "random_count": settings.num_random,
        "accuracy": accuracy,
        "found_minus_random_best": _mean_and_error(differences),
        "gradients": {kind: count * steps for kind, count in epochs.items()},
        "seconds": {kind: float(np.mean([row[name] for row in rows])) for kind, name in seconds.items()},
    }


def sampling_error(accuracy: Mapping[str, Mapping[str, Any]]) -> tuple[int, float, float]:
    """The number of test images, and the standard errors that it leaves to such accuracies and to their differences."""
    images = len(load_split(0).test[1])
    mean = float(np.mean([each["mean"] for each in accuracy.values()]))
    error = math.sqrt(mean * (1 - mean) / images)
    return images, error, math.sqrt(2) * error


def _mean_and_error(numbers: list[float]) -> dict[str, float | None]:
    error = float(np.std(numbers, ddof=1) / math.sqrt(len(numbers))) if len(numbers) > 1 else None
    return {"mean": float(np.mean(numbers)), "standard_error": error}
