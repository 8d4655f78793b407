"""The toy problem: the batched loop against a slow and obvious one, repeatability, and what the sweep reports."""
# mypy: disable-error-code="arg-type"

import dataclasses
import json
import math

import numpy as np
import pytest

from asng.experiments import toy
from asng.experiments.toy import Setting, ToySettings

pytestmark = pytest.mark.long

SMALL = ToySettings(
    variables=10, choices=4, runs=4, iterations=1500, lrs=(0.05,), powers=(0.0, 0.5, 1.5), alphas=(1.5,)
)


# The reference: one number at a time, written from the formulas and sharing nothing with the package but its draws.


class Reference:
    """One run: its weights, its distribution, and one of the three methods."""

    def __init__(self, sweep, setting, x):
        self.sweep, self.setting = sweep, setting
        self.D, self.K = sweep.variables, sweep.choices
        self.x = [[float(x[i * self.K + j]) for j in range(self.K)] for i in range(self.D)]
        self.momentum = [[0.0] * self.K for _ in range(self.D)]
        self.theta = [[1 / self.K] * self.K for _ in range(self.D)]
        self.n_theta = self.D * (self.K - 1)
        self.delta0 = self.n_theta**-setting.power
        self.s = [[0.0] * (self.K - 1) for _ in range(self.D)]
        self.gamma, self.Delta = 0.0, 1.0
        self.m = [[0.0] * self.K for _ in range(self.D)]
        self.v = [[0.0] * self.K for _ in range(self.D)]
        self.updates = 0

    def draw_sweep(self, uniform):
        draws = []
        for i, r in enumerate(uniform):
            category, cumulated = 0, self.theta[i][0]
            while r >= cumulated and category < self.K - 1:
                category += 1
                cumulated += self.theta[i][category]
            draws.append(category)
        return draws

    def f(self, c, z):
        return sum((self.x[i][c[i]] - z[i]) ** 2 + c[i] / self.K for i in range(self.D))

    def reaches_target(self, c):
        return self.f(c, [0.0] * self.D) < 1 / self.K

    def iterate(self, t, uniform, normal):
        """One iteration from uniform (4, D) and normal (2, D) numbers; whether it draws the target."""
        samples = [self.draw_sweep(row) for row in uniform]
        z_weights, z_theta = normal / self.K
        success = any(self.reaches_target(c) for c in samples[:2])
        self.weight_step(t, samples[:2], z_weights)
        success = success or any(self.reaches_target(c) for c in samples[2:])
        self.theta_step(samples[2:], [self.f(c, z_theta) for c in samples[2:]])
        return success

    def weight_step(self, t, samples, z):
        gradient = [[0.0] * self.K for _ in range(self.D)]
        for c in samples:
            for i in range(self.D):
                gradient[i][c[i]] += 2 * (self.x[i][c[i]] - z[i]) / len(samples)
        lr = self.setting.lr * (1 + math.cos(math.pi * t / self.sweep.iterations)) / 2
        for i in range(self.D):
            for j in range(self.K):
                self.momentum[i][j] = 0.9 * self.momentum[i][j] + gradient[i][j]
                self.x[i][j] -= lr * self.momentum[i][j]

    def theta_step(self, samples, losses):
        if samples[0] == samples[1] or losses[0] == losses[1]:
            return
        better, worse = samples if losses[0] < losses[1] else samples[::-1]
        gradient = [[((better[i] == j) - (worse[i] == j)) / 2 for j in range(self.K)] for i in range(self.D)]
        white = [self.whiten(self.theta[i], gradient[i]) for i in range(self.D)]
        norm = math.sqrt(sum(value**2 for row in white for value in row))
        if self.setting.method == "ASNG":
            self.move(gradient, self.delta0 / self.Delta / norm)
            self.adapt(white, norm)
        elif self.setting.method == "SNG":
            self.move(gradient, self.delta0 / norm)
        else:
            self.move(self.adam([[g / norm for g in row] for row in gradient]), self.delta0)

    def whiten(self, theta, gradient):
        free, last = sum(gradient[:-1]), theta[-1] + math.sqrt(theta[-1])
        pairs = list(zip(theta, gradient, strict=True))[:-1]
        return [g / math.sqrt(p) + math.sqrt(p) * free / last for p, g in pairs]

    def adapt(self, white, norm):
        beta = self.delta0 / self.Delta / math.sqrt(self.n_theta)
        for i in range(self.D):
            for j in range(self.K - 1):
                self.s[i][j] = (1 - beta) * self.s[i][j] + math.sqrt(beta * (2 - beta)) * white[i][j] / norm
        self.gamma = (1 - beta) ** 2 * self.gamma + beta * (2 - beta)
        squared = sum(value**2 for row in self.s for value in row)
        self.Delta *= math.exp(beta * (self.gamma - squared / self.setting.alpha))
        self.Delta = max(self.Delta, self.delta0 / math.sqrt(self.n_theta))

    def adam(self, gradient):
        self.updates += 1
        change = [[0.0] * self.K for _ in range(self.D)]
        for i in range(self.D):
            for j in range(self.K):
                self.m[i][j] = 0.9 * self.m[i][j] + 0.1 * gradient[i][j]
                self.v[i][j] = 0.999 * self.v[i][j] + 0.001 * gradient[i][j] ** 2
                m, v = self.m[i][j] / (1 - 0.9**self.updates), self.v[i][j] / (1 - 0.999**self.updates)
                change[i][j] = m / (math.sqrt(v) + 1e-8)
        return change

    def move(self, direction, length):
        smallest = 1 / (self.D * (self.K - 1))
        for i in range(self.D):
            moved = [max(p + length * d, smallest) for p, d in zip(self.theta[i], direction[i], strict=True)]
            surplus = (1 - sum(moved)) / (sum(moved) - self.K * smallest)
            self.theta[i] = [p + surplus * (p - smallest) for p in moved]


