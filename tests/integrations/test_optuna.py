"""ASNGSampler by Optuna's own tests of samplers, and by what those leave out."""

import copy
import doctest
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

optuna = pytest.importorskip("optuna", minversion="5")
from optuna.testing.pytest_samplers import (  # noqa: E402
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

import asng.integrations.optuna  # noqa: E402
from asng.integrations.optuna import ASNGSampler  # noqa: E402

ROOT = Path(__file__).parents[2]


class TestOptunasOwn(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return ASNGSampler


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    yield
    optuna.logging.set_verbosity(before)


def mixed(trial):
    """All kinds of parameters; the lowest value is 0."""
    loss = sum(trial.suggest_categorical(f"c{i}", ["a", "b", None]) != "b" for i in range(4))
    loss += abs(trial.suggest_float("x", -5, 5) - 1.5) + abs(trial.suggest_float("s", 0, 1, step=0.25) - 0.75)
    loss += abs(trial.suggest_int("n", 1, 1000, log=True) - 30) / 10 + abs(trial.suggest_int("m", 0, 100, step=5) - 35)
    return loss + trial.suggest_float("lr", 1e-5, 1, log=True)


def conditional(trial):
    """The better half of the space has parameters of its own."""
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        return 20 + (trial.suggest_float("xa", -5, 5) - 2) ** 2
    depth = trial.suggest_int("depth", 1, 4)
    return sum(abs(trial.suggest_int(f"width{i}", 0, 40) - 10 * i) for i in range(depth)) + (depth != 3)


def optimize(objective, n_trials, sampler=None, **settings):
    study = optuna.create_study(sampler=sampler or ASNGSampler(seed=0), **settings)
    study.optimize(objective, n_trials=n_trials, catch=(ZeroDivisionError,))
    return study


def params_of(study):
    return [trial.params for trial in study.trials]


def distribution_of(study):
    """What a new sampler learns from a study."""
    sampler = ASNGSampler(population_size=4)
    sampler.infer_relative_search_space(study, None)
    assert sampler._optimizer is not None
    return sampler._optimizer.state_dict()["state"]


def test_all_kinds_of_parameters_are_learned():
    values = [optimize(mixed, 300, ASNGSampler(seed=seed)).best_value for seed in range(3)]
    random = [optimize(mixed, 300, optuna.samplers.RandomSampler(seed=seed)).best_value for seed in range(3)]
    assert max(values) < min(random)


def test_conditional_parameters_are_learned_where_they_are_active():
    study = optimize(conditional, 300)
    assert study.best_params["kind"] == "b"
    assert study.best_value < 5
    recent = [trial.params["kind"] for trial in study.trials[-50:]]
    assert recent.count("b") > 35


def ellipsoid(trial):
    """Ten times as steep across the diagonals as along them."""
    x, y = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
    return (x + y - 3) ** 2 + 0.01 * (x - y) ** 2


def leading_ones(trial):
    return 12 - next((i for i in range(12) if trial.suggest_categorical(f"bit{i}", [0, 1]) != i % 2), 12)


@pytest.mark.parametrize(("objective", "highest"), [(ellipsoid, 1e-4), (leading_ones, 0)])
def test_the_sampler_searches_as_minimize_does(objective, highest):
    """Numbers have covariances, and the best of the last trials are ranked again."""
    values = [optimize(objective, 200, ASNGSampler(seed=seed)).best_value for seed in range(5)]
    assert sorted(values)[2] <= highest


def test_few_integers_are_not_tried_over_and_over():
    """20 trials for ten values: each seed finds the lowest one, in the numbers of conditional trials, too."""

    def objective(trial):
        return trial.suggest_int("n", 0, 9) if trial.suggest_categorical("kind", ["a", "b"]) == "b" else 10

    for seed in (0, 14, 15, 22, 51):
        alone = optimize(lambda trial: trial.suggest_int("n", 0, 9), 20, ASNGSampler(seed=seed))
        assert alone.best_value == 0
        assert optimize(objective, 60, ASNGSampler(seed=seed)).best_value == 0


def test_noisy_values_are_averaged_over_more_trials():
    """The same study under both settings: a step of the mean is half as long where values are noisy."""
    study = optimize(ellipsoid, 6, optuna.samplers.RandomSampler(seed=0))
    means = []
    for noisy in (False, True):
        sampler = ASNGSampler(population_size=6, noisy=noisy)
        sampler.infer_relative_search_space(study, None)
        assert sampler._optimizer is not None
        means.append(sampler._optimizer.mode()["x"])
    assert means[1] == pytest.approx(means[0] / 2) != 0


@pytest.mark.parametrize(
    ("settings", "size"),
    [({}, 10), ({"n_trials": 100}, 6), ({"n_trials": 10_000}, 10), ({"n_trials": 10_000, "noisy": True}, 250)],
)
def test_the_population_of_few_trials_is_that_of_minimize(settings, size):
    study = optimize(mixed, 2, ASNGSampler(**settings))
    (sampler := study.sampler).infer_relative_search_space(study, None)
    assert len(sampler._parameters) == 9
    assert sampler._optimizer.population_size == size
    space = {name: parameter.variable for name, parameter in sampler._parameters.items()}
    evaluations = settings.get("n_trials", 1000)
    noisy = settings.get("noisy", False)
    minimized = asng.minimize(lambda values: 0.0, space, evaluations=evaluations, noisy=noisy, target=0.0)
    assert minimized.optimizer.population_size == size


def test_maximization_is_minimization_of_the_negative():
    down = optimize(mixed, 60)
    up = optimize(lambda trial: -mixed(trial), 60, direction="maximize")
    assert params_of(up) == params_of(down)


def test_the_same_seed_gives_the_same_trials():
    seeds: tuple[Any, ...] = (3, torch.tensor(3), 4)
    first, second, other = (optimize(mixed, 40, ASNGSampler(seed=seed)) for seed in seeds)
    assert params_of(first) == params_of(second) != params_of(other)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [mixed, conditional])
def test_a_study_on_sqlite_continues_exactly(tmp_path, objective):
    url = f"sqlite:///{tmp_path}/study.db"
    for n_trials in (1, 10, 19):
        part = optuna.create_study(storage=url, study_name="it", sampler=ASNGSampler(seed=5), load_if_exists=True)
        part.optimize(objective, n_trials=n_trials)
    learned = distribution_of(part)
    whole = optimize(objective, 30, ASNGSampler(seed=5))
    assert params_of(part) == params_of(whole)
    assert learned == distribution_of(whole)


PROGRAM = """
import sys
import optuna
from asng.integrations.optuna import ASNGSampler
from tests.integrations.test_optuna import mixed

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.load_study(storage=sys.argv[1], study_name="it", sampler=ASNGSampler(seed=1))
study.optimize(mixed, n_trials=25)
"""


@pytest.mark.slow
def test_processes_on_one_storage_learn_from_each_other(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=url, study_name="it", sampler=ASNGSampler(seed=1))
    arguments = [sys.executable, "-c", PROGRAM, url]
    processes = [subprocess.Popen(arguments, cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert [trial.number for trial in study.trials] == list(range(50))
    values = [trial.value for trial in study.trials]
    assert sum(values[-15:]) < 0.8 * sum(values[:15])
    distinct = {tuple(sorted(trial.params.items(), key=str)) for trial in study.trials}
    assert len(distinct) == 50  # although both have the same seed


def test_threads_share_a_sampler():
    study = optuna.create_study(sampler=ASNGSampler(seed=0))
    study.optimize(mixed, n_trials=120, n_jobs=4)
    assert len(study.trials) == 120
    assert len(study.sampler._seen) + 4 >= 116


def failing_loss(trial):
    loss = mixed(trial)
    if trial.number % 3 == 2:
        return 1 / 0
    return loss


def test_failed_trials_are_ignored():
    study = optimize(failing_loss, 60)
    assert sum(trial.state == optuna.trial.TrialState.FAIL for trial in study.trials) == 20
    without = optuna.create_study()
    without.add_trials([trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE])
    assert distribution_of(study) == distribution_of(without)


def add(study, x, state="COMPLETE", value=None, steps=(), constraints=None):
    distributions = {"x": optuna.distributions.FloatDistribution(-1, 1)}
    intermediate = dict(enumerate(steps))
    state = optuna.trial.TrialState[state]
    trial = optuna.trial.create_trial(
        params={"x": x},
        distributions=distributions,
        value=value,
        state=state,
        intermediate_values=intermediate,
        constraints=constraints,
    )
    study.add_trial(trial)


@pytest.mark.parametrize(
    "first",
    [
        {"value": 5.0},
        {"state": "PRUNED", "steps": [9.0, 8.0, 7.0]},
        {"state": "PRUNED", "steps": [1.0, 3.0]},
        {"state": "PRUNED", "steps": [1.0, 4.0]},
        {"state": "PRUNED", "steps": [0.0]},
        {"state": "PRUNED"},
        {"value": 0.0, "constraints": {"memory": 0.5, "time": -1.0}},
        {"value": -1.0, "constraints": {"memory": 0.5, "time": 0.1}},
    ],
    ids=lambda settings: str(list(settings.values())),
)
def test_trials_rank_completed_then_pruned_then_infeasible(first, request):
    """Each stands before all others that follow it in this list."""
    ranking: list[Any] = request.node.get_closest_marker("parametrize").args[1]
    for second in ranking[ranking.index(first) + 1 :]:
        study = optuna.create_study()
        for x, settings in ((0.5, first), (-0.5, second)):
            add(study, x, **settings)
        sampler = ASNGSampler(population_size=2, seed=0)
        sampler.infer_relative_search_space(study, None)
        assert sampler._optimizer is not None
        assert sampler._optimizer.mode()["x"] > 0  # it moved toward the first


@pytest.mark.parametrize(
    "settings",
    [{"low": 0, "high": 1, "step": 1e-6}, {"low": 0, "high": 10**6}, {"low": 10**9, "high": 10**9 + 10}],
    ids=str,
)
def test_many_steps_are_searched_like_few(settings):
    low, width = settings["low"], settings["high"] - settings["low"]
    suggest = "suggest_float" if "step" in settings else "suggest_int"

    def loss(trial):
        share = (getattr(trial, suggest)("r", **settings) - low) / width
        return (share - 0.6) ** 2 + (trial.suggest_float("x", 0, 1) - 0.4) ** 2

    study = optimize(loss, 100, ASNGSampler(n_trials=100, seed=0))
    assert study.best_value < 1e-3
    parameter = study.sampler._parameters["r"]
    for trial in study.trials:  # as if another sampler had drawn them
        x = parameter.to_x(trial.params["r"])
        assert parameter.to_value(x) == pytest.approx(trial.params["r"], abs=1e-9)


def test_constraints_lead_into_the_feasible_region():
    def constrained_loss(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        trial.set_constraint("sum", 1.4 - x - y)
        return x

    study = optimize(constrained_loss, 150)
    feasible = [trial for trial in study.trials[-40:] if trial.constraints["sum"] <= 0]
    assert len(feasible) > 10
    assert study.best_trial.constraints["sum"] <= 0


def test_pruned_studies_run():
    def pruned_loss(trial):
        loss = mixed(trial)
        for step in range(3):
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study = optimize(pruned_loss, 60, pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    states = [trial.state.name for trial in study.trials]
    assert set(states) == {"COMPLETE", "PRUNED"}


def test_enqueued_trials_and_those_of_other_samplers_count():
    study = optimize(mixed, 30, optuna.samplers.RandomSampler(seed=0))
    best = {**study.best_params}
    study.sampler = ASNGSampler(seed=0)
    study.enqueue_trial(best)
    study.optimize(mixed, n_trials=20)
    assert study.trials[30].params == best
    assert len(study.sampler._seen) >= 49


@pytest.mark.parametrize("settings", [{"population_size": 5}, {"n_trials": 50}])
def test_a_copied_or_pickled_sampler_samples_the_same(settings):
    sampler = ASNGSampler(seed=7, **settings)
    study = optimize(mixed, 20, sampler)
    copies = [copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))]
    spaces = [each.infer_relative_search_space(study, None) for each in (sampler, *copies)]
    assert spaces[0] == spaces[1] == spaces[2]
    draws = [each._draw_new(each._optimizer, 20) for each in (sampler, *copies)]
    assert draws[0] == draws[1] == draws[2]


def test_a_sampler_serves_one_study_after_another():
    sampler = ASNGSampler(seed=0)
    for study_name in (None, "it", "it"):  # each in a storage of its own
        optimize(mixed, 20, sampler, study_name=study_name)
        repeated = optimize(conditional, 20, sampler, study_name=study_name)
        assert params_of(repeated) == params_of(optimize(conditional, 20))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"population_size": 1}, "population_size must be at least 2, got 1"),
        ({"n_trials": 0}, "n_trials must be at least 1, got 0"),
        ({"noisy": "yes"}, "noisy must be True or False, got 'yes'"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
        ({"independent_sampler": 5}, r"a sampler of Optuna, such as RandomSampler\(\), got 5"),
        ({"independent_sampler": optuna.samplers.RandomSampler}, "a sampler of Optuna, .* got <class"),
    ],
)
def test_wrong_arguments_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ASNGSampler(**given)


def test_several_objectives_are_refused():
    study = optuna.create_study(directions=["minimize", "maximize"], study_name="two", sampler=ASNGSampler())
    with pytest.raises(ValueError, match="studies of one objective; 'two' has 2"):
        study.ask().suggest_float("x", 0, 1)


def test_without_optuna_the_error_says_what_to_install():
    program = "import sys; sys.modules['optuna'] = None; import asng.integrations.optuna"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: asng.integrations.optuna needs Optuna 5" in done.stderr
    assert "pip install 'asng[optuna]'" in done.stderr


def test_the_example_of_the_docstring_holds():
    assert doctest.testmod(asng.integrations.optuna) == (0, 5)
