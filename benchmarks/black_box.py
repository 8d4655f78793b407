"""asng.minimize beside other libraries on black boxes: equal evaluations, many seeds, medians and quartiles.

    python benchmarks/black_box.py                                   all problems and methods, into runs/black_box
    python benchmarks/black_box.py --problems onemax --methods asng random --seeds 5
    python benchmarks/black_box.py --data DIR                        with NAS-Bench-201, as nasbench201.py reads it

    asng       asng.minimize, all defaults
    random     uniform draws
    TPE        Optuna's TPESampler, all defaults
    CatCMAwM   of cmaes, all defaults
    1+1, NGOpt nevergrad's DiscreteOnePlusOne and NGOpt

A method chooses values after its evaluations: nevergrad its recommendation, asng the mode of its distribution where
losses are noisy, all others the values of the lowest loss they have seen. What counts is the loss of these values
without noise, less the lowest there is. Methods that are not installed are left out (`pip install '.[bench]'`).
"""

import argparse
import json
import math
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import asng

Values = dict[str, Any]
Loss = Callable[[Values], float]


# Problems ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    space: dict[str, Any]
    loss: Loss  # without noise; the lowest is 0
    noise: float = 0.0  # the standard deviation of what is added


def one_max(variables: int, choices: int, noise: float = 0.0) -> Problem:
    """The number of wrong choices; each variable has its own right one."""
    right = {f"v{i}": (3 * i + 1) % choices for i in range(variables)}
    space = {name: asng.Categorical(range(choices)) for name in right}
    return Problem(space, lambda values: sum(values[name] != choice for name, choice in right.items()), noise)


def leading_ones(variables: int, noise: float = 0.0) -> Problem:
    """The number of variables from the first wrong one on."""
    space = {f"v{i}": asng.Categorical([0, 1]) for i in range(variables)}

    def loss(values: Values) -> float:
        wrong = [i for i in range(variables) if values[f"v{i}"] != i % 2]
        return variables - wrong[0] if wrong else 0

    return Problem(space, loss, noise)


def conditional() -> Problem:
    """Three branches of three levels; variables of other branches, and beyond the depth, have no effect."""
    space: dict[str, Any] = {"branch": asng.Categorical(["a", "b", "c"]), "depth": asng.Integer(1, 4)}
    for branch in "abc":
        space |= {f"{branch}{level}": asng.Categorical(range(5)) for level in range(1, 5)}
        space[f"{branch}x"] = asng.Real(-5, 5)

    def loss(values: Values) -> float:
        branch, depth = values["branch"], values["depth"]
        wrong = sum(values[f"{branch}{level}"] != level for level in range(1, depth + 1))
        return "cab".index(branch) + abs(depth - 3) + wrong + abs(values[f"{branch}x"] - 2) / 2

    return Problem(space, loss)


def mixed_sphere(noise: float = 0.0) -> Problem:
    space: dict[str, Any] = {f"c{i}": asng.Categorical(range(4)) for i in range(5)}
    space |= {f"n{i}": asng.Integer(0, 20) for i in range(5)}
    space |= {f"x{i}": asng.Real(-5, 5) for i in range(5)}

    def loss(values: Values) -> float:
        wrong = sum(values[f"c{i}"] != i % 4 for i in range(5))
        integers = sum((values[f"n{i}"] - 3 * i - 2) ** 2 for i in range(5)) / 10
        return wrong + integers + sum((values[f"x{i}"] - i + 1.5) ** 2 for i in range(5))

    return Problem(space, loss, noise)


def rosenbrock(variables: int, integers: int = 0, noise: float = 0.0) -> Problem:
    """Rosenbrock's function around 0, of which some variables are integers."""
    space: dict[str, Any] = {f"n{i}": asng.Integer(-3, 3) for i in range(integers)}
    space |= {f"x{i}": asng.Real(-3, 3) for i in range(variables - integers)}

    def loss(values: Values) -> float:
        x = np.array(list(values.values())) + 1
        return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())

    return Problem(space, loss, noise)


