"""The paper's toy problem (asng/experiments/toy.py) with the population adapted instead of delta (section 2.4).

    python benchmarks/adapted_population.py --runs 20 --out runs/adapted_population

Every iteration draws lambda architectures for the weights and lambda for the distribution. What is compared are draws,
each one a forward pass: a run has 4 x --iterations of them, over which the learning rate of the weights falls by a
cosine, and succeeds when it draws the target. ASNG with delta adapted and lambda = 2 is the toy problem's own.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from asng import ASNG, Categorical

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=40_000, help="of the paper's lambda = 2, four draws each")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.05, 0.0005])
    parser.add_argument("--out", type=Path, default=Path("runs/adapted_population"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for lr in options.lrs:
        for method, settings in METHODS.items():
            runs = [simulate(settings, lr, 4 * options.iterations, seed) for seed in range(options.runs)]
            rows.append({"lr": lr, "method": method, "runs": runs})
            (options.out / "adapted_population.json").write_text(json.dumps(rows, indent=1) + "\n")
            print(show(rows).splitlines()[-1], flush=True)
    print(f"\n{show(rows)}")


if __name__ == "__main__":
    main()
