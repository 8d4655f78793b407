"""The methods of black_box.py: each calls f for all its evaluations, and returns the values it chooses.

None stands for the values of the lowest loss that it saw.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from black_box_problems import Loss, Problem, Values

import asng


class Read(dict[str, Any]):
    """Values that remember which of them were read, so that asng is told those that have an effect."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def by_asng(f: Loss, problem: Problem, evaluations: int, seed: int) -> Values:
    def loss_and_active(values: Values) -> tuple[float, set[str]]:
        read = Read(values)
        return f(read), read.names

    noisy = problem.noise > 0
    result = asng.minimize(
        loss_and_active, problem.space, evaluations=evaluations, noisy=noisy, seed=seed, progress=False
    )
    return result.mode if noisy else result.values


def by_ask_and_tell(
    f: Loss, problem: Problem, evaluations: int, seed: int, *, make: Callable[..., asng.Optimizer], **settings: Any
) -> Values | None:
    """A loop of one's own."""
    noisy, left = problem.noise > 0, evaluations
    optimizer = make(problem.space, seed=seed, **settings, **({"noisy": noisy} if make is asng.minimizer else {}))
    while left > 1:  # a single candidate has nothing to be compared with
        candidates = optimizer.ask(min(left, optimizer.population_size))
        values = [Read(candidate.values) for candidate in candidates]
        losses = [f(read) for read in values]
        optimizer.tell(candidates, losses, active=[read.names for read in values])
        left -= len(candidates)
    return optimizer.mode() if noisy else None


def by_random(f: Loss, problem: Problem, evaluations: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def draw(variable: Any) -> Any:
        if isinstance(variable, asng.Real):
            return variable.decode(rng.uniform(-1, 1))
        return variable.values()[rng.integers(len(variable.values()))]

    for _ in range(evaluations):
        f({name: draw(variable) for name, variable in problem.space.items()})


class Suggested(dict[str, Any]):
    """Values that Optuna is asked for when they are read, so that a trial has those that have an effect."""

    def __init__(self, trial: Any, space: dict[str, Any]) -> None:
        super().__init__()
        self._trial, self._space = trial, space

    def __missing__(self, name: str) -> Any:
        match variable := self._space[name]:
            case asng.Real():
                value = self._trial.suggest_float(name, variable.low, variable.high, log=variable.log)
            case asng.Integer():
                value = self._trial.suggest_int(name, variable.low, variable.high)
            case _:
                value = self._trial.suggest_categorical(name, variable.choices)
        self[name] = value
        return value


def by_optuna(
    f: Loss, problem: Problem, evaluations: int, seed: int, *, sampler: str, told_trials: bool = False
) -> None:
    import optuna

    from asng.integrations.optuna import ASNGSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if sampler == "ASNGSampler":
        n_trials = evaluations if told_trials else None
        chosen: Any = ASNGSampler(noisy=problem.noise > 0, n_trials=n_trials, seed=seed)
    else:
        chosen = getattr(optuna.samplers, sampler)(seed=seed)
    study = optuna.create_study(sampler=chosen)
    study.optimize(lambda trial: f(Suggested(trial, problem.space)), n_trials=evaluations)


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
        values: dict[str, Any] = {}
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
    """Variables alike are one parameter, which is several times as quick; choices are not drawn again at each call."""
    import nevergrad

    groups: dict[Any, list[str]] = {}
    for key, variable in problem.space.items():
        groups.setdefault(variable, []).append(key)

    def parameter(variable: Any, n: int) -> Any:
        if isinstance(variable, asng.Categorical):
            return nevergrad.p.Choice(variable.choices, repetitions=n, deterministic=True)
        array = nevergrad.p.Array(shape=(n,), lower=variable.low, upper=variable.high)
        return array.set_integer_casting() if isinstance(variable, asng.Integer) else array

    def values_of(arrays: tuple[Any, ...]) -> Values:
        values: dict[str, Any] = {}
        for (variable, keys), array in zip(groups.items(), arrays, strict=True):
            values |= zip(keys, array if isinstance(variable, asng.Categorical) else array.tolist(), strict=True)
        return {key: values[key] for key in problem.space}

    parametrization = nevergrad.p.Tuple(*(parameter(variable, len(keys)) for variable, keys in groups.items()))
    parametrization.random_state.seed(seed)
    optimizer = nevergrad.optimizers.registry[name](parametrization=parametrization, budget=evaluations)
    return values_of(optimizer.minimize(lambda arrays: f(values_of(arrays))).value)


def by_pymoo(f: Loss, problem: Problem, evaluations: int, seed: int) -> None:
    from pymoo.core.mixed import MixedVariableGA
    from pymoo.core.problem import ElementwiseProblem
    from pymoo.core.variable import Choice, Integer, Real
    from pymoo.optimize import minimize

    def parameter(variable: Any) -> Any:
        if isinstance(variable, asng.Categorical):
            return Choice(options=list(variable.choices))
        bounds = (variable.low, variable.high)
        return Integer(bounds=bounds) if isinstance(variable, asng.Integer) else Real(bounds=bounds)

    left = evaluations

    class Wrapped(ElementwiseProblem):
        def _evaluate(self, x: Any, out: dict[str, Any], *_: Any, **__: Any) -> None:
            nonlocal left
            left -= 1  # its last generation may go beyond
            out["F"] = f(x) if left >= 0 else np.inf

    wrapped = Wrapped(vars={name: parameter(variable) for name, variable in problem.space.items()}, n_obj=1)
    minimize(wrapped, MixedVariableGA(), ("n_evals", evaluations), seed=seed)


METHODS: dict[str, tuple[str, Callable[..., Values | None]]] = {  # and the package
    "asng": ("asng", by_asng),
    "random": ("asng", by_random),
    "CatCMAwM": ("cmaes", by_catcma),
    "TPE": ("optuna", partial(by_optuna, sampler="TPESampler")),
    "GP": ("optuna", partial(by_optuna, sampler="GPSampler")),
    "asng in Optuna": ("optuna", partial(by_optuna, sampler="ASNGSampler")),
    "1+1": ("nevergrad", partial(by_nevergrad, name="DiscreteOnePlusOne")),
    "NGOpt": ("nevergrad", partial(by_nevergrad, name="NGOpt")),
    "GA": ("pymoo", by_pymoo),
    "asng.minimizer": ("asng", partial(by_ask_and_tell, make=asng.minimizer)),
    "asng.ASNG": ("asng", partial(by_ask_and_tell, make=asng.ASNG)),
    "asng.ASNG of 15": ("asng", partial(by_ask_and_tell, make=asng.ASNG, population_size=15)),
    "asng in Optuna, n_trials": ("optuna", partial(by_optuna, sampler="ASNGSampler", told_trials=True)),
}
DEFAULT = [method for method in METHODS if "." not in method and "," not in method]