def nasbench201(data: Path) -> Problem:
    """NAS-Bench-201, CIFAR-10: mean validation error in percent, above the lowest."""
    from nasbench201 import find_data, load_table

    accuracy = load_table(find_data(data)).valid_mean
    highest = float(accuracy.max())
    space = {f"edge{i}": asng.Categorical(range(n)) for i, n in enumerate(accuracy.shape)}
    return Problem(space, lambda values: highest - float(accuracy[tuple(values[name] for name in space)]))


PROBLEMS: dict[str, tuple[Callable[..., Problem], int]] = {  # and evaluations
    "onemax": (partial(one_max, 20, 5), 300),
    "onemax noisy": (partial(one_max, 20, 5, noise=1.0), 300),
    "leadingones": (partial(leading_ones, 20), 300),
    "leadingones noisy": (partial(leading_ones, 20, noise=1.0), 300),
    "conditional": (conditional, 200),
    "mixed sphere": (mixed_sphere, 300),
    "mixed sphere noisy": (partial(mixed_sphere, noise=1.0), 300),
    "rosenbrock": (partial(rosenbrock, 5), 500),
    "rosenbrock mixed": (partial(rosenbrock, 6, integers=3), 500),
    "rosenbrock noisy": (partial(rosenbrock, 5, noise=10.0), 500),
    "nasbench201": (nasbench201, 100),
    "nasbench201 long": (nasbench201, 300),
}


# Methods: each calls f for all its evaluations, and returns the values it chooses ---------------------


def by_asng(f: Loss, problem: Problem, evaluations: int, seed: int) -> Values:
    noisy = problem.noise > 0
    result = asng.minimize(f, problem.space, evaluations=evaluations, noisy=noisy, seed=seed, progress=False)
    return result.mode if noisy else result.values


