"""The problems of black_box.py: spaces, losses whose lowest value is 0 where it is known, and noise."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import chdir
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import asng

Values = Mapping[str, Any]
Loss = Callable[[Values], float]


class Problem(NamedTuple):
    space: dict[str, Any]
    loss: Loss  # without noise; reads the values that have an effect, and no others
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
    """Three branches of four levels; variables of other branches, and beyond the depth, have no effect."""
    space: dict[str, Any] = {"branch": asng.Categorical(["a", "b", "c"]), "depth": asng.Integer(1, 4)}
    for branch in "abc":
        space |= {f"{branch}{level}": asng.Categorical(range(5)) for level in range(1, 5)}
        space[f"{branch}x"] = asng.Real(-5, 5)

    def loss(values: Values) -> float:
        branch, depth = values["branch"], values["depth"]
        wrong = sum(values[f"{branch}{level}"] != level for level in range(1, depth + 1))
        return "cab".index(branch) + abs(depth - 3) + wrong + abs(values[f"{branch}x"] - 2) / 2

    return Problem(space, loss)


def nested_choices() -> Problem:
    """A choice that decides which choice counts, which decides which four variables count: 6 of 40."""
    space: dict[str, Any] = {"a": asng.Categorical(range(3))}
    for a in range(3):
        space[f"b{a}"] = asng.Categorical(range(3))
        for leaf in (f"{a}{b}" for b in range(3)):
            space |= {f"c{leaf}": asng.Categorical(range(4)), f"d{leaf}": asng.Categorical(range(4))}
            space |= {f"n{leaf}": asng.Integer(0, 10), f"x{leaf}": asng.Real(-5, 5)}

    def loss(values: Values) -> float:
        a = values["a"]
        b = values[f"b{a}"]
        leaf = f"{a}{b}"
        wrong = (values[f"c{leaf}"] != a) + (values[f"d{leaf}"] != b)
        return (2 - a) + (2 - b) / 2 + wrong + abs(values[f"n{leaf}"] - 3 - a) / 4 + abs(values[f"x{leaf}"] - b) / 2

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


def rosenbrock(variables: int, integers: int = 0, noise: float = 0.0, low: int = -3, high: int = 3) -> Problem:
    """Rosenbrock's function, whose minimum is at 1, of which some variables are integers."""
    space: dict[str, Any] = {f"n{i}": asng.Integer(low, high) for i in range(integers)}
    space |= {f"x{i}": asng.Real(low, high) for i in range(variables - integers)}

    def loss(values: Values) -> float:
        x = np.array([values[name] for name in space])
        return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())

    return Problem(space, loss, noise)


def nasbench201(data: Path) -> Problem:
    """NAS-Bench-201, CIFAR-10: mean validation error in percent, above the lowest."""
    from nasbench201 import find_data, load_table

    accuracy = load_table(find_data(data)).valid_mean
    highest = float(accuracy.max())
    space = {f"edge{i}": asng.Categorical(range(n)) for i, n in enumerate(accuracy.shape)}
    return Problem(space, lambda values: highest - float(accuracy[tuple(values[name] for name in space)]))


def pseudo_boolean(function: int, bits: int, seed: int) -> Problem:
    """A function of IOHprofiler's PBO suite, of which a seed flips bits; its negative where the optimum is unknown.

    Instance 1: the others also scale the function, so that losses of several seeds could not be compared.
    """
    import ioh

    problem = ioh.get_problem(function, 1, bits, ioh.ProblemClass.PBO)
    flipped = np.random.default_rng([seed, 3]).integers(2, size=bits).tolist()
    space = {f"v{i}": asng.Categorical([0, 1]) for i in range(bits)}
    highest = 0.0 if function in (18, 24, 25) else float(problem.optimum.y)  # LABS, traps, NK landscapes

    def loss(values: Values) -> float:
        return highest - float(problem([values[name] ^ flip for name, flip in zip(space, flipped, strict=True)]))

    return Problem(space, loss)


@lru_cache(maxsize=2)
def _suite(name: str, dimension: int) -> Any:
    import cocoex

    return cocoex.Suite(name, "instances:1-30", f"dimensions:{dimension}")


def coco(suite: str, dimension: int, function: int, seed: int) -> Problem:
    """A function of one of COCO's suites; in bbob-mixint four fifths of the variables are integers, in bbob none.

    Seeds below 1000 have the instances 1 to 15, others those up to 30.
    """
    instance = 1 + seed % 15 + 15 * (seed >= 1000)
    problem = _suite(suite, dimension).get_problem_by_function_dimension_instance(function, dimension, instance)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        problem._best_parameter("print")
        lowest = problem(np.loadtxt(folder + "/" + os.listdir(folder)[0]))
    space: dict[str, Any] = {}
    for i, (low, high) in enumerate(zip(problem.lower_bounds, problem.upper_bounds, strict=True)):
        is_integer = i < problem.number_of_integer_variables
        space[f"x{i}"] = asng.Integer(int(low), int(high)) if is_integer else asng.Real(low, high)
    return Problem(space, lambda values: problem([values[name] for name in space]) - lowest)


Maker = Callable[[int, Path], Problem]  # of a seed and the folder of data


def _always(make: Callable[..., Problem], *arguments: Any, **more: Any) -> Maker:
    return lambda seed, data: make(*arguments, **more)


PROBLEMS: dict[str, tuple[Maker, int]] = {  # and evaluations
    "onemax": (_always(one_max, 20, 5), 300),
    "onemax noisy": (_always(one_max, 20, 5, noise=1.0), 300),
    "leadingones": (_always(leading_ones, 20), 300),
    "leadingones noisy": (_always(leading_ones, 20, noise=1.0), 300),
    "conditional": (_always(conditional), 200),
    "nested": (_always(nested_choices), 200),
    "mixed sphere": (_always(mixed_sphere), 300),
    "mixed sphere noisy": (_always(mixed_sphere, noise=1.0), 300),
    "rosenbrock": (_always(rosenbrock, 5), 300),
    "rosenbrock noisy": (_always(rosenbrock, 5, noise=10.0), 300),
    "rosenbrock mixed": (_always(rosenbrock, 6, integers=3), 300),
    "rosenbrock mixed noisy": (_always(rosenbrock, 6, integers=3, noise=10.0), 300),
    "rosenbrock off center noisy": (_always(rosenbrock, 6, integers=3, noise=10.0, low=-2, high=5), 300),
    "nasbench201": (lambda seed, data: nasbench201(data), 100),
    "nasbench201 long": (lambda seed, data: nasbench201(data), 300),
    **{f"pbo f{k}": (partial(lambda k, seed, data: pseudo_boolean(k, 36, seed), k), 500) for k in range(1, 26)},
    **{
        f"mixint f{k}": (partial(lambda k, seed, data: coco("bbob-mixint", 10, k, seed), k), 2000) for k in range(1, 25)
    },
    **{f"bbob f{k}": (partial(lambda k, seed, data: coco("bbob", 5, k, seed), k), 1000) for k in range(1, 25)},
}
