"""SNG and Adam: the formulas, rows, known answers; what they share with ASNG is in test_asktell.py and beside it."""

import math
from typing import Any

import numpy as np
import pytest

from asng import SNG, Adam, Categorical, Integer, RandomSearch, Real
from asng.baselines import SNGState, adam_init, adam_update, sng_update
from asng.space import family_of
from tests.helpers.reference import Reference

CATEGORICAL: dict[str, Any] = {
    "a": Categorical(range(3)),
    "one": Categorical([0]),
    "b": Categorical(range(2)),
    "c": Categorical(range(6)),
}
NUMBERS: dict[str, Any] = {"n": Integer(-5, 40), "x": Real(-1, 3), "m": Integer(64, 256)}
MIXED: dict[str, Any] = {**NUMBERS, **CATEGORICAL, "lr": Real(1e-5, 1, log=True)}
SPACES: dict[str, Any] = {"categorical": CATEGORICAL, "numbers": NUMBERS, "mixed": MIXED}


def moving_loss(x, step):
    return round(float(sum(abs(value / (1 + abs(value)) - math.sin(step / 50 + i)) for i, value in enumerate(x))), 1)


class SNGReference(Reference):
    """theta <- Proj(theta + delta G / |v|), with loops."""

    def learn(self, xs, losses, delta):
        gradient, white = self.direction(xs, losses)
        norm = math.sqrt(sum(v * v for row in white for v in row))
        if any(any(g) for g in gradient):
            self.move([[delta * g / norm for g in row] for row in gradient])


class AdamReference(Reference):
    """Adam of the normalized gradient g = G / |v|, on every entry of theta, with loops."""

    first: Any = None
    second: Any = None
    updates = 0

    def learn(self, xs, losses, lr):
        gradient, white = self.direction(xs, losses)
        if not any(any(g) for g in gradient):
            return
        norm = math.sqrt(sum(v * v for row in white for v in row))
        self.first = self.first or [[0.0] * len(row) for row in gradient]
        self.second = self.second or [[0.0] * len(row) for row in gradient]
        self.updates += 1
        change = [[0.0] * len(row) for row in gradient]
        for i, row in enumerate(gradient):
            for j, entry in enumerate(row):
                g = entry / norm
                self.first[i][j] = 0.9 * self.first[i][j] + 0.1 * g
                self.second[i][j] = 0.999 * self.second[i][j] + 0.001 * g * g
                mean = self.first[i][j] / (1 - 0.9**self.updates)
                square = self.second[i][j] / (1 - 0.999**self.updates)
                change[i][j] = lr * mean / (math.sqrt(square) + 1e-8)
        self.move(change)


@pytest.mark.parametrize("population_size", [2, 3, 16])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize(
    ("method", "setting", "reference"), [(SNG, "delta", SNGReference), (Adam, "lr", AdamReference)]
)
def test_trajectory_equals_the_formulas(method, setting, reference, space, population_size):
    for size, steps in ((0.05, 200), (0.5, 100), (None, 50)):
        slow = reference(space)
        optimizer = method(space, population_size=population_size, seed=0, **{setting: size})
        for step in range(steps):
            candidates = optimizer.ask()
            losses = [moving_loss(c.x, step) for c in candidates]
            optimizer.tell(candidates, losses)
            slow.learn([c.x.tolist() for c in candidates], losses, size or 1 / slow.n_theta)
        np.testing.assert_allclose(optimizer.theta, slow.flat(slow.theta), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("population_size", [2, 5])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize(
    ("start", "update", "setting"), [(SNGState, sng_update, "delta"), (adam_init, adam_update, "lr")]
)
def test_rows_of_one_array_are_single_runs(start, update, setting, space, population_size):
    family, generator = family_of(space), np.random.default_rng(0)
    sizes = np.array([1.0, 0.1, 1e-3, 0.03])
    stacked, single = start(np.stack([family.initial()] * 4)), [start(family.initial())] * 4
    for step in range(50):
        x = family.sample(stacked.theta, population_size, generator)
        losses = np.abs(x / (1 + np.abs(x)) - math.sin(step / 20)).sum(-1)
        skipped = generator.random(4) < 0.3
        losses[skipped] = math.nan
        before, stacked = stacked, update(family, stacked, x, losses, **{setting: sizes[:, None]})
        for row in range(4):
            single[row] = update(family, single[row], x[row], losses[row], **{setting: float(sizes[row])})
            for old, new, alone in zip(before, stacked, single[row], strict=True):
                np.testing.assert_allclose(new[row], alone, rtol=1e-9, atol=1e-9)
                if skipped[row]:
                    np.testing.assert_array_equal(new[row], old[row])


@pytest.mark.parametrize("method", [SNG, Adam])
@pytest.mark.parametrize("population_size", [2, 3, 16])
def test_nothing_to_learn_changes_nothing(method, population_size):
    optimizer = method(MIXED, population_size=population_size, seed=0)
    for step in range(20):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [moving_loss(c.x, step) for c in candidates])
    before = optimizer.state_dict()["state"]
    for losses in ([0.1] * population_size, [math.nan] * population_size):
        optimizer.tell(candidates, losses)
    optimizer.tell(candidates[:1] * population_size, range(population_size))
    assert optimizer.state_dict()["state"] == before


