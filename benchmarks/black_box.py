"""asng.minimize beside other libraries on black boxes: equal evaluations, many seeds, medians and quartiles.

    python benchmarks/black_box.py --out DIR                         all problems and methods
    python benchmarks/black_box.py --problems onemax --methods asng random --seeds 5
    python benchmarks/black_box.py --data DIR                        with NAS-Bench-201, as nasbench201.py reads it
    python benchmarks/black_box.py --draw DIR --figure docs/black_box.png     the tables and figure again
    python benchmarks/black_box.py --draw DIR --against asng         on which problems others are better or worse

    asng            asng.minimize, all defaults
    random          uniform draws
    CatCMAwM        of cmaes, all defaults
    TPE, GP         Optuna's TPESampler and GPSampler, all defaults
    asng in Optuna  asng's ASNGSampler, all defaults; "asng in Optuna, n_trials", told the evaluations, if asked for
    1+1, NGOpt      nevergrad's DiscreteOnePlusOne and NGOpt
    GA              pymoo's MixedVariableGA, all defaults
    asng.minimizer  a loop around its ask and tell; so do "asng.ASNG" and "asng.ASNG of 15"; if asked for

"pbo" are functions of IOHprofiler's pseudo-Boolean suite (36 bits, of which seeds flip some), "mixint" those of COCO's
bbob-mixint (10 variables, 8 of them integers; seeds go through the first 15 instances), "bbob" those of COCO's bbob
(5 reals; the same instances).

A method chooses values after its evaluations: nevergrad its recommendation, asng the mode of its distribution where
losses are noisy, all others the values of the lowest loss they have seen. What counts is the loss of these values
without noise, less the lowest there is (0 where nobody knows it). Methods that are not installed are left out
(`pip install '.[bench]'`).

A finished run is a row of rows.jsonl; the same command continues where it was interrupted, and further commands add
rows. `--evaluations` shortens runs, for methods that take long; shorter runs have tables of their own.
"""

import argparse
import json
import math
import os
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenBLAS reads it when NumPy is imported

import numpy as np
from black_box_methods import DEFAULT, METHODS
from black_box_problems import PROBLEMS, Values
from black_box_report import draw, show, show_against, show_seconds

import asng


def run(problem_name: str, method: str, seed: int, evaluations: int, data: Path) -> dict[str, Any]:
    """One run: how far the chosen values are from the best, without noise, and each lowest loss on the way."""
    problem = PROBLEMS[problem_name][0](seed, data)
    rng = np.random.default_rng(10_000 + seed)
    best: tuple[float, Values] = (math.inf, {})
    count, steps = 0, []

    def f(values: Values) -> float:
        nonlocal best, count
        count += 1
        exact = problem.loss(values)
        loss = exact + problem.noise * float(rng.normal())
        if loss < best[0]:
            best = (loss, dict(values))
            steps.append((count, float(f"{exact:.3g}")))
        return loss

    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        chosen = METHODS[method][1](f, problem, evaluations, seed)
    if count > evaluations:
        raise RuntimeError(f"{method} evaluated {count} times, not {evaluations}")
    regret = float(problem.loss(best[1] if chosen is None else chosen))
    seconds = round(time.process_time() - start, 2)
    row = {"problem": problem_name, "method": method, "seed": seed, "evaluations": evaluations, "regret": regret}
    return {**row, "seconds": seconds, "steps": steps}


def find_installed(methods: list[str]) -> tuple[list[str], dict[str, str]]:
    """The methods whose packages are there, and the versions of these."""
    versions = {"asng": asng.__version__}
    for package in {METHODS[method][0] for method in methods} - {"asng"}:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            print(f"{package} is not installed: left out")
    return [method for method in methods if METHODS[method][0] in versions], versions


def read_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, help="default: all that there are data for")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=DEFAULT)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="1000 to try settings, apart from what is reported")
    parser.add_argument("--evaluations", type=int, default=math.inf, help="at most, instead of what a problem has")
    parser.add_argument("--data", type=Path, help="the folder with nasbench201/cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/black_box"))
    parser.add_argument("--draw", type=Path, help="a folder of rows: print tables, and run nothing")
    parser.add_argument(
        "--against", choices=METHODS, help="instead of tables: where other methods are better than this"
    )
    parser.add_argument("--figure", type=Path, help="where to draw medians and quartiles")
    options = parser.parse_args()
    folder = options.draw or options.out
    if not options.draw:
        problems = options.problems or [name for name in PROBLEMS if options.data or not name.startswith("nasbench201")]
        methods, versions = find_installed(options.methods)
        folder.mkdir(parents=True, exist_ok=True)
        done = {tuple(row[key] for key in ("problem", "method", "seed", "evaluations")) for row in read_rows(folder)}
        for problem in problems:
            evaluations = min(PROBLEMS[problem][1], options.evaluations)
            for method in methods:
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    if (problem, method, seed, evaluations) not in done:
                        row = run(problem, method, seed, evaluations, options.data)
                        row["version"] = versions[METHODS[method][0]]
                        with (folder / "rows.jsonl").open("a") as file:
                            file.write(json.dumps(row) + "\n")
            print(problem, flush=True)
    rows = read_rows(folder)
    if options.against:
        print(show_against(rows, options.against))
        return
    tables = "\n\n".join([*show(rows), *show_seconds(rows)])
    if options.draw is None:
        (folder / "black_box.md").write_text(tables + "\n")
    print(f"\n{tables}")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
