"""Runs of the image experiments: a folder for each search and each training from scratch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from asng._progress import Progress, no_progress
from asng.experiments import _figures
from asng.experiments._jobs import Callback, SearchJob, TrainJob
from asng.experiments._settings import JobSettings, SearchSettings, describe_machine
from asng.experiments._task import EvaluateSettings, Task
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import Job, run_job
from asng.nas.architecture import from_dict, to_dict
from asng.runs import ARCHITECTURE, CHECKPOINT, METRICS, SUMMARY, Run, make_config, settings_from_config, write_json


def search(
    task: Task,
    settings: SearchSettings,
    folder: Path,
    progress: Progress = no_progress,
    *,
    capture: bool = False,
    flags: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
) -> dict[str, Any]:
    """Search, or continue; leaves the architecture, its pictures and a summary in the folder.

    `capture` runs each step as one CUDA graph where the images are on a GPU. `flags` are kept by the run, as what it
    was started with; `callback` is called with the record of each epoch.
    """
    job = SearchJob(task, settings, capture=capture, callback=callback)
    with _open_run(job, folder, make_config(task.name, "search", settings, **task.identity()), flags) as run:
        records = _run_job(job, run, settings, progress)
        found = job.result(progress)
        write_json(folder / ARCHITECTURE, to_dict(found["values"]))
        task.draw(found["values"], folder, found["distribution"])
        return _write_summary(run, records, {**found, **task.summarize(settings, found["values"])}, job)


def retrain(
    task: Task,
    settings: JobSettings,
    values: Mapping[str, Any],
    folder: Path,
    progress: Progress = no_progress,
    *,
    flags: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
) -> dict[str, Any]:
    """Train an architecture from scratch, or continue; leaves the weights and a summary in the folder."""
    job = TrainJob(task, settings, values, callback=callback)
    config = make_config(task.name, "retrain", settings, architecture=to_dict(values), **task.identity())
    with _open_run(job, folder, config, flags) as run:
        write_json(folder / ARCHITECTURE, to_dict(values))
        task.draw(values, folder)
        records = _run_job(job, run, settings, progress)
        return _write_summary(run, records, task.summarize(settings, values, job.model), job)


def _open_run(
    job: SearchJob | TrainJob, folder: Path, config: Mapping[str, Any], flags: Mapping[str, Any] | None
) -> Run:
    _ = job.steps_per_epoch  # makes the mini-batches, so that a refusal leaves no folder behind
    return Run(folder, config, METRICS, flags)


def _run_job(job: Job, run: Run, settings: JobSettings, progress: Progress) -> list[dict[str, Any]]:
    checkpoint = Checkpoint(run.folder / CHECKPOINT, run.config, run)
    return run_job(job, epochs=settings.epochs, checkpoint=checkpoint, progress=progress, unit=settings.unit)


def _write_summary(run: Run, records: list[dict[str, Any]], summary: dict[str, Any], job: Job) -> dict[str, Any]:
    summary = {**summary, "machine": describe_machine(job.device), "last": records[-1]}
    write_json(run.folder / SUMMARY, summary)
    _figures.draw_curves(records, run.folder)
    return summary


def evaluate(
    task: Task,
    folder: Path,
    config: Mapping[str, Any],
    progress: Progress = no_progress,
    settings: EvaluateSettings | None = None,
) -> dict[str, Any]:
    """Test what a run has trained so far, a network from scratch or the architecture found; leaves evaluation.json."""
    settings = settings or task.evaluate_settings()
    trained = load_trained(task, folder, config)
    tested = task.evaluate(trained.network, config, folder, settings, progress)
    report = {"kind": config["kind"], "steps": trained.steps, **tested}
    write_json(folder / f"evaluation{settings.ending}.json", report)
    return report


class Trained(NamedTuple):
    """The network that a run has trained or found so far, and its number of steps."""

    network: nn.Module
    values: Mapping[str, Any]
    steps: int


def read_settings(task: type[Task] | Task, folder: Path, config: Mapping[str, Any]) -> Any:
    """The settings of a run, of either kind."""
    kinds, kind = {"search": task.search_settings, "retrain": task.train_settings}, config.get("kind")
    if kind not in kinds:
        both = " or ".join(f"asng {task.name} {each}" for each in kinds)
        raise ValueError(f"{folder} holds a run of {kind!r}; give one of {both}, which trains what others found")
    return settings_from_config(kinds[kind], config, folder)


def load_trained(task: Task, folder: Path, config: Mapping[str, Any]) -> Trained:
    """The network of a run so far; that of a search has its own batch statistics."""
    checkpoint, settings = Checkpoint(folder / CHECKPOINT, config), read_settings(task, folder, config)
    if config["kind"] == "search":
        search_job, steps = checkpoint.restore(lambda: SearchJob(task, settings))
        found = search_job.load_result(folder)
        return Trained(search_job.network(found), found, steps)
    values = from_dict(config.get("architecture"))
    train_job, steps = checkpoint.restore(lambda: TrainJob(task, settings, values))
    return Trained(train_job.model, values, steps)
