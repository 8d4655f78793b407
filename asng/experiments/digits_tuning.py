"""Learning rate, weight decay and augmentation of digits, chosen by `minimize`: each trial is a short one-shot search.

A trial whose loss falls behind the median of the trials before it ends early. What was found is trained from scratch
and tested beside what the same search finds with the hyperparameters of `asng digits search`. Test images choose
nothing.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypedDict

import torch

from asng import nas
from asng._checks import check_settings
from asng._progress import Progress, no_progress
from asng.experiments import digits
from asng.experiments.digits import UNTUNED, Data, Hyper, Net
from asng.minimize import minimize
from asng.nas._loop import NoFiniteLoss
from asng.nas.architecture import to_dict
from asng.optimizer import ASNG
from asng.runs import ARCHITECTURE, RESULTS, SUMMARY, Run, make_config, write_json
from asng.space import Real, Variable

SPACE: dict[str, Variable] = {
    "lr": Real(1e-3, 1.0, log=True),
    "weight_decay": Real(1e-6, 0.1, log=True),
    "augmentation": Real(0.0, 0.3),
}
DIVERGED = 1e6


@dataclass(frozen=True)
class TuneSettings:
    """Settings of the tuning; some minutes on one core."""

    trials: int = 20
    """Number of short searches, each with its own hyperparameters."""
    epochs: int = 30
    """Passes of each search over half of the training images; the other half scores."""
    startup_trials: int = 5
    """Number of trials before the first may be pruned."""
    min_epochs: int = 5
    """Number of epochs before a trial may be pruned."""
    training_epochs: int = 30
    """Passes over all training images when the found architecture is trained from scratch."""
    batch_size: int = 64
    """Batch size, in images."""
    seed: int = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        check_settings(self, trials=2)


class TrialRecord(TypedDict):
    """A search in results.jsonl."""

    kind: Literal["trial", "untuned"]
    hyper: dict[str, float]
    losses: list[float]  # after each epoch
    loss: float  # of what was found, on all images that judge
    values: dict[str, Any]


class TrainingRecord(TypedDict):
    """A training from scratch in results.jsonl."""

    kind: Literal["train tuned", "train untuned"]
    accuracy: float
    parameters: int


def search(
    settings: TuneSettings, hyper: Hyper, data: Data, is_behind: Callable[[list[float]], bool], kind: str
) -> dict[str, Any]:
    """One trial: a search, ended once it is behind."""
    torch.manual_seed(settings.seed)
    model = Net()
    losses: list[float] = []

    def callback(record: Any) -> bool:
        if isinstance(record, nas.Step):
            return False
        losses.append(_check_finite_loss(record["score"]))
        return is_behind(losses)

    arch_optimizer = ASNG(nas.space_of(model), seed=settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    train, valid = (digits.ShuffledBatches(half, settings.batch_size, generator) for half in (data.train, data.valid))
    optimizers = {"arch_optimizer": arch_optimizer, "weight_optimizer": digits.make_weight_optimizer(hyper, model)}
    options: dict[str, Any] = {"epochs": settings.epochs, "judge": digits.classification_loss, **optimizers}
    loss_fn = partial(digits.classification_loss, augmentation=hyper["augmentation"])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the search was too short|the mean training loss")  # it is a trial
            nas.search(model, train, valid, loss_fn, **options, callback=callback, progress=False, seed=settings.seed)
        values = arch_optimizer.mode()
        loss = nas.score(model, values, [data.valid], digits.classification_loss, recalibrate_on=[data.train])
    except NoFiniteLoss:
        losses.append(DIVERGED)
        values, loss = arch_optimizer.mode(), DIVERGED
    return {"kind": kind, "hyper": hyper, "losses": losses, "loss": _check_finite_loss(loss), "values": values}


def _check_finite_loss(loss: float) -> float:
    """A loss that JSON holds; that of weights that diverged is large."""
    return loss if math.isfinite(loss) else DIVERGED


def train(settings: TuneSettings, trial: dict[str, Any], data: Data, kind: str) -> dict[str, Any]:
    """The architecture of a trial from scratch, with its hyperparameters, on all training images."""
    trained = digits.train(settings, data, trial["values"], hyper=trial["hyper"])
    return {"kind": kind, "accuracy": trained["accuracy"], "parameters": trained["parameters"]}


def run(settings: TuneSettings, folder: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Run the trials and trainings that the folder does not hold yet; returns the summary, and writes it there.

    Each call of `minimize` starts from the first trial and is told the losses of finished ones, so that it continues
    as it was.
    """
    with Run(folder, make_config("digits", "tune", settings)) as run, digits.one_thread():
        done = read_records(folder, settings)
        data, trials = digits.load_split(settings.seed), [record for record in done if record["kind"] == "trial"]
        finished = list(trials)

        def is_behind(losses: list[float]) -> bool:
            n = len(losses)
            others = [each["losses"][n - 1] for each in trials if len(each["losses"]) >= n]
            is_early = n < settings.min_epochs or len(trials) < settings.startup_trials
            return not is_early and bool(others) and losses[-1] > median(others)

        def evaluate(hyper: Hyper) -> float:
            progress(len(trials) / (settings.trials + 3), f"trial {len(trials) + 1} of {settings.trials}")
            if finished:
                record = finished.pop(0)
                if record["hyper"] != hyper:
                    fault = f"a trial of {record['hyper']}, not {hyper}"
                    raise ValueError(f"{run.folder / RESULTS} is damaged ({fault}); delete the folder")
            else:
                record = search(settings, hyper, data, is_behind, "trial")
                run.append(record)
                trials.append(record)
            return float(record["losses"][-1] if len(record["losses"]) < settings.epochs else record["loss"])

        _minimize(evaluate, settings)
        untuned = next((record for record in done if record["kind"] == "untuned"), None)
        if untuned is None:
            untuned = search(settings, UNTUNED, data, lambda losses: False, "untuned")
            run.append(untuned)
        whole = [trial for trial in trials if len(trial["losses"]) == settings.epochs]
        if not whole:
            raise ValueError(
                f"none of the {len(trials)} trials in {run.folder} ran to its end; give more --trials and another --out"
            )
        tuned = min(whole, key=lambda trial: trial["loss"])
        for number, (kind, trial) in enumerate({"train tuned": tuned, "train untuned": untuned}.items(), start=1):
            progress((settings.trials + number) / (settings.trials + 3))
            if kind not in [record["kind"] for record in done]:
                run.append(train(settings, trial, data, kind))
        summary = summarize(run.results(), tuned, settings)
        write_json(run.folder / SUMMARY, summary)
        write_json(run.folder / ARCHITECTURE, to_dict(tuned["values"]))
    return summary


