"""Searches killed at random moments and inside of their writes, and continued: all end with the same bits.

    python -m tests.fuzz.crash --seconds 120

Prints counts; exits with 1 if a search was lost, or ended with other numbers than an uninterrupted one.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch

import asng
from asng import _json_checkpoint
from asng._untrusted import read_json, read_json_lines
from asng.experiments import digits, toy
from asng.experiments._image_runs import retrain, search
from asng.experiments._images import ImageSet
from asng.experiments.inpainting.task import Inpainting, InpaintingRetrainSettings, InpaintingSearchSettings
from asng.runs import ARCHITECTURE, RESULTS
from tests.fuzz.fuzz import loss
from tests.fuzz.mutations import SPACE
from tests.helpers.processes import PRELOADED, context, ready, start
from tests.helpers.searches import same, small_search

CALLS = ("fsync", "link", "replace", "unlink")  # of os, that a save makes
RESULT = "result.pt"
MAX_STARTS = 500  # of one search


def die_at_call(n: int, after: bool) -> None:
    """Let this process be killed at the nth of its calls on files from now on, before or after it is done."""
    count = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == n and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **named)
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))


def search_network(folder: Path) -> Any:
    return small_search(folder / "checkpoint.pt")


def search_box(folder: Path) -> Any:
    _json_checkpoint.MIN_INTERVAL, _json_checkpoint.MAX_SHARE = 0.0, 1e9  # a save after every evaluation
    checkpoint = folder / "checkpoint.json"
    result = asng.minimize(loss, SPACE, evaluations=60, seed=0, checkpoint=checkpoint, noisy=True, progress=False)
    return [json.dumps(result.optimizer.state_dict()), [evaluation.loss for evaluation in result.history]]


def search_digits(folder: Path) -> Any:
    digits.run(digits.DigitsSettings(epochs=4, training_epochs=2), folder / "run")
    return _read_run(folder / "run")


def search_and_retrain_faces(folder: Path) -> Any:
    random.seed(0)  # of Python, whose state a checkpoint keeps
    pixels = torch.randint(256, (17, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    names = tuple(str(number) for number in range(len(pixels)))
    task = Inpainting(ImageSet(pixels[:12], names=names[:12]), ImageSet(pixels[12:], names=names[12:]))
    sizes: dict[str, Any] = {"iterations": 8, "checkpoint_every": 2, "batch_size": 2, "mask": "center"}
    search(task, InpaintingSearchSettings(**sizes, layers=3, widths=(2, 4)), folder / "run")
    values = read_json(folder / "run" / ARCHITECTURE, "")["values"]
    retrain(task, InpaintingRetrainSettings(**sizes), values, folder / "retrain")
    return {name: _read_run(folder / name) for name in ("run", "retrain")}


def sweep(folder: Path) -> Any:
    settings = toy.ToySettings(
        runs=3, iterations=300, lrs=(0.05,), powers=(0.0, 0.5, 1.0, 1.5), alphas=(1.5,), workers=1
    )
    with patch.object(toy, "run_parallel", lambda function, some, workers: ((each, function(each)) for each in some)):
        toy.run(settings, folder / "run")  # without worker processes
    read = _read_run(folder / "run")
    return {**read, RESULTS: sorted(read[RESULTS], key=str)}  # which are finished in any order


ENVIRONMENT = "environment.jsonl"  # a line for each start
TIMES = ("seconds", "images_per_second", "random_seconds")


def _read_run(folder: Path) -> Any:
    """What has to be equal of a run: its files of JSON without times, and its weights."""
    read: dict[str, Any] = {path.name: read_json(path, "") for path in folder.glob("*.json")}
    read |= {path.name: read_json_lines(path, "") for path in folder.glob("*.jsonl") if path.name != ENVIRONMENT}
    for path in folder.glob("checkpoint.pt"):
        read[path.name] = torch.load(path, weights_only=True)
    for name in ("toy.png", "curves.png"):
        read[f"has {name}"] = (folder / name).exists()
    return _without_times(read)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(each) for name, each in value.items() if name not in TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


JOBS: dict[str, Callable[[Path], Any]] = {
    "nas.search": search_network,
    "minimize": search_box,
    "digits search": search_digits,
    "inpainting search and retrain": search_and_retrain_faces,
    "toy sweep": sweep,
}


def run_job(job: str, folder: str, die: tuple[int, bool] | None) -> None:
    """In a process of its own: run or continue a job, and leave its result."""
    path = Path(folder)
    if die is not None:
        die_at_call(*die)
    (path / "started").touch()
    result = JOBS[job](path)
    torch.save(result, path / "result.new")
    os.rename(path / "result.new", path / RESULT)


def crash(job: str, expected: Any, seconds: float, rng: Random, counts: Counter[str]) -> None:
    """One search, which takes some seconds if it is left alone, killed until it ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        longest = max(0.05, seconds / 10)
        for _ in range(MAX_STARTS):
            inside = rng.random() < 0.5
            process = start(run_job, job, name, (rng.randint(1, 30), rng.random() < 0.5) if inside else None)
            ready(process, folder)
            if not inside:
                process.join(rng.uniform(0, longest))
                longest *= 1.1  # whatever the machine, it ends
                process.kill()
            process.join()
            if process.exitcode == -signal.SIGKILL:
                counts["kills inside writes" if inside else "kills at random moments"] += 1
            elif process.exitcode != 0:
                counts["lost"] += 1
                return
            if (folder / RESULT).exists():
                break
        counts["searches"] += 1
        if not same(torch.load(folder / RESULT, weights_only=True), expected):
            counts["other numbers"] += 1
        left = {path.name for path in folder.rglob("*")} - {"result.new", RESULT}
        if any(name.startswith(".") and not name.endswith("lock") for name in left):
            counts["leftovers"] += 1  # files of killed processes that the next one should have removed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long, shared by all jobs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", choices=JOBS, help="this one alone")
    given = parser.parse_args()
    wrong, jobs = 0, [given.job] if given.job else list(JOBS)
    context.set_forkserver_preload([*PRELOADED, "asng.experiments.digits", "asng.experiments.inpainting.task"])
    for job in jobs:
        counts: Counter[str] = Counter()
        rng = Random(f"{given.seed} {job}")
        with tempfile.TemporaryDirectory() as name:
            process = start(run_job, job, name, None)
            ready(process, Path(name))
            begin = time.monotonic()
            process.join()
            seconds = time.monotonic() - begin
            expected = torch.load(Path(name, RESULT), weights_only=True)
        end = time.monotonic() + given.seconds / len(jobs)
        while time.monotonic() < end:
            crash(job, expected, seconds, rng, counts)
        wrong += counts["lost"] + counts["other numbers"] + counts["leftovers"]
        names = ("searches", "kills at random moments", "kills inside writes", "lost", "other numbers", "leftovers")
        print(f"{job}: " + ", ".join(f"{counts[name]:,} {name}" for name in names), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
