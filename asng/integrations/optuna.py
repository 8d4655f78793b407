"""ASNG as a sampler of Optuna."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

try:
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.study import StudyDirection
    from optuna.trial import TrialState
except ImportError as error:
    raise ImportError(f"asng.integrations.optuna needs Optuna 5 ({error}): pip install 'asng[optuna]'") from error

from asng._asktell import Candidate, Optimizer
from asng._blackbox import elites_of
from asng._checks import check_bool, check_int
from asng._covariance import black_box_optimizer, default_population_size
from asng.space import Categorical, Integer, Real, Variable

KEY = "asng:x"  # the system attribute of a trial that holds the raw draws of numbers, before clipping and rounding
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
MAX_DRAWS = 10  # for a trial, until its values are new


class _Parameter(NamedTuple):
    """A parameter of Optuna as a variable: raw draws to values, and back where a trial does not hold the draw."""

    distribution: Any
    variable: Variable
    to_value: Callable[[float], Any]
    to_x: Callable[[Any], float]

    def x_of(self, trial: Any, name: str) -> float | None:
        """The raw draw of a trial's value, or None where it has no value of this distribution."""
        try:
            value = trial.params[name]
            is_known = self.distribution._contains(self.distribution.to_internal_repr(value))
        except (KeyError, ValueError):  # it has no value, or one of another kind
            is_known = False
        if not is_known:
            return None
        x = trial.system_attrs.get(KEY, {}).get(name)
        return x if x is not None and self.to_value(x) == value else float(self.to_x(value))


