"""`asng.minimize` on numbers beside a few choices, with two lower bounds of probabilities: its own and the paper's.

    python benchmarks/few_choices.py             medians of 30 seeds, two minutes
    python benchmarks/few_choices.py --seeds 3   a smoke run

Each of c choices of three costs 0.05 to 0.5 where it is wrong, and moves the optimum of r reals, a sphere with axes of
other lengths. The last problem, "mixed", has two choices, an integer and two reals. Where there is noise, normal of
standard deviation 0.1, the loss of the mode counts, without noise; elsewhere the lowest loss.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import asng
from asng._covariance import MODE_PROB, CovarianceASNG

PROBLEMS = [(2, 3), (3, 5), (6, 4), (10, 10)]  # choices and reals
EVALUATIONS = (300, 1000)
NOISE = 0.1
BOUNDS = {"own": MODE_PROB, "paper": None}

Loss = Callable[[Mapping[str, Any]], float]


def make_problem(choices: int, reals: int, seed: int) -> tuple[dict[str, Any], Loss]:
    generator = np.random.default_rng(seed)
    best = generator.integers(3, size=choices)
    costs = generator.uniform(0.05, 0.5, size=(choices, 3))
    optimum, scales = generator.uniform(-0.7, 0.7, size=reals), 10 ** generator.uniform(-1, 1, size=reals)
    shifts = 0.2 * generator.normal(size=(choices, 3, reals))
    costs[range(choices), best] = shifts[range(choices), best] = 0.0
    space = {f"c{i}": asng.Categorical(range(3)) for i in range(choices)}
    numbers = {f"x{i}": asng.Real(-1, 1) for i in range(reals)}

    def loss(values: Mapping[str, Any]) -> float:
        chosen = [values[name] for name in space]
        x = np.array([values[name] for name in numbers])
        distances = x - optimum - shifts[range(choices), chosen].sum(0)
        return float(costs[range(choices), chosen].sum() + (scales * distances**2).sum())

    return {**space, **numbers}, loss


def make_mixed_problem(seed: int) -> tuple[dict[str, Any], Loss]:
    costs = {"sgd": 0.5, "adam": 0.0, "rmsprop": 0.2, "relu": 0.1, "gelu": 0.0}
    space = {
        "optimizer": asng.Categorical(["sgd", "adam", "rmsprop"]),
        "activation": asng.Categorical(["relu", "gelu"]),
        "layers": asng.Integer(1, 12),
        "lr": asng.Real(1e-5, 1.0, log=True),
        "dropout": asng.Real(0, 0.9),
    }

    def loss(values: Mapping[str, Any]) -> float:
        chosen = costs[values["optimizer"]] + costs[values["activation"]]
        numbers = abs(values["layers"] - 5) / 10 + abs(math.log10(values["lr"]) + 3) + (values["dropout"] - 0.2) ** 2
        return float(chosen + numbers)

    return space, loss


def final_loss(problem: tuple[dict[str, Any], Loss], evaluations: int, noise: float, seed: int) -> float:
    space, loss = problem
    generator = np.random.default_rng(seed)
    result = asng.minimize(
        lambda values: loss(values) + noise * generator.normal(),
        space,
        evaluations=evaluations,
        noisy=noise > 0,
        seed=seed,
        progress=False,
    )
    return loss(result.mode if noise else result.values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    seeds = range(parser.parse_args().seeds)
    makers = {f"{c} choices, {r} reals": lambda seed, c=c, r=r: make_problem(c, r, seed) for c, r in PROBLEMS}
    print("| problem | noise | evaluations | " + " | ".join(BOUNDS) + " |\n" + "|---" * (3 + len(BOUNDS)) + "|")
    for name, make in {**makers, "mixed": make_mixed_problem}.items():
        for noise in (0.0, NOISE):
            for evaluations in EVALUATIONS:
                medians = []
                for mode_prob in BOUNDS.values():
                    CovarianceASNG._mode_prob = mode_prob
                    losses = [final_loss(make(seed), evaluations, noise, seed) for seed in seeds]
                    medians.append(f"{statistics.median(losses):.2g}")
                print(f"| {name} | {noise:g} | {evaluations} | {' | '.join(medians)} |", flush=True)


if __name__ == "__main__":
    main()
