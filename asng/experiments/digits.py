"""A search that takes a minute or two: scikit-learn's handwritten digits, 8x8 pixels, on the CPU.

The architecture is searched with shared weights, trained again from scratch and tested, beside
random architectures of the same space and a handcrafted network, all trained in the same way.
"""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import nas
from asng._checks import check_settings
from asng._progress import Progress, no_progress, part_of
from asng._untrusted import mismatch
from asng.nas._loader_job import LoaderJob
from asng.nas._loop import Checkpoint, run_job
from asng.nas._schedules import Schedules
from asng.nas.architecture import VERSION, from_dict, to_dict
from asng.optimizer import ASNG
from asng.runs import ARCHITECTURE, RESULTS, SUMMARY, Run, make_config, write_json

BLOCKS = 3  # in each of the two stages
HANDCRAFTED = {
    "width": 24,
    **{f"depth{stage}": 2 for stage in (1, 2)},
    **{f"op{stage}{block}": "conv3" for stage in (1, 2) for block in range(BLOCKS)},
    **{f"act{stage}{block}": "relu" for stage in (1, 2) for block in range(BLOCKS)},
}


@dataclass(frozen=True)
class DigitsSettings:
    """Settings of the default job; a minute or two on one core."""

    epochs: int = 180
    """Of the search, over half of the training images; the other half judges architectures."""
    training_epochs: int = 30
    """Of training an architecture from scratch, over all training images."""
    batch: int = 64
    """Images in a mini-batch."""
    lr: float = 0.05
    """Learning rate of the weights at the start of its cosine, in search and training."""
    seed: int = 0
    """The first seed; all random numbers follow from it."""
    seeds: int = 1
    """How many searches, with seeds that follow the first."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def num_random(self) -> int:
        """Random architectures to train: as many as take the gradients of the search, of two architectures a step."""
        return max(1, round(self.epochs / self.training_epochs))  # an epoch of the search is over half of the images


class Block(nn.Module):
    """An operation and an activation, each among several, at one width."""

    def __init__(self, name: str, width: nas.Width) -> None:
        super().__init__()
        depthwise = nas.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.op = nas.OneOf(
            f"op{name}",
            {
                "identity": nn.Identity(),
                "average": nn.AvgPool2d(3, 1, 1),
                "max": nn.MaxPool2d(3, 1, 1),
                "conv1": nas.Conv2d(width, width, 1, bias=False),
                "conv3": nas.Conv2d(width, width, 3, padding=1, bias=False),
                "separable": nn.Sequential(depthwise, nas.Conv2d(width, width, 1, bias=False)),
            },
        )
        self.norm = nas.BatchNorm2d(width)
        self.act = nas.OneOf(f"act{name}", {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.norm(self.op(x)))
        return result


class Net(nn.Module):
    """Two stages of up to three blocks at one width between 4 and 32 channels; 15 decisions."""

    def __init__(self) -> None:
        super().__init__()
        width = nas.Width("width", 4, 32)
        self.stem = nas.Conv2d(1, width, 3, padding=1)
        self.stages = nn.Sequential(
            nas.Repeat("depth1", [Block(f"1{block}", width) for block in range(BLOCKS)], low=1),
            nn.MaxPool2d(2),
            nas.Repeat("depth2", [Block(f"2{block}", width) for block in range(BLOCKS)], low=1),
        )
        self.head = nas.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.stages(self.stem(images)).mean((2, 3)))
        return result


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


class Batches:
    """Shuffled mini-batches; the rest that does not fill one is left out."""

    def __init__(self, data: tuple[Tensor, Tensor], size: int, generator: torch.Generator) -> None:
        self._data, self._size, self.generator = data, size, generator

    def __len__(self) -> int:
        return len(self._data[1]) // self._size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._data[1]), generator=self.generator)
        for chosen in torch.split(order[: len(self) * self._size], self._size):
            yield self._data[0][chosen], self._data[1][chosen]


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of a mini-batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def search(
    settings: DigitsSettings,
    seed: int,
    data: Data,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """The architecture that ASNG finds, its probability and the seconds it took."""
    torch.manual_seed(seed)
    model = Net()
    arch_optimizer = ASNG(nas.space_of(model), seed=seed)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=3e-4)
    schedules = Schedules(weight_optimizer, settings.epochs)
    oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, classification_loss, max_grad_norm=5.0)
    generator = torch.Generator().manual_seed(seed)
    train, valid = (Batches(half, settings.batch, generator) for half in (data.train, data.valid))
    with closing(LoaderJob(oneshot, schedules, train, valid, seed)) as job:
        history = run_job(job, epochs=settings.epochs, checkpoint=checkpoint, progress=progress)
    architecture = nas.result(oneshot)
    seconds = sum(record["seconds"] for record in history)
    return {"values": architecture.values, "probability": architecture.probability, "seconds": seconds}


def train(settings: DigitsSettings, seed: int, data: Data, values: dict[str, Any]) -> dict[str, Any]:
    """An architecture trained from scratch on all training images: test accuracy and parameters."""
    torch.manual_seed(seed)
    model = nas.extract(Net(), values)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=3e-4)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.training_epochs)
    generator = torch.Generator().manual_seed(seed)
    both = torch.cat([data.train[0], data.valid[0]]), torch.cat([data.train[1], data.valid[1]])
    shuffled = Batches(both, settings.batch, generator)
    for _ in range(settings.training_epochs):
        for batch in shuffled:
            optimizer.zero_grad()
            classification_loss(model, batch).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        lr_scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(data.test[0]).argmax(1) == data.test[1]).double().mean().item()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"values": values, "accuracy": accuracy, "parameters": parameters}


class SearchRecord(TypedDict):
    """A search in results.jsonl."""

    seed: int
    kind: Literal["search"]
    values: dict[str, Any]
    probability: float
    seconds: float


class TrainRecord(TypedDict):
    """A training in results.jsonl."""

    seed: int
    kind: Literal["found", "handcrafted", "random"]
    values: dict[str, Any]
    accuracy: float
    parameters: int


def run(settings: DigitsSettings, folder: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Run every seed that the folder does not hold yet; returns the summary, and writes it there.

    Called again after an interruption, or with more seeds, it continues.
    """
    config = make_config("digits", "search", settings)
    del config["seeds"]
    last = settings.seed + settings.seeds
    with Run(folder, config) as run:
        _read_records(run, settings)  # before anything that takes long
        with _one_thread():
            for number, seed in enumerate(range(settings.seed, last)):
                _one_seed(settings, seed, run, part_of(progress, number / settings.seeds, 1 / settings.seeds))
        summary = summarize([record for record in _read_records(run, settings) if record["seed"] < last])
        write_json(run.folder / SUMMARY, summary)
        write_json(run.folder / ARCHITECTURE, to_dict(summary["rows"][-1]["values"]))
    return summary


