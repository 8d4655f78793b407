"""The examples: how they are run, and what each of them promises to print."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import asng
from tests.helpers.tasks import LONG

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
FINDS = {
    "poisson": "best: {'place': 'station', 'papers': 18} with a profit of 27.0",
    "ask_tell": "most likely: {'activation': 'gelu', 'layers': 5, 'lr': 0.00",
}


def run(command, folder, **environment):
    """What a command prints; it ends well."""
    paths = {"PYTHONPATH": str(Path(asng.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        cwd=folder,
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("search: epoch ")] == []  # progress
    return done.stdout


def number(pattern, text):
    """The number that a pattern finds in a text."""
    match = re.search(pattern + r" ([\d.]+\d)", text)
    assert match, text
    return float(match[1])


def check_better_than_random(text):
    assert number("accuracy: found", text) > 0.85
    assert number("accuracy: found", text) > number("mean of .* random architectures", text) + 0.05


def check_better_than_random_and_linear(text):
    r2 = number("test R2: found", text)
    assert r2 > 0.85
    assert r2 > number("mean of 5 random", text)
    assert r2 > number("linear regression", text) + 0.1


def check_limits(text):
    assert "feasible: True" in text
    found, largest, limits = (
        [float(cost) for cost in re.search(rf"^{name}: ([\d.]+) ms, (\d+) parameters", text, re.M).groups()]  # type: ignore[union-attr]
        for name in ("found", "largest", "limits")
    )
    assert found[1] <= limits[1] < largest[1]
    assert found[0] <= 2 * limits[0]  # measured again, on a machine that may be busy with something else by now
    assert number("accuracy:", text) > 0.9


def check_fit(text):
    assert "with the same distribution: True" in text
    assert number("mean squared error:", text) < 0.1 * number("of the mean", text)


def check_fit_after_a_checkpoint(text):
    assert "1000 steps" in text
    assert number("mean squared error:", text) < 0.1 * number("of the mean", text)


def check_front_of_many_sizes(text):
    points = [(float(score), int(cost)) for score, cost in re.findall(r"^([\d.]+) +(\d+) ", text, re.M)]
    assert len(points) >= 8
    assert all(worse[0] > better[0] and worse[1] < better[1] for worse, better in pairwise(points))
    best, largest = points[-1]
    assert any(score < best + 0.05 and 2 * cost <= largest for score, cost in points)
    accuracies = [float(accuracy) for accuracy in re.findall(r"test accuracy ([\d.]+)", text)]
    assert accuracies[1] > max(0.9, accuracies[0])


def check_smaller_and_as_good(text):
    found, trained = (number(f"{name}: accuracy:", text) for name in ("found", "trained"))
    assert found > 0.85
    assert found > trained - 0.05
    sizes = [int(n) for n in re.findall(r"with (\d+) parameters", text)]
    assert 3 * sizes[1] <= sizes[0]


def check_hyperparameters(text):
    searched, fixed = (
        [float(n) for n in re.findall(rf"^{name}, accuracy: ([\d.]+)", text, re.M)]
        for name in ("searched", "fixed at 0")
    )
    assert len(searched) == len(fixed) == 2  # seeds
    assert min(searched) > 0.93


def check_tuning(text):
    pruned = re.match(r"(\d+) of 25 trials were pruned", text)
    assert pruned is not None
    assert 3 < int(pruned[1]) < 25
    assert number("'accuracy':", text) > 0.93


CLAIMS = {
    "tuning": check_tuning,
    "lightning": check_fit_after_a_checkpoint,
    "pareto": check_front_of_many_sizes,
    "hyperparameters": check_hyperparameters,
    "resnet": check_smaller_and_as_good,
    "hugging_face": check_better_than_random,
    "training_loop": check_better_than_random,
    "tabular": check_better_than_random_and_linear,
    "transformer": check_better_than_random,
    "latency": check_limits,
    "two_processes": check_fit,
}
