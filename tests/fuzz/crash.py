"""Searches killed at random moments and inside of their writes, and continued: all end with the same bits.

    python -m tests.fuzz.crash --seconds 120

Prints counts; exits with 1 if a search was lost, or ended with other numbers than an uninterrupted one.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

import asng
from asng import _json_checkpoint
from tests.fuzz.fuzz import SPACE, loss
from tests.helpers.processes import start
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


JOBS: dict[str, Callable[[Path], Any]] = {"nas.search": search_network, "minimize": search_box}


def run_job(job: str, folder: str, die: tuple[int, bool] | None) -> None:
    """In a process of its own: run or continue a job, and leave its result."""
    path = Path(folder)
    if die is not None:
        die_at_call(*die)
    (path / "started").touch()
    result = JOBS[job](path)
    torch.save(result, path / "result.new")
    os.rename(path / "result.new", path / RESULT)


def crash(job: str, expected: Any, rng: Random, counts: Counter[str]) -> None:
    """One search, killed until it ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        longest = 0.05
        for _ in range(MAX_STARTS):
            inside = rng.random() < 0.5
            (folder / "started").unlink(missing_ok=True)
            process = start(run_job, job, name, (rng.randint(1, 30), rng.random() < 0.5) if inside else None)
            while process.is_alive() and not (folder / "started").exists():
                time.sleep(0.002)
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
        left = {path.name for path in folder.iterdir()} - {"started", "result.new", RESULT}
        if any(name.startswith(".") and not name.endswith("lock") for name in left):
            counts["leftovers"] += 1  # files of killed processes that the next one should have removed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long, shared by all jobs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    for job in JOBS:
        counts: Counter[str] = Counter()
        rng = Random(f"{given.seed} {job}")
        with tempfile.TemporaryDirectory() as name:
            process = start(run_job, job, name, None)
            process.join()
            expected = torch.load(Path(name, RESULT), weights_only=True)
        end = time.monotonic() + given.seconds / len(JOBS)
        while time.monotonic() < end:
            crash(job, expected, rng, counts)
        wrong += counts["lost"] + counts["other numbers"] + counts["leftovers"]
        names = ("searches", "kills at random moments", "kills inside writes", "lost", "other numbers", "leftovers")
        print(f"{job}: " + ", ".join(f"{counts[name]:,} {name}" for name in names), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