def _read_records(run: Run, settings: DigitsSettings) -> list[dict[str, Any]]:
    """The finished records; ValueError for any that no run of these settings writes."""
    records, space = run.results(), nas.space_of(Net())
    kinds: dict[int, list[str]] = {}
    expected = ["search", "found", "handcrafted", *["random"] * settings.num_random]
    for record in records:
        fault = mismatch(record, SearchRecord if record.get("kind") == "search" else TrainRecord)
        if not fault:
            so_far = kinds.setdefault(record["seed"], [])
            so_far.append(record["kind"])
            if so_far != expected[: len(so_far)]:
                fault = f"seed {record['seed']} has {', '.join(so_far)}"
            elif not 0 <= record["probability" if record["kind"] == "search" else "accuracy"] <= 1:
                fault = f"{record} is no share"
        try:
            from_dict({"version": VERSION, "values": record.get("values")}, space)
        except ValueError as error:
            fault = fault or str(error)
        if fault:
            raise ValueError(f"{run.folder / RESULTS} is damaged ({fault}); delete the folder")
    return records


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: so small networks gain little from more, and their rounding depends on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_seed(settings: DigitsSettings, seed: int, run: Run, progress: Progress) -> None:
    """Search; then train the result, the handcrafted network and random ones, all that the run has no record of."""
    data = load_split(seed)
    done = [record for record in _read_records(run, settings) if record["seed"] == seed]
    if not done:
        checkpoint = Checkpoint(run.folder / f"checkpoint-seed{seed}.pt", {**run.config, "seed": seed})
        result = search(settings, seed, data, part_of(progress, 0.0, 0.4), checkpoint)
        done.append({"seed": seed, "kind": "search", **result})
        run.append(done[0])
        checkpoint.remove()
    draws = ASNG(nas.space_of(Net()), seed=np.random.SeedSequence([seed, 2]))
    random = [("random", draws.ask(1)[0].values) for _ in range(settings.num_random)]
    trainings = [("found", done[0]["values"]), ("handcrafted", HANDCRAFTED), *random]
    for number, (kind, values) in enumerate(trainings, start=1):
        progress(0.4 + 0.6 * (number - 1) / len(trainings))
        if number >= len(done):
            run.append({"seed": seed, "kind": kind, **train(settings, seed, data, values)})


def summarize(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Per seed the accuracies beside each other, and their means with standard errors."""
    rows = []
    for seed in sorted({record["seed"] for record in records}):
        of_seed = [record for record in records if record["seed"] == seed]
        by_kind = {record["kind"]: record for record in of_seed}
        random = [_short(record) for record in of_seed if record["kind"] == "random"]
        row = {name: by_kind["search"][name] for name in ("seed", "values", "probability", "seconds")}
        row |= {kind: _short(by_kind[kind]) for kind in ("found", "handcrafted")}
        row["random_mean"] = {name: float(np.mean([record[name] for record in random])) for name in random[0]}
        row["random_best"] = max(random, key=lambda record: record["accuracy"])
        rows.append({**row, "random_count": len(random)})
    kinds = ("found", "random_mean", "random_best", "handcrafted")
    means = {kind: _mean_and_error([row[kind]["accuracy"] for row in rows]) for kind in kinds}
    return {"rows": rows, "accuracy": means}


def _short(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("accuracy", "parameters")}


def _mean_and_error(numbers: list[float]) -> dict[str, float | None]:
    error = float(np.std(numbers, ddof=1) / math.sqrt(len(numbers))) if len(numbers) > 1 else None
    return {"mean": float(np.mean(numbers)), "standard_error": error}