@pytest.mark.parametrize("population_size", [2, 6])
@pytest.mark.parametrize(
    ("method", "setting"),
    [(SNG, {}), (SNG, {"delta": 0.1}), (Adam, {}), (Adam, {"lr": 0.02})],
    ids=["SNG", "SNG 0.1", "Adam", "Adam 0.02"],
)
def test_finds_the_known_answer_with_a_sensible_step(method, setting, population_size):
    space = {str(i): Categorical(list("abcd")) for i in range(10)}
    for seed in range(3):
        optimizer = method(space, population_size=population_size, seed=seed, **setting)
        for _ in range(3000 // population_size):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [sum(c.values[str(i)] != "abcd"[i % 4] for i in range(10)) for c in candidates])
        assert optimizer.mode() == {str(i): "abcd"[i % 4] for i in range(10)}


def test_constant_steps_find_a_number_too():
    for seed in range(3):
        optimizer = SNG({"n": Integer(-20, 20), "m": Integer(-20, 20)}, delta=0.1, population_size=6, seed=seed)
        for _ in range(300):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [(c.values["n"] - 3) ** 2 + (c.values["m"] + 9) ** 2 for c in candidates])
        assert optimizer.mode() == {"n": 3, "m": -9}


@pytest.mark.parametrize(("method", "setting"), [(SNG, "delta"), (Adam, "lr")])
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e6])
def test_state_stays_in_its_bounds_for_any_step(method, setting, size):
    optimizer = method(MIXED, seed=0, **{setting: size})
    generator = np.random.default_rng(0)
    for _ in range(200):
        optimizer.tell(optimizer.ask(), generator.choice([0.0, 1.0, math.nan, math.inf, -1e300], 2))
    distribution = optimizer.distribution()
    for name, variable in MIXED.items():
        if isinstance(variable, Categorical):
            assert distribution[name].sum() == pytest.approx(1, abs=1e-12)
            assert distribution[name].min() > 0
        else:
            assert variable.low <= distribution[name].mean <= variable.high
            assert 0 < distribution[name].std < math.inf


@pytest.mark.parametrize("method", [SNG, Adam])
def test_without_a_choice_nothing_changes(method):
    optimizer = method({"a": Categorical([1]), "b": Categorical([2])}, seed=0)
    optimizer.tell(optimizer.ask(), [1, 2])
    assert optimizer.theta.tolist() == [1.0, 1.0]
    assert optimizer.mode() == {"a": 1, "b": 2}


def test_uniform_draws_evenly_and_learns_nothing_but_the_best():
    optimizer = RandomSearch({"a": Categorical([0, 1, 2, 3]), "n": Integer(0, 10)}, seed=3)
    before = optimizer.theta.copy()
    drawn = []
    for _ in range(500):
        candidates = optimizer.ask()
        drawn += [candidate.values["a"] for candidate in candidates]
        optimizer.tell(candidates, [candidate.values["a"] + candidate.values["n"] / 100 for candidate in candidates])
    assert np.array_equal(optimizer.theta, before)
    counts = np.bincount(drawn, minlength=4)
    assert np.all(np.abs(counts - 250) < 5 * np.sqrt(1000 * 0.25 * 0.75))
    assert optimizer.best is not None
    assert optimizer.best.values["a"] == 0
    again = RandomSearch(optimizer.space, seed=4)
    again.load_state_dict(optimizer.state_dict())
    assert again.ask()[0].values == optimizer.ask()[0].values


def test_random_search_draws_a_third_of_its_reals_at_bounds_where_uniform_numbers_have_none():
    wide = Real(1e-3, 10, log=True)
    drawn = [candidate.values["x"] for candidate in RandomSearch({"x": wide}, seed=0).ask(10_000)]
    assert np.mean(np.isin(drawn, [wide.low, wide.high])) == pytest.approx(0.317, abs=0.02)
    rng = np.random.default_rng(0)
    evenly = np.log([wide.decode(rng.uniform(-1, 1)) for _ in range(10_000)])
    counts, _ = np.histogram(evenly, 4, (math.log(1e-3), math.log(10)))
    assert np.all(np.abs(counts - 2500) < 5 * np.sqrt(10_000 * 0.25 * 0.75))