class _Failure(BaseException):
    """Passes through `minimize`, which takes exceptions for failures of one trial."""


def _minimize(evaluate: Callable[[Hyper], float], settings: TuneSettings) -> None:
    def evaluate_or_end(hyper: Hyper) -> float:
        try:
            return evaluate(hyper)
        except Exception as error:  # such as a full disk
            raise _Failure(error) from error

    try:
        result = minimize(evaluate_or_end, SPACE, evaluations=settings.trials, seed=settings.seed, progress=False)
    except _Failure as failure:
        raise failure.args[0] from None
    if result.stopped == "interrupted":  # which ends a tuning, too, instead of choosing among fewer trials
        raise KeyboardInterrupt


def read_records(folder: Path, settings: TuneSettings) -> list[dict[str, Any]]:
    """The finished records; ValueError for any that no run of these settings writes."""

    def find_fault(record: dict[str, Any]) -> str:
        if "accuracy" in record:
            return "" if 0 <= record["accuracy"] <= 1 else f"an accuracy of {record['accuracy']}"
        is_whole = 1 <= len(record["losses"]) <= settings.epochs and set(record["hyper"]) == set(SPACE)
        return "" if is_whole else f"a trial of {len(record['losses'])} epochs and {', '.join(record['hyper'])}"

    kinds = ["trial"] * settings.trials + ["untuned", "train tuned", "train untuned"]
    return digits.check_records(
        folder, kinds, {"trial": TrialRecord, "untuned": TrialRecord}, TrainingRecord, find_fault
    )


def summarize(records: list[dict[str, Any]], tuned: dict[str, Any], settings: TuneSettings) -> dict[str, Any]:
    """The tuned and the untuned search beside each other, and how many trials ended early."""
    by_kind = {record["kind"]: record for record in records}
    rows = {}
    for name, trial in {"tuned": tuned, "untuned": by_kind["untuned"]}.items():
        trained = {key: by_kind[f"train {name}"][key] for key in ("accuracy", "parameters")}
        rows[name] = {"hyper": trial["hyper"], "loss": trial["loss"], "values": trial["values"], **trained}
    trials = [record for record in records if record["kind"] == "trial"]
    epochs = sum(len(trial["losses"]) for trial in trials)
    pruned = sum(len(trial["losses"]) < settings.epochs for trial in trials)
    return {**rows, "trials": len(trials), "pruned": pruned, "epochs": epochs}
