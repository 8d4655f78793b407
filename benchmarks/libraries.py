"""What is compared by ask_tell.py: the spaces and the loss, and every library behind the same ask, values and tell."""

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import asng

Space = dict[str, Any]


def categorical_space(variables: int = 40, choices: int = 5) -> Space:
    return {f"v{i}": asng.Categorical(range(choices)) for i in range(variables)}


def classification_space() -> Space:
    """Two kinds of cells, five nodes each with two inputs and two operations: n_theta = 140."""
    space: Space = {}
    for cell in ("normal", "reduction"):
        for node in range(5):
            for name, count in (("in1", 2 + node), ("in2", 2 + node), ("op1", 5), ("op2", 5)):
                space[f"{cell}{node}{name}"] = asng.Categorical(range(count))
    return space


def mixed_space() -> Space:
    """Twenty layers with skip, connection, kernel index and channels, and the output: n_theta = 174."""
    space: Space = {}
    for layer in range(1, 21):
        space[f"skip{layer}"] = asng.Categorical([False, True])
        space[f"connection{layer}"] = asng.Categorical(range(min(layer, 5)))
        space[f"kernel{layer}"] = asng.Integer(1, 3)
        space[f"channels{layer}"] = asng.Integer(64, 256)
    return space | {"connection21": asng.Categorical(range(5))}


SPACES: dict[str, Callable[[], Space]] = {
    "40 categorical of 5": categorical_space,
    "classification": classification_space,
    "mixed": mixed_space,
}


def loss(values: dict[str, Any]) -> float:
    """Lowest at the low end of every variable; real enough for a search to converge on it."""
    return float(sum(values.values()))


# The libraries: each adapter asks for n candidates, reads their values, tells their losses ----------


class WithAsng:
    package, label, evaluations = "asng", "asng", 20_000

    def __init__(self, space: Space, population_size: int, seed: int) -> None:
        self.optimizer = asng.ASNG(space, population_size=population_size, seed=seed)
        self.ask, self.tell = self.optimizer.ask, self.optimizer.tell

    def values(self, candidates: Any) -> list[dict[str, Any]]:
        return [candidate.values for candidate in candidates]


class WithCmaes:
    package, label, evaluations = "cmaes", "cmaes CatCMAwM", 2000

    def __init__(self, space: Space, population_size: int, seed: int) -> None:
        from cmaes import CatCMAwM

        space = _with_choice(space)
        self.categorical = {k: v.choices for k, v in space.items() if isinstance(v, asng.Categorical)}
        integers = {k: list(range(v.low, v.high + 1)) for k, v in space.items() if isinstance(v, asng.Integer)}
        self.names, self.population_size = list(integers), population_size
        self.optimizer = CatCMAwM(
            z_space=list(integers.values()) or None,
            c_space=[len(c) for c in self.categorical.values()],
            population_size=population_size,
            seed=seed,
        )

    def ask(self) -> Any:
        return [self.optimizer.ask() for _ in range(self.population_size)]

    def values(self, candidates: Any) -> list[dict[str, Any]]:
        rows = []
        for solution in candidates:
            chosen = zip(self.categorical.items(), solution.c.argmax(1).tolist(), strict=True)
            row = {name: choices[k] for (name, choices), k in chosen}
            if self.names:
                row.update(zip(self.names, solution.z.tolist(), strict=True))
            rows.append(row)
        return rows

    def tell(self, candidates: Any, losses: list[float]) -> None:
        self.optimizer.tell(list(zip(candidates, losses, strict=True)))


class WithNevergrad:
    package, label, evaluations = "nevergrad", "nevergrad DiscreteOnePlusOne", 96

    def __init__(self, space: Space, population_size: int, seed: int) -> None:
        import nevergrad

        def parameter(variable: Any) -> Any:
            if isinstance(variable, asng.Categorical):
                return nevergrad.p.Choice(list(variable.choices))
            return nevergrad.p.Scalar(lower=variable.low, upper=variable.high).set_integer_casting()

        space = {name: parameter(variable) for name, variable in _with_choice(space).items()}
        instrumentation = nevergrad.p.Instrumentation(**space)
        instrumentation.random_state.seed(seed)
        self.population_size = population_size
        self.optimizer = nevergrad.optimizers.DiscreteOnePlusOne(
            parametrization=instrumentation, budget=10**6, num_workers=population_size
        )

    def ask(self) -> Any:
        return [self.optimizer.ask() for _ in range(self.population_size)]

    def values(self, candidates: Any) -> list[dict[str, Any]]:
        return [candidate.kwargs for candidate in candidates]

    def tell(self, candidates: Any, losses: list[float]) -> None:
        for candidate, number in zip(candidates, losses, strict=True):
            self.optimizer.tell(candidate, number)


class WithOptuna:
    package, label, evaluations = "optuna", "optuna TPE", 96

    def __init__(self, space: Space, population_size: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.population_size = population_size
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.distributions = {
            name: optuna.distributions.CategoricalDistribution(v.choices)
            if isinstance(v, asng.Categorical)
            else optuna.distributions.IntDistribution(v.low, v.high)
            for name, v in _with_choice(space).items()
        }

    def ask(self) -> Any:
        return [self.study.ask(self.distributions) for _ in range(self.population_size)]

    def values(self, candidates: Any) -> list[dict[str, Any]]:
        return [trial.params for trial in candidates]

    def tell(self, candidates: Any, losses: list[float]) -> None:
        for trial, number in zip(candidates, losses, strict=True):
            self.study.tell(trial, number)


LIBRARIES: tuple[Any, ...] = (WithAsng, WithCmaes, WithNevergrad, WithOptuna)


def _with_choice(space: Space) -> Space:
    return {k: v for k, v in space.items() if not isinstance(v, asng.Categorical) or len(v.choices) > 1}


def find_installed(wanted: list[str]) -> tuple[list[Any], dict[str, str], list[str]]:
    """The wanted libraries that can be imported, their versions, and the names of those that cannot."""
    found, versions, missing = [], {"asng": asng.__version__}, []
    for library in LIBRARIES:
        if library.package not in wanted:
            continue
        try:
            importlib.import_module(library.package)
        except ImportError:
            missing.append(library.package)
            continue
        found.append(library)
        if library is not WithAsng:
            versions[library.package] = importlib.metadata.version(library.package)
    return found, versions, missing
