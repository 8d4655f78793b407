"""Noisy losses: does `asng.minimize` make use of more evaluations with a larger population?

    python benchmarks/noisy_population.py --out runs/noisy_population           about ten minutes
    python benchmarks/noisy_population.py --out runs/noisy_population --quick   a smoke run; its numbers mean little
    python benchmarks/noisy_population.py --draw results/noisy_population       the table again

The problems are the noisy ones of black_box.py, spheres of reals from 0 to 1, with noise of standard deviation 0.1, and
100 choices of five, each wrong one of which costs 1, with noise of 2.
A number is the loss of the mode, without noise: its mean over the seeds and the standard error. "small" is the
population that `minimize` chooses for losses without noise, "used" how many evaluations it made with it until it had
converged, in the median. 1/80, 1/40 and 1/20 are populations of that share of the evaluations.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from black_box_problems import PROBLEMS, Problem, Values

import asng
from asng._covariance import default_population_size
from asng._untrusted import read_json

SMALL = "small"
SHARES = (80, 40, 20)
EVALUATIONS = (300, 1000, 3000, 10_000)


def sphere(variables: int) -> Problem:
    space = {f"x{i}": asng.Real(0, 1) for i in range(variables)}
    return Problem(space, lambda values: sum((x - 0.3) ** 2 for x in values.values()), noise=0.1)


def onemax(variables: int) -> Problem:
    space = {f"c{i}": asng.Categorical(range(5)) for i in range(variables)}
    return Problem(space, lambda values: sum(choice != 1 for choice in values.values()), noise=2.0)


def make_problems() -> dict[str, Problem]:
    noisy = {name: make(0, Path()) for name, (make, _) in PROBLEMS.items() if name.endswith("noisy")}
    spheres = {f"sphere of {n}": sphere(n) for n in (2, 5, 20, 150)}
    return {**spheres, "onemax of 100": onemax(100), **noisy}


def one_run(problem: Problem, evaluations: int, population_size: int, seed: int) -> tuple[float, int]:
    """The loss of the mode, without noise, and how many evaluations were made."""
    rng = np.random.default_rng(10_000 + seed)

    def loss(values: Values) -> float:
        return problem.loss(values) + problem.noise * float(rng.normal())

    settings: dict[str, Any] = {"evaluations": evaluations, "population_size": population_size, "seed": seed}
    result = asng.minimize(loss, problem.space, noisy=True, progress=False, **settings)
    return problem.loss(result.mode), result.evaluations


def compare(name: str, problem: Problem, evaluations: int, seeds: range) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": name, "evaluations": evaluations}
    for share in (None, *SHARES):
        size = max(2, evaluations // share) if share else default_population_size(problem.space, evaluations)
        losses, used = zip(*(one_run(problem, evaluations, size, seed) for seed in seeds), strict=True)
        error = statistics.stdev(losses) / math.sqrt(len(losses))
        row[f"1/{share}" if share else SMALL] = [statistics.fmean(losses), error, statistics.median(used)]
    return row


def show(result: dict[str, Any]) -> str:
    columns = [f"1/{share}" for share in SHARES]
    lines = [f"| problem | evaluations | used | {SMALL} | {' | '.join(columns)} |", "|---" * (4 + len(columns)) + "|"]
    for row in result["rows"]:
        cells = [f"{row[name][0]:.2g} ± {float(f'{row[name][1]:.1g}'):g}" for name in (SMALL, *columns)]
        start = [row["problem"], f"{row['evaluations']:,}", f"{row[SMALL][2]:,.0f}"]
        lines.append(f"| {' | '.join([*start, *cells])} |")
    return "\n".join([*lines, "", count_differences(result["rows"])])


def count_differences(rows: list[dict[str, Any]]) -> str:
    """In how many settings of 1,000 evaluations or more each share is clearly better and worse than the small one."""
    long = [row for row in rows if row["evaluations"] >= 1000]
    texts = []
    for name in (f"1/{share}" for share in SHARES):
        gains = [row[SMALL][0] - row[name][0] for row in long]
        errors = [math.hypot(row[SMALL][1], row[name][1]) for row in long]
        better, worse = (
            sum(sign * gain > 2 * error for gain, error in zip(gains, errors, strict=True)) for sign in (1, -1)
        )
        texts.append(f"{name} is better than {SMALL} in {better} of {len(long)} and worse in {worse}")
    return f"By more than two standard errors, from 1,000 evaluations on, {', '.join(texts)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/noisy_population"), help="noisy_population.json's folder"
    )
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="only draw the table of this folder")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="1000 to try settings, apart from what is reported")
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    given = parser.parse_args()
    if given.draw:
        print(show(read_json(given.draw / "noisy_population.json", "run the benchmark again", dict[str, Any])))
        return
    seeds = range(given.first_seed, given.first_seed + (2 if given.quick else given.seeds))
    budgets = (40,) if given.quick else EVALUATIONS
    rows = [compare(name, problem, n, seeds) for name, problem in make_problems().items() for n in budgets]
    result = {"quick": given.quick, "seeds": list(seeds), "rows": rows}
    print(show(result))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "noisy_population.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
