"""A short search: does a larger initial step size help, or a larger population? Problems that take seconds.

    python benchmarks/short_searches.py --data DIR --out runs/short_searches   five minutes; DIR holds nasbench201/
    python benchmarks/short_searches.py --out runs/short_searches --quick      a smoke run; its numbers mean little
    python benchmarks/short_searches.py --draw results/short_searches          the table again

Searches that are compared have equal numbers of draws, so that those of 8 candidates have a quarter of the updates.
What counts is the likeliest choice of each variable at the end: means over the runs, with standard errors.

noise s        the 40 choices of the paper's cells (140 free parameters): each wrong one costs 1, and normal noise of
               standard deviation s is added; the share of wrong choices
nothing        the same without any cost, noise alone; the mean largest probability, which says nothing here
weights lr     the paper's toy problem, 30 choices and the weights of each, which begin at random, with learning rate
               lr; as many draws again are for the weights; the share of wrong choices
nasbench s     NAS-Bench-201, 6 choices (24 free parameters): mean validation accuracy and noise of s points; the regret
               of the mean test accuracy in points. A step size of 10 is 4.9 there, the largest that ASNG takes
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from asng import CategoricalFamily
from asng._untrusted import read_json
from asng.optimizer import asng_init, asng_update

Array = np.ndarray[Any, Any]
Losses = Callable[[Array, Array, float, np.random.Generator], Array]
SETTINGS = {  # candidates per update, and delta_init
    "delta_init 0.1": (2, 0.1),
    "defaults": (2, 1.0),
    "delta_init 10": (2, 10.0),
    "4 candidates": (4, 1.0),
    "8 candidates": (8, 1.0),
}
CELLS = [m for _ in range(2) for node in range(5) for m in (2 + node, 2 + node, 5, 5)]  # inputs and operations
MOMENTUM = 0.9  # of the toy problem


def search(
    counts: list[int], losses: Losses, draws: int, population_size: int, delta_init: float, seed: int, runs: int
) -> tuple[Array, Array]:
    """The modes (runs, variables) of searches side by side, and their mean largest probabilities (runs,)."""
    family, rng = CategoricalFamily(counts), np.random.default_rng(seed)
    state = asng_init(family, np.tile(family.initial(), (runs, 1)), delta_init)
    steps = draws // population_size
    for step in range(steps):
        c, of_weights = (family.sample(state.theta, population_size, rng) for _ in range(2))
        scores = losses(c.astype(int), of_weights.astype(int), step / steps, rng)
        state = asng_update(family, state, c, scores, 1.5, delta_init, math.inf)
    starts = np.cumsum([0, *counts[:-1]])
    return family.mode(state.theta).astype(int), np.maximum.reduceat(state.theta, starts, -1).mean(-1)


# Problems: the last choice of each variable is the right one, as the first is the mode of a uniform distribution ----


def share_wrong(counts: list[int], chosen: Array) -> Array:
    return np.asarray((chosen != np.array(counts) - 1).mean(-1))


def noisy_choices(cost: float, noise: float) -> Losses:
    right = np.array(CELLS) - 1
    return lambda c, of_weights, done, rng: cost * (c != right).sum(-1) + noise * rng.standard_normal(c.shape[:2])


def toy_losses(lr: float, runs: int, seed: int, variables: int = 30, choices: int = 5) -> Losses:
    """Section 3.1 of the paper, of which choice 0 is the worst here; the learning rate falls by a cosine."""
    x = np.random.default_rng([seed, 1]).standard_normal((runs, variables * choices))
    velocity = np.zeros_like(x)
    first = np.arange(runs * variables).reshape(runs, 1, variables) * choices  # entry of each variable

    def losses(c: Array, of_weights: Array, done: float, rng: np.random.Generator) -> Array:
        z = rng.standard_normal((2, runs, 1, variables)) / choices
        gradient, entries = np.zeros_like(x), of_weights + first
        np.add.at(gradient.reshape(-1), entries, 2 / c.shape[1] * (x.take(entries) - z[0]))
        velocity[:] = MOMENTUM * velocity + gradient
        x[:] -= lr * (1 + math.cos(math.pi * done)) / 2 * velocity
        return np.asarray(((x.take(c + first) - z[1]) ** 2 + (choices - 1 - c) / choices).sum(-1))

    return losses


def nasbench_losses(valid: Array, noise: float) -> Losses:
    return lambda c, of_weights, done, rng: (
        noise * rng.standard_normal(c.shape[:2]) - valid[tuple(np.moveaxis(c, -1, 0))]
    )


# The table --------------------------------------------------------------------------------------------


def compare(name: str, draws: int, runs: int, seed: int, table: Any) -> dict[str, Any]:
    """A row: means and standard errors of all settings."""
    kind, _, number = name.partition(" ")
    counts = {"weights": [5] * 30, "nasbench": [5] * 6}.get(kind, CELLS)
    row: dict[str, Any] = {"problem": name, "draws": draws}
    for setting, (population_size, delta_init) in SETTINGS.items():
        if kind == "weights":
            losses = toy_losses(float(number), runs, seed)
        elif kind == "nasbench":
            losses = nasbench_losses(table.valid_mean, float(number))
        else:
            losses = noisy_choices(0.0 if kind == "nothing" else 1.0, float(number or 1))
        modes, largest = search(counts, losses, draws, population_size, delta_init, seed, runs)
        values = share_wrong(counts, modes)
        if kind == "nothing":
            values = largest
        elif kind == "nasbench":
            values = table.test.max() - table.test[tuple(modes.T)]
        row[setting] = [float(values.mean()), float(values.std(ddof=1) / math.sqrt(runs))]
    return row


def show(result: dict[str, Any]) -> str:
    lines = [f"| problem | draws | {' | '.join(SETTINGS)} |", "|---" * (2 + len(SETTINGS)) + "|"]
    for row in result["rows"]:
        cells = ["{:.3f} ± {:.3f}".format(*row[setting]) for setting in SETTINGS]
        lines.append(f"| {row['problem']} | {row['draws']:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", count_differences(result["rows"])])


def count_differences(rows: list[dict[str, Any]]) -> str:
    """How often each setting is clearly better and worse than the defaults."""
    judged, texts = [row for row in rows if row["problem"] != "nothing"], []
    for setting in SETTINGS:
        gains = [row["defaults"][0] - row[setting][0] for row in judged]
        errors = [math.hypot(row["defaults"][1], row[setting][1]) for row in judged]
        pairs = list(zip(gains, errors, strict=True))
        better, worse = (sum(sign * gain > 2 * error for gain, error in pairs) for sign in (1, -1))
        if setting != "defaults":
            texts.append(f"{setting} is better in {better} and worse in {worse}")
    return f"By more than two standard errors, of {len(judged)} rows with a right answer: {', '.join(texts)}."


def tasks(quick: bool, with_table: bool) -> list[tuple[str, int]]:
    """Problems and draws; 280 are one step of two for each free parameter of the cells."""
    if quick:
        return [("noise 3", 40), ("nothing", 40), ("weights 0.05", 40)]
    found = [(f"noise {noise}", draws) for noise in (0, 3, 10) for draws in (280, 2_800, 19_600)]
    found += [("nothing", draws) for draws in (2_800, 19_600)]
    found += [(f"weights {lr}", draws) for lr in (0.05, 0.005, 0.0005) for draws in (2_000, 6_000, 20_000)]
    nasbench = [(f"nasbench {noise}", draws) for noise in (0, 3, 10) for draws in (128, 512, 2_048)]
    return found + (nasbench if with_table else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/short_searches"), help="folder for short_searches.json")
    parser.add_argument(
        "--data", type=Path, help="the folder with nasbench201/cifar10.npz; without it, no NAS-Bench-201"
    )
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="only draw the table of this folder")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    given = parser.parse_args()
    if given.draw:
        print(show(read_json(given.draw / "short_searches.json", "run the benchmark again", dict[str, Any])))
        return
    table = None
    if given.data is not None:
        from nasbench201 import find_data, load_table

        table = load_table(find_data(given.data))
    runs = 4 if given.quick else given.runs
    rows = [compare(name, n, runs, given.seed, table) for name, n in tasks(given.quick, table is not None)]
    result = {"quick": given.quick, "runs": runs, "seed": given.seed, "rows": rows}
    print(show(result))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "short_searches.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