def by_random(f: Loss, problem: Problem, evaluations: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def draw(variable: Any) -> Any:
        if isinstance(variable, asng.Real):
            return variable.decode(rng.uniform(-1, 1))
        return variable.values()[rng.integers(len(variable.values()))]

    for _ in range(evaluations):
        f({name: draw(variable) for name, variable in problem.space.items()})


def by_tpe(f: Loss, problem: Problem, evaluations: int, seed: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def suggest(trial: Any, name: str, variable: Any) -> Any:
        match variable:
            case asng.Real():
                return trial.suggest_float(name, variable.low, variable.high, log=variable.log)
            case asng.Integer():
                return trial.suggest_int(name, variable.low, variable.high)
        return trial.suggest_categorical(name, variable.choices)

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(
        lambda trial: f({name: suggest(trial, name, variable) for name, variable in problem.space.items()}),
        n_trials=evaluations,
    )


def by_catcma(f: Loss, problem: Problem, evaluations: int, seed: int) -> None:
    from cmaes import CatCMAwM

    reals: dict[str, Any] = {k: v for k, v in problem.space.items() if isinstance(v, asng.Real)}
    integers: dict[str, Any] = {k: v for k, v in problem.space.items() if isinstance(v, asng.Integer)}
    choices: dict[str, Any] = {k: v.choices for k, v in problem.space.items() if isinstance(v, asng.Categorical)}
    optimizer = CatCMAwM(
        x_space=[[v.low, v.high] for v in reals.values()] or None,
        z_space=[list(v.values()) for v in integers.values()] or None,
        c_space=[len(each) for each in choices.values()] or None,
        seed=seed,
    )

    def values_of(solution: Any) -> Values:
        values: Values = {}
        values |= zip(reals, map(float, solution.x), strict=True) if reals else {}
        values |= zip(integers, map(int, solution.z), strict=True) if integers else {}
        for index, (name, each) in enumerate(choices.items()):
            values[name] = each[int(np.argmax(solution.c[index]))]
        return {name: values[name] for name in problem.space}

    left = evaluations
    while left > 0:
        solutions = [optimizer.ask() for _ in range(optimizer.population_size)]
        losses = [f(values_of(solution)) for solution in solutions[:left]]
        left -= len(losses)
        if len(losses) == len(solutions):
            optimizer.tell(list(zip(solutions, losses, strict=True)))


def by_nevergrad(f: Loss, problem: Problem, evaluations: int, seed: int, *, name: str) -> Values:
    import nevergrad

    def parameter(variable: Any) -> Any:
        if isinstance(variable, asng.Categorical):
            return nevergrad.p.Choice(list(variable.choices))
        scalar = nevergrad.p.Scalar(lower=variable.low, upper=variable.high)
        return scalar.set_integer_casting() if isinstance(variable, asng.Integer) else scalar

    parametrization = nevergrad.p.Dict(**{key: parameter(variable) for key, variable in problem.space.items()})
    parametrization.random_state.seed(seed)
    optimizer = getattr(nevergrad.optimizers, name)(parametrization=parametrization, budget=evaluations)
    return dict(optimizer.minimize(f).value)


METHODS: dict[str, tuple[str, Callable[..., Values | None]]] = {  # and the package
    "asng": ("asng", by_asng),
    "random": ("asng", by_random),
    "TPE": ("optuna", by_tpe),
    "CatCMAwM": ("cmaes", by_catcma),
    "1+1": ("nevergrad", partial(by_nevergrad, name="DiscreteOnePlusOne")),
    "NGOpt": ("nevergrad", partial(by_nevergrad, name="NGOpt")),
}


# Runs -------------------------------------------------------------------------------------------------


def regret(problem_name: str, method: str, seed: int, data: Path | None) -> float:
    """One run: how far the chosen values are from the best, without noise."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    make, evaluations = PROBLEMS[problem_name]
    problem = make(data) if problem_name.startswith("nasbench201") else make()
    rng = np.random.default_rng(10_000 + seed)
    best: tuple[float, Values] = (math.inf, {})
    count = 0

    def f(values: Values) -> float:
        nonlocal best, count
        count += 1
        loss = problem.loss(values) + problem.noise * float(rng.normal())
        best = min(best, (loss, dict(values)), key=lambda pair: pair[0])
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        chosen = METHODS[method][1](f, problem, evaluations, seed)
    assert count <= evaluations, f"{method} evaluated {count} times, not {evaluations}"
    return float(problem.loss(best[1] if chosen is None else chosen))


def installed(methods: list[str]) -> tuple[list[str], dict[str, str]]:
    """The methods whose packages are there, and the versions of these."""
    versions = {"asng": asng.__version__}
    for package in {METHODS[method][0] for method in methods} - {"asng"}:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            print(f"{package} is not installed: left out")
    return [method for method in methods if METHODS[method][0] in versions], versions


def show(results: dict[str, dict[str, list[float]]]) -> str:
    """A table of medians, with quartiles in brackets; the lowest median of each row is marked."""
    methods = list(next(iter(results.values())))
    lines = ["| problem | evaluations | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for problem, row in results.items():
        quartiles = {method: np.quantile(runs, [0.25, 0.5, 0.75]) for method, runs in row.items()}
        lowest = min(middle for _, middle, _ in quartiles.values())
        cells = [
            f"{f'**{middle:.3g}**' if middle <= lowest else f'{middle:.3g}'} [{low:.3g}, {high:.3g}]"
            for low, middle, high in quartiles.values()
        ]
        lines.append(f"| {problem} | {PROBLEMS[problem][1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, help="default: all that there are data for")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, help="the folder with nasbench201/cifar10.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/black_box"))
    options = parser.parse_args()
    problems = options.problems or [name for name in PROBLEMS if options.data or not name.startswith("nasbench201")]
    methods, versions = installed(options.methods)
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[float]]] = {}
    with ProcessPoolExecutor(options.workers) as executor:
        for problem in problems:
            runs = {
                method: [executor.submit(regret, problem, method, seed, options.data) for seed in range(options.seeds)]
                for method in methods
            }
            results[problem] = {method: [run.result() for run in futures] for method, futures in runs.items()}
            content = {"versions": versions, "seeds": options.seeds, "results": results}
            (options.out / "black_box.json").write_text(json.dumps(content, indent=1) + "\n")
            (options.out / "black_box.md").write_text(show(results) + "\n")
            print(show({problem: results[problem]}).splitlines()[-1], flush=True)
    print(f"\n{show(results)}")


if __name__ == "__main__":
    main()