class ASNGSampler(BaseSampler):
    """Optuna sampler with the adaptive stochastic natural gradient, for all kinds of parameters.

    The distribution is computed from the finished trials of the study, in the order of their numbers. Studies therefore
    continue exactly, and several processes learn from each other through the storage. All parameters that were ever
    suggested are sampled together. The update ignores categorical parameters that a trial does not suggest, because
    they are conditional. Numbers that it does not suggest count as drawn at their mean: the mean stays, but the
    standard deviation shrinks with those of the others. Failed trials are ignored. Pruned trials rank behind completed
    ones, by their last step and value; trials that violate constraints (`trial.set_constraint`) rank behind both, by
    the sum of violations.

    Args:
        n_trials: Number of trials of the study, of all processes together, which Optuna does not tell a sampler. If it
            is small, the population is smaller, as in `minimize`.
        population_size: Trials per update; overrides `n_trials`. By default 4 + floor(3 ln n) for n parameters, or, if
            that is smaller, 0.6 times the square root of `n_trials`, rounded down to an even number, at least 4. If
            `noisy`, at least a fortieth of `n_trials`, up to 1,000.
        noisy: Whether the objective may return different values for the same parameters: numbers then take shorter
            steps, and the same values may be tried again.
        independent_sampler: Samples parameters that no finished trial has; by default uniformly.
        seed: Seed of all draws; None for a random one. Processes on one storage may share it.

    Raises:
        ValueError: An argument does not fit; or, when sampling, the study has several objectives.

    >>> import optuna
    >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
    >>> study = optuna.create_study(sampler=ASNGSampler(seed=0))
    >>> study.optimize(lambda trial: (trial.suggest_float("x", -5, 5) - 2) ** 2, n_trials=60)
    >>> round(study.best_params["x"], 1)
    2.0
    """

    def __init__(
        self,
        *,
        n_trials: int | None = None,
        population_size: int | None = None,
        noisy: bool = False,
        independent_sampler: Any = None,
        seed: int | None = None,
    ) -> None:
        self._n_trials = None if n_trials is None else check_int(n_trials, "n_trials", min=1)
        self._given_size = None if population_size is None else check_int(population_size, "population_size", min=2)
        self._noisy = check_bool(noisy, "noisy")
        if independent_sampler is not None and not isinstance(independent_sampler, BaseSampler):
            raise ValueError(
                f"independent_sampler must be a sampler of Optuna, such as RandomSampler(), got {independent_sampler!r}"
            )
        seed = None if seed is None else check_int(seed, "seed", min=0)
        self._independent_sampler = independent_sampler
        self._entropy: Any = np.random.SeedSequence(seed).entropy
        self._lock = threading.Lock()  # `n_jobs` threads share the sampler
        self._study: tuple[Any, ...] = ()  # storage and number: several storages may have one of the same name
        self._forget()

    def _forget(self) -> None:
        self._seen: set[int] = set()  # numbers of trials
        self._parameters: dict[str, _Parameter] = {}
        self._optimizer: Optimizer | None = None
        self._population: list[Any] = []  # trials that are not told yet
        self._told: list[Any] = []
        self._known: list[dict[str, Any]] = []  # values of all of these

    def __getstate__(self) -> dict[str, Any]:
        """The settings; what was learned is learned again from the study."""
        return {
            "n_trials": self._n_trials,
            "population_size": self._given_size,
            "noisy": self._noisy,
            "independent_sampler": self._independent_sampler,
            "seed": self._entropy,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # What Optuna calls.

    def reseed_rng(self) -> None:
        if self._independent_sampler is not None:  # its own draws depend on the number of the trial
            self._independent_sampler.reseed_rng()

    def before_trial(self, study: Any, trial: Any) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.before_trial(study, trial)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.after_trial(study, trial, state, values)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        with self._lock:
            self._learn(study)
            return {name: parameter.distribution for name, parameter in self._parameters.items()}

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._learn(study)
            if self._optimizer is None:
                return {}
            x, values = self._draw_new(self._optimizer, trial.number)
            wanted = {name: p for name, p in self._parameters.items() if search_space.get(name) == p.distribution}
        numbers = {n: x[n] for n, p in wanted.items() if not isinstance(p.distribution, CategoricalDistribution)}
        if numbers:
            study._storage.set_trial_system_attr(trial._trial_id, KEY, numbers)
        return {name: values[name] for name in wanted}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        _check_single_objective(study)
        sampler = self._independent_sampler
        if sampler is None:  # one that continues exactly, and differs in other processes with the same seed
            words = [self._entropy, trial.number, *param_name.encode()]
            sampler = RandomSampler(seed=int(np.random.SeedSequence(words).generate_state(1)[0]))
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    # How it learns.

    def _draw_new(self, optimizer: Optimizer, number: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Raw draws and values for the trial of a number; two trials in a row are mirrored pairs.

        Where a finished trial has the same values, numbers are drawn again, a few times: of few integers, the same
        ones would be tried over and over. Choices are not, which would favor those that come with real numbers.
        """
        generator = np.random.default_rng([self._entropy, number // 2])
        is_number = [not isinstance(p.distribution, CategoricalDistribution) for p in self._parameters.values()]
        draw = optimizer._sample(2, generator)[number % 2]
        for _ in range(MAX_DRAWS):
            x = dict(zip(self._parameters, draw.tolist(), strict=True))
            values = {name: parameter.to_value(x[name]) for name, parameter in self._parameters.items()}
            if self._noisy or not any(known.items() <= values.items() for known in self._known):
                break
            draw = np.where(is_number, optimizer._sample(2, generator)[number % 2], draw)
        return x, values

    def _learn(self, study: Any) -> None:
        """Tell trials that finished since the last call; all of them where the parameters have changed."""
        _check_single_objective(study)
        if (own_study := (study._storage, study._study_id)) != self._study:
            self._forget()
            self._study = own_study
        trials = study.get_trials(deepcopy=False, states=FINISHED)
        fresh = [trial for trial in trials if trial.number not in self._seen]
        parameters = _parameters_of(fresh, self._parameters)
        if parameters != self._parameters:
            self._forget()
            fresh, self._parameters = trials, parameters
            space = {name: parameter.variable for name, parameter in parameters.items()}
            size = self._given_size or default_population_size(space, self._n_trials, noisy=self._noisy)
            self._optimizer = black_box_optimizer(space, noisy=self._noisy, population_size=size, seed=0)
        sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
        for trial in fresh:
            self._seen.add(trial.number)
            if own := {name: value for name, value in trial.params.items() if name in self._parameters}:
                self._population.append(trial)
                self._known.append(own)
            if self._optimizer is not None and len(self._population) == self._optimizer.population_size:
                self._tell(self._optimizer, sign)

    def _tell(self, optimizer: Optimizer, sign: int) -> None:
        """Tell a population, with the best trials of the last ones: raw draws, ranks and active parameters."""
        elites, age = elites_of(optimizer, self._noisy)
        params = [trial.params for trial in self._population]
        recent = [trial for trial in self._told[-age * optimizer.population_size :] if trial.params not in params]
        trials = self._population + sorted(recent, key=lambda trial: _rank_key(trial, sign))[:elites]
        keys = [_rank_key(trial, sign) for trial in trials]
        order = sorted(set(keys))
        candidates, active = [], []
        for trial in trials:
            x = optimizer._family.mode(optimizer.theta)  # where a parameter is not active
            found = {name: parameter.x_of(trial, name) for name, parameter in self._parameters.items()}
            draws = {name: draw for name, draw in found.items() if draw is not None}
            x[[name in draws for name in found]] = list(draws.values())
            candidates.append(Candidate({}, x))
            active.append(set(draws))
        optimizer.tell(candidates, [order.index(key) for key in keys], active=active)
        self._told += self._population
        self._population = []


def _rank_key(trial: Any, sign: int) -> tuple[int, float, float]:
    """Sorts trials from the best on: completed, pruned, infeasible."""
    violation = sum(value for value in trial.constraints.values() if value > 0)
    if violation > 0:
        return 2, violation, 0.0
    if trial.state == TrialState.COMPLETE:
        return 0, sign * trial.value, 0.0
    if not trial.intermediate_values:
        return 1, 1.0, 0.0
    step, value = max(trial.intermediate_values.items())
    return 1, -step, math.inf if math.isnan(value) else sign * value


def _parameters_of(trials: Iterable[Any], known: Mapping[str, _Parameter]) -> dict[str, _Parameter]:
    """The known parameters and those of trials; of several distributions of a parameter, the last one."""
    parameters = dict(known)
    for trial in trials:
        for name, distribution in trial.distributions.items():
            is_known = name in parameters and parameters[name].distribution == distribution
            if not is_known and (parameter := _to_parameter(distribution)) is not None:
                parameters[name] = parameter
    return parameters


def _to_parameter(distribution: Any) -> _Parameter | None:
    """A parameter, or None for one of a single value, and for ranges beyond float64."""
    if distribution.single():
        return None
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        indices = Categorical(range(len(choices)))
        return _Parameter(distribution, indices, lambda x: choices[int(x)], distribution.to_internal_repr)
    try:
        is_stepped = not distribution.log and distribution.step is not None
        return _steps(distribution) if is_stepped else _to_real(distribution)
    except ValueError:
        return None


def _to_real(distribution: Any) -> _Parameter:
    """A real number; an integer on a logarithmic scale is one that is rounded."""
    low, high = distribution.low, distribution.high
    is_integer = isinstance(distribution, IntDistribution)
    real = Real(low - 0.5, high + 0.5, log=True) if is_integer else Real(low, high, log=distribution.log)
    to_value = (lambda x: min(max(round(real.decode(x)), low), high)) if is_integer else real.decode
    return _Parameter(distribution, real, to_value, lambda value: real.to_internal((value, 1.0)).mean)


def _steps(distribution: Any) -> _Parameter:
    """Integers and floats in steps, counted from the low end."""
    low, high, step = distribution.low, distribution.high, distribution.step
    steps = Integer(0, round((high - low) / step))
    return _Parameter(
        distribution,
        steps,
        lambda x: min(low + steps.decode(x) * step, high),
        lambda value: steps._to_draw((value - low) / step),
    )


def _check_single_objective(study: Any) -> None:
    if (n := len(study.directions)) > 1:
        raise ValueError(f"ASNGSampler is for studies of one objective; {study.study_name!r} has {n}")
