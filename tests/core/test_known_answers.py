"""ASNG finds known answers, also where there is noise or hardly a choice, and its state stays in its bounds."""
# mypy: disable-error-code="union-attr"

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asng import ASNG, Categorical, Integer, Real
from tests.helpers.trajectories import BLEND, LETTERS, inner, run

pytestmark = pytest.mark.long

# Problems of known answer ---------------------------------------------------------------------------


GRID: dict[str, Any] = {str(i): Integer(-20, 20) for i in range(3)}
PLANE: dict[str, Any] = {"x": Real(-3, 5), "y": Real(0, 1)}
SCALES: dict[str, Any] = {"x": Real(1e-5, 1, log=True), "y": Real(1, 1e6, log=True)}


def letters(v):
    return sum(v[str(i)] != "abcd"[i % 4] for i in range(10))


def grid(v):
    return sum(abs(v[str(i)] - target) for i, target in enumerate((3, -12, 8)))


def plane(v):
    return (v["x"] - 1.5) ** 2 + 50 * (v["y"] - 0.3) ** 2


def scales(v):
    return math.log10(v["x"] / 1e-3) ** 2 + math.log10(v["y"] / 1e2) ** 2


def blend(v):
    distances = (v["n"] - 40) / 16, 4 * (v["x"] - 0.3), math.log10(v["lr"] / 1e-3)
    return (v["op"] != "b") + sum(d * d for d in distances)


PROBLEMS: dict[str, Any] = {
    "categorical": (LETTERS, letters, 0),
    "integer": (GRID, grid, 0),
    "real": (PLANE, plane, 1e-3),
    "log": (SCALES, scales, 1e-2),
    "mixed": (BLEND, blend, 0.05),
}


def losses_of(space, f, evaluations, seeds, **settings):
    """Per seed, the lowest loss met and f at the mode."""
    optimizers = [ASNG(space, seed=seed, **settings) for seed in range(seeds)]
    for optimizer in optimizers:
        for _ in range(evaluations // settings["population_size"]):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [f(c.values) for c in candidates])
    return [optimizer.best.loss for optimizer in optimizers], [f(optimizer.mode()) for optimizer in optimizers]


@pytest.mark.parametrize(("population_size", "mirrored"), [(2, False), (4, True), (7, True), (16, True), (16, False)])
@pytest.mark.parametrize(("space", "f", "tolerance"), PROBLEMS.values(), ids=PROBLEMS)
def test_finds_the_known_answer(space, f, tolerance, population_size, mirrored):
    best, mode = losses_of(space, f, 4000, 5, population_size=population_size, mirrored=mirrored)
    assert sorted(best)[2 if f is blend else 4] <= tolerance, best
    assert sorted(mode)[2] <= tolerance, mode  # it moves on, so that one may be off the answer at the end


@pytest.mark.parametrize(("space", "f", "tolerance"), PROBLEMS.values(), ids=PROBLEMS)
def test_one_mirrored_pair_finds_it_more_often_than_not(space, f, tolerance):
    """A pair tells nothing about the width, so that numbers sometimes stop short of the answer."""
    _, mode = losses_of(space, f, 3000, 7, population_size=2)
    assert sorted(mode)[3] <= 2 * tolerance + (f is grid), mode


def test_noise_on_the_loss_slows_but_does_not_mislead():
    wrong = []
    for seed in range(3):
        noise = np.random.default_rng(seed)
        optimizer = ASNG(LETTERS, seed=seed)
        for _ in range(3000):
            candidates = optimizer.ask()
            optimizer.tell(candidates, [letters(c.values) + noise.normal() for c in candidates])
        wrong.append(letters(optimizer.mode()))
    assert sum(wrong) <= 1, wrong


def test_noise_alone_shrinks_the_step_and_signal_enlarges_it():
    noise = np.random.default_rng(0)
    assert run(ASNG(LETTERS, seed=0), 2000, loss=lambda x, step: noise.random()).delta < 0.1
    assert run(ASNG(LETTERS, seed=0, delta_init=0.01), 600, loss=lambda x, step: float(sum(x))).delta > 0.02


@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_initial_step_still_finds_the_answer(seed):
    optimizer = ASNG({str(i): Categorical(range(3)) for i in range(3)}, delta_init=1e-5, seed=seed)
    losses = []
    for _ in range(13_000):
        candidates = optimizer.ask()
        losses += [c.x.sum() for c in candidates]
        optimizer.tell(candidates, losses[-2:])
    assert np.isfinite(optimizer.theta).all()
    assert optimizer.delta > 1e-2
    assert np.mean(losses[:2000]) > 2.5  # by chance 3
    assert np.mean(losses[-2000:]) < 2.1  # no theta in the allowed set has less than 1.5


# Degenerate spaces ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "choices", "smallest"), [(1, 2, 1 / 4), (1, 3, 1 / 6), (2, 2, 1 / 4), (1, 50, 1 / 100), (3, 2, 1 / 3)]
)
def test_few_variables_keep_room_to_move(variables, choices, smallest):
    optimizer = ASNG({str(i): Categorical(range(choices)) for i in range(variables)}, seed=0)
    thetas = []
    for _ in range(600):
        run(optimizer, 1, loss=lambda x, step: float(sum(x)))
        thetas.append(optimizer.theta.reshape(variables, choices))
    assert np.mean(thetas[200:], axis=0).argmax(-1).tolist() == [0] * variables
    assert np.min(thetas) == pytest.approx(smallest, rel=1e-12)
    assert np.max(thetas) == pytest.approx(1 - (choices - 1) * smallest, rel=0.02)