def reference(sweep, setting):
    generator = toy._setting_generator(sweep, setting)
    start = generator.standard_normal((sweep.runs, sweep.variables * sweep.choices))
    running = {number: Reference(sweep, setting, row) for number, row in enumerate(start)}
    reached: list[int | None] = [None] * sweep.runs
    for t in range(sweep.iterations):
        uniform = generator.random((len(running), 4, sweep.variables))
        normal = generator.standard_normal((len(running), 2, sweep.variables))
        for number, *draws in zip(list(running), uniform, normal, strict=True):
            if running[number].iterate(t, *draws):
                reached[number] = t + 1
                del running[number]
        if not running:
            break
    return reached


@pytest.mark.parametrize(
    "setting",
    [
        Setting("ASNG", 0.05, 0.0, 1.5),
        Setting("ASNG", 0.005, 1.0, 3.0),
        Setting("ASNG", 0.05, 2.0, 1.1),
        Setting("SNG", 0.05, 0.5, None),
        Setting("SNG", 0.0005, 0.0, None),
        Setting("Adam", 0.05, 1.0, None),
        Setting("Adam", 0.005, 0.0, None),
    ],
    ids=str,
)
def test_all_runs_at_once_do_what_a_slow_loop_does_for_each(setting):
    assert toy.simulate(SMALL, setting) == reference(SMALL, setting)


def test_the_comparison_with_the_reference_covers_success_and_failure():
    some = [
        toy.simulate(SMALL, Setting("ASNG", 0.05, 0.0, 1.5)),
        toy.simulate(SMALL, Setting("SNG", 0.0005, 0.0, None)),
    ]
    assert all(isinstance(iteration, int) and 1 <= iteration <= SMALL.iterations for iteration in some[0])
    assert None in some[1]


# Known answers.


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.5])
def test_asng_reaches_the_target_from_any_of_these_step_sizes(power):
    sweep = ToySettings(runs=5, iterations=20_000)
    reached = toy.simulate(sweep, Setting("ASNG", 0.05, power, 1.5))
    successful = [iteration for iteration in reached if iteration is not None]
    assert len(successful) == sweep.runs
    assert 1_000 < np.median(successful) < 15_000


def test_a_constant_step_size_that_is_too_small_never_gets_there():
    sweep = ToySettings(runs=5, iterations=3_000)
    assert toy.simulate(sweep, Setting("SNG", 0.05, 2.5, None)) == [None] * 5


def test_nan_is_never_a_success():
    sweep = ToySettings(runs=3, iterations=400)
    assert toy.simulate(sweep, Setting("ASNG", 1e300, 0.0, 1.5)) == [None] * 3


# Same seed, same numbers.


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    setting = Setting("ASNG", 0.05, 0.5, 1.5)
    once, again = toy.simulate(SMALL, setting), toy.simulate(SMALL, setting)
    other = toy.simulate(dataclasses.replace(SMALL, seed=2), setting)
    assert once == again != other


def test_settings_are_independent_of_each_other():
    first = [toy._setting_generator(SMALL, setting).random() for setting in toy.settings_of(ToySettings())]
    assert len(set(first)) == len(first)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    heard: list[float] = []
    toy.run(SMALL, folder, heard.append)
    return folder, heard


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("summary.json", "toy.svg", "toy.png")}


