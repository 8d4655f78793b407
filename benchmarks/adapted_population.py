"""The paper's toy problem (asng/experiments/toy.py) with the population adapted instead of delta (section 2.4).

    python benchmarks/adapted_population.py --runs 20 --out runs/adapted_population
    python benchmarks/adapted_population.py --draw results/adapted_population    the table again, of what is finished

Every iteration draws lambda architectures for the weights and lambda for the distribution. What is compared are draws,
each one a forward pass: a run has 4 x --iterations of them, over which the learning rate of the weights falls by a
cosine, and succeeds when it draws the target. ASNG with delta adapted and lambda = 2 is the toy problem's own.

Finished rows are appended to OUT/results.jsonl; after Ctrl-C the same command continues.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from asng import ASNG, Categorical
from asng._untrusted import read_json_lines
from asng.runs import RESULTS, Run, read_config

VARIABLES, CHOICES, MOMENTUM = 30, 5, 0.9
METHODS: dict[str, dict[str, Any]] = {
    "delta adapted, lambda = 2": {"population_size": 2},
    "delta adapted, lambda = 8": {"population_size": 8},
    "delta adapted, lambda = 32": {"population_size": 32},
    "lambda adapted, delta = 1": {"adapt": "population_size"},
    "lambda adapted, delta = 0.1": {"adapt": "population_size", "delta_init": 0.1},
    "lambda adapted, delta = 0.01": {"adapt": "population_size", "delta_init": 0.01},
    # An adapted population that may not grow: nothing is adapted.
    "delta = 1, lambda = 2": {"adapt": "population_size", "delta_max": 1.0},
    "delta = 0.1, lambda = 2": {"adapt": "population_size", "delta_max": 1.0, "delta_init": 0.1},
}


@np.errstate(over="ignore", invalid="ignore")  # weights that diverge fail, quietly
def simulate(settings: dict[str, Any], lr: float, draws: int, seed: int) -> dict[str, Any]:
    """One run: draws and iterations until the target was drawn, or None, and the largest population."""
    generator = np.random.default_rng([seed, 1])
    optimizer = ASNG({f"c{i}": Categorical(range(CHOICES)) for i in range(VARIABLES)}, seed=seed, **settings)
    x, row = generator.standard_normal((VARIABLES, CHOICES)), np.arange(VARIABLES)
    velocity = np.zeros_like(x)
    used, iterations, largest = 0, 0, 0
    while used < draws:
        n = optimizer.population_size
        largest, used, iterations = max(largest, n), used + 2 * n, iterations + 1
        candidates = optimizer.ask(2 * n)
        c = np.array([candidate.x for candidate in candidates]).astype(np.intp)
        z = generator.standard_normal((2, VARIABLES)) / CHOICES
        values = np.square(x[row, c[:n]]).sum(-1) + c[:n].sum(-1) / CHOICES
        gradient = np.zeros_like(x)
        np.add.at(gradient, (np.tile(row, (n, 1)), c[:n]), 2 / n * (x[row, c[:n]] - z[0]))
        velocity = MOMENTUM * velocity + gradient
        x -= lr * (1 + math.cos(math.pi * min(used / draws, 1))) / 2 * velocity
        after = np.square(x[row, c[n:]]).sum(-1) + c[n:].sum(-1) / CHOICES
        optimizer.tell(candidates[n:], after - 2 * x[row, c[n:]] @ z[1])  # f less |z|^2, which all share
        if min(np.nanmin(values), np.nanmin(after)) < 1 / CHOICES:
            return {"draws": used, "iterations": iterations, "largest": largest}
    return {"draws": None, "iterations": iterations, "largest": largest}


def show(rows: list[dict[str, Any]]) -> str:
    """A table: successes, medians over successful runs, and the paper's measure, median draws / success rate."""
    lines = ["| learning rate | method | successes | draws | draws / success rate | iterations | largest lambda |"]
    lines.append("|---" * 7 + "|")
    for row in rows:
        done = [run for run in row["runs"] if run["draws"] is not None]
        cells = ["", "", "", f"{np.median([run['largest'] for run in row['runs']]):,.0f}"]
        if done:
            draws = float(np.median([run["draws"] for run in done]))
            iterations = np.median([run["iterations"] for run in done])
            cells[:3] = f"{draws:,.0f}", f"{draws * len(row['runs']) / len(done):,.0f}", f"{iterations:,.0f}"
        lines.append(f"| {row['lr']:g} | {row['method']} | {len(done)} of {len(row['runs'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(out: Path, runs: int, iterations: int, lrs: Sequence[float]) -> None:
    """Add the rows that the folder lacks."""
    config = {"benchmark": "adapted population", "runs": runs, "iterations": iterations}
    with Run(out, config) as kept:
        done = {(row["lr"], row["method"]) for row in kept.results()}
        for lr, method in product(lrs, METHODS):
            if (lr, method) not in done:
                found = [simulate(METHODS[method], lr, 4 * iterations, seed) for seed in range(runs)]
                kept.append({"lr": lr, "method": method, "runs": found})
                print(f"{lr:g}, {method}: done", file=sys.stderr, flush=True)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The finished rows; ValueError for a folder without any."""
    read_config(folder, needs=RESULTS)
    return read_json_lines(folder / RESULTS, "run it again in another folder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=40_000, help="of the paper's lambda = 2, four draws each")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.05, 0.0005])
    parser.add_argument("--out", type=Path, default=Path("runs/adapted_population"))
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="only draw the table of this folder")
    given = parser.parse_args()
    try:
        if given.draw is None:
            run(given.out, given.runs, given.iterations, given.lrs)
        print(show(read_rows(given.draw or given.out)))
    except ValueError as error:
        sys.exit(f"adapted_population: {error}")


if __name__ == "__main__":
    main()