@pytest.mark.parametrize("variables", [1, 3])
def test_without_a_choice_nothing_changes(variables):
    optimizer = ASNG({str(i): Categorical(["only"]) for i in range(variables)}, seed=0)
    before = inner(optimizer)
    candidates = optimizer.ask(3)
    optimizer.tell(candidates, [3, 1, 2])
    assert inner(optimizer) == before
    assert optimizer.theta.tolist() == [1.0] * variables
    assert optimizer.best.loss == 1
    assert optimizer.mode() == candidates[0].values == {str(i): "only" for i in range(variables)}


def test_a_variable_of_one_choice_counts_nowhere():
    with_one = ASNG({"a": Categorical(range(3)), "one": Categorical([7]), "b": Categorical(range(3))}, seed=0)
    without = ASNG({"a": Categorical(range(3)), "b": Categorical(range(3))}, seed=0)
    for first, second in [(0, 2), (1, 0), (2, 0), (1, 2)]:
        for optimizer, template in ((with_one, [first, 0.0, second]), (without, [first, second])):
            pair = optimizer.ask(2)
            pair[0].x, pair[1].x = np.array(template, dtype=float), np.zeros(len(template))
            optimizer.tell(pair, [1, 2])
    np.testing.assert_allclose(np.delete(with_one.theta, 3), without.theta, rtol=1e-12)
    assert with_one.delta == pytest.approx(without.delta, rel=1e-12)


def test_two_thousand_variables_are_learned():
    optimizer = ASNG({str(i): Categorical(range(2)) for i in range(2000)}, seed=0)
    for _ in range(2500):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [c.x.sum() for c in candidates])
    assert sum(optimizer.mode().values()) < 600  # 1,000 by chance


# The state stays in its bounds ----------------------------------------------------------------------


SMALL: dict[str, Any] = {
    "a": Categorical(range(3)),
    "b": Categorical(range(2)),
    "one": Categorical([0]),
    "n": Integer(-3, 9),
}
SMALL |= {"x": Real(-1, 1), "lr": Real(1e-4, 1, log=True)}
ANY_LOSS = st.floats() | st.integers(-3, 3) | st.just(10**400)


@settings(max_examples=60)
@given(
    st.lists(st.lists(ANY_LOSS, min_size=2, max_size=6), min_size=1, max_size=40),
    st.sampled_from([1e-5, 0.1, 1.0, 50.0]),
    st.sampled_from([0.0, 1e3]),
)
def test_state_stays_in_its_bounds_whatever_is_told(rounds, delta_init, shift):
    shifted = {**SMALL, "n": Integer(int(shift) - 3, int(shift) + 9)}
    optimizer = ASNG(shifted, delta_init=delta_init, seed=1)
    for losses in rounds * 3:
        optimizer.tell(optimizer.ask(len(losses)), losses)
    distribution = optimizer.distribution()
    for name, smallest in (("a", 1 / 4), ("b", 1 / 4)):
        assert distribution[name].min() >= smallest - 1e-12
        assert distribution[name].sum() == pytest.approx(1, abs=1e-12)
    assert distribution["one"].tolist() == [1.0]
    bounds = {"n": (shift - 3, shift + 9, 0.25, 6), "x": (-1, 1, 0.002, 1), "lr": (1e-4, 1, 0, math.log(1e4) / 2)}
    for name, (low, high, std_min, std_max) in bounds.items():
        assert low <= distribution[name].mean <= high
        assert std_min - 1e-8 <= distribution[name].std <= std_max + 1e-8
    assert np.isfinite(optimizer.theta).all()
    assert np.isfinite(optimizer.path).all()
    assert 0 <= optimizer.gamma <= 1 + 1e-12
    assert 0 < optimizer.delta <= math.sqrt(3 + 6) * (1 + 1e-12)  # beta <= 1