def test_the_number_of_workers_does_not_change_the_results(finished_run, tmp_path):
    toy.run(dataclasses.replace(SMALL, workers=1), tmp_path)
    assert files(tmp_path) == files(finished_run[0])


def test_a_sweep_that_lost_its_end_continues_to_the_same_results(finished_run, tmp_path):
    lines = (finished_run[0] / "results.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == len(toy.settings_of(SMALL)) == 9
    (tmp_path / "config.json").write_bytes((finished_run[0] / "config.json").read_bytes())
    (tmp_path / "results.jsonl").write_text("".join(lines[:5]) + lines[5][:17])
    heard: list[float] = []
    toy.run(SMALL, tmp_path, heard.append)
    assert heard[0] == pytest.approx(5 / 9)
    assert files(tmp_path) == files(finished_run[0])
    assert (tmp_path / "results.jsonl").read_text().startswith("".join(lines[:5]))


def test_a_finished_sweep_is_not_computed_again(finished_run, monkeypatch):
    before = files(finished_run[0])
    monkeypatch.setattr(toy, "simulate", pytest.fail)
    toy.run(SMALL, finished_run[0])
    assert files(finished_run[0]) == before


def test_progress_grows_to_one_with_every_setting(finished_run):
    assert finished_run[1] == pytest.approx([number / 9 for number in range(10)])


def test_another_configuration_does_not_enter_the_folder(finished_run):
    with pytest.raises(ValueError, match="runs: 4 there, 5 here"):
        toy.run(dataclasses.replace(SMALL, runs=5), finished_run[0])


# The report.


def test_the_measure_is_the_median_of_the_successful_over_the_success_rate():
    point = toy._point(Setting("SNG", 0.05, 1.0, None), 0.01, [10, None, 30, None])
    assert point["successes"] == 2
    assert point["median"] == 20
    assert point["measure"] == 40
    assert toy._point(Setting("SNG", 0.05, 1.0, None), 0.01, [None])["measure"] is None


def test_ranges_say_where_all_runs_succeed_and_where_any():
    sweep = ToySettings(runs=2, lrs=(0.05,), powers=(0, 1, 2, 3), alphas=(1.5,))
    reached: dict[Setting, list[int | None]] = {setting: [None, None] for setting in toy.settings_of(sweep)}
    for power, iterations in enumerate([(9, 9), (5, 7), (None, 2), (8, 8)]):
        reached[Setting("SNG", 0.05, power, None)] = list(iterations)
    asng, sng, adam = toy.summarize(sweep, reached)["ranges"]
    assert [row["method"] for row in (asng, sng, adam)] == ["ASNG", "SNG", "Adam"]
    assert sng["all"] == [(1, 120.0**-1), (120.0**-3, 120.0**-3)]
    assert sng["any"] == [(1, 120.0**-3)]
    assert (sng["best"]["power"], sng["best"]["measure"]) == (2, 4)
    assert (asng["all"], asng["any"], asng["best"]) == ([], [], None)


def test_the_summary_is_complete_and_the_pictures_are_there(finished_run):
    summary = json.loads((finished_run[0] / "summary.json").read_text())
    assert [(p["method"], p["power"]) for p in summary["points"]] == [
        (method, power) for method in toy.METHODS for power in SMALL.powers
    ]
    assert (finished_run[0] / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (finished_run[0] / "toy.svg").read_text()


def test_a_sweep_without_any_success_can_be_drawn(tmp_path):
    sweep = ToySettings(runs=1)
    toy.draw_sweep(toy.summarize(sweep, {setting: [None] for setting in toy.settings_of(sweep)}), tmp_path)
    assert (tmp_path / "toy.png").stat().st_size > 10_000


# Wrong input.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"lrs": ()}, r"lrs must be one or more different finite numbers, got \(\)"),
        ({"powers": (1.0, 1.0)}, "powers must be one or more different"),
        ({"powers": (math.nan,)}, "powers must be one or more different finite"),
        ({"lrs": (0.1, 0.0)}, "lrs must be above 0"),
        ({"alphas": (1.0,)}, "alphas must be above 1"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_their_name_and_value(wrong, message):
    with pytest.raises(ValueError, match=message):
        ToySettings(**wrong)


def test_the_defaults_are_the_papers():
    sweep = ToySettings()
    assert (sweep.variables, sweep.choices, sweep.runs, sweep.iterations) == (30, 5, 100, 100_000)
    assert sweep.lrs == (0.05, 0.0005)
    assert set(sweep.powers) >= {k / 4 for k in range(11)}
    assert sweep.alphas == (1.1, 1.25, 1.5, 2.0, 3.0)
