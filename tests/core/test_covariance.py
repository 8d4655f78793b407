"""Numbers with covariances, as `minimize` has them: CMA-ES against its formulas, and beside choices."""

import json
import math
import statistics
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from asng import ASNG, Bounds, Categorical, Custom, Integer, Real, minimize
from asng._covariance import (
    ALPHA,
    MAX_NUMBERS,
    MODE_PROB,
    CovarianceASNG,
    CovarianceState,
    black_box_optimizer,
    cma_update,
    rank_weights,
    rates_of,
)
from tests.helpers.small_space import Bounded

MIXED: dict[str, Any] = {"op": Categorical(["a", "b", "c"]), "n": Integer(1, 9), "x": Real(-1, 1), "y": Real(1, 9)}


def reals(n):
    return {f"x{i}": Real(-5, 5) for i in range(n)}


def moments(*of_numbers):
    """The state of numbers alone: covariance and paths."""
    return CovarianceState(np.zeros(0), np.zeros(0), 0.0, 1.0, *of_numbers)


def random_moments(n, rng):
    root = rng.normal(size=(n, n))
    return moments(root @ root.T + np.eye(n), rng.normal(size=n), rng.normal(size=n))


def run(optimizer, steps, loss):
    for _ in range(steps):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [loss(candidate.values) for candidate in candidates])
    return optimizer


def tilted_ellipsoid(values):
    """An ellipsoid with axes of lengths 1 to 30, none of them along a variable."""
    x = np.array(list(values.values()))
    n = len(x)
    basis = np.linalg.qr(np.random.default_rng(7).normal(size=(n, n)))[0]
    return float((np.square(basis @ (x - 1)) * 1000 ** (np.arange(n) / (n - 1))).sum())


@pytest.mark.parametrize("population_size", [4, 9])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_an_update_equals_the_formulas_written_out(n, population_size):
    """Hansen's tutorial of 2016, equations 7 and 43 to 47, with the step size inside the covariance."""
    rng = np.random.default_rng(n)
    state, y, rates = random_moments(n, rng), rng.normal(size=(population_size, n)), rates_of(n, population_size)
    inverse_root = np.linalg.inv(np.linalg.cholesky(state.covariance))
    step = sum(w * row for w, row in zip(rates.weights, y, strict=True) if w > 0)
    values, vectors = np.linalg.eigh(state.covariance)
    white = vectors @ np.diag(values**-0.5) @ vectors.T @ step
    c, mu = rates.sigma, rates.mu_eff
    sigma_path = (1 - c) * state.sigma_path + math.sqrt(c * (2 - c) * mu) * white
    chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
    steady = np.linalg.norm(sigma_path) / chi < 1.4 + 2 / (n + 1)
    path = (1 - rates.path) * state.covariance_path
    path = path + steady * math.sqrt(rates.path * (2 - rates.path) * mu) * step
    kept = 1 - rates.rank_one - rates.rank_mu * rates.weights.sum()
    kept += (not steady) * rates.rank_one * rates.path * (2 - rates.path)
    covariance = kept * state.covariance + rates.rank_one * np.outer(path, path)
    for w, row in zip(rates.weights, y, strict=True):
        weight = w if w >= 0 else w * n / (np.linalg.norm(inverse_root @ row) ** 2 + 1e-8)
        covariance = covariance + rates.rank_mu * weight * np.outer(row, row)
    growth = math.exp(min(1, c / rates.damping * (np.linalg.norm(sigma_path) / chi - 1)))
    after = cma_update(state, np.asarray(step), y, rates.weights, rates)
    np.testing.assert_allclose(after.covariance, covariance * growth**2, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after.sigma_path, sigma_path, rtol=1e-9)
    np.testing.assert_allclose(after.covariance_path, path * growth, rtol=1e-9)


def test_an_update_is_invariant_under_rotation():
    rng = np.random.default_rng(0)
    state, y, rates = random_moments(5, rng), rng.normal(size=(10, 5)), rates_of(5, 10)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    turned = moments(turn.T @ state.covariance @ turn, state.sigma_path @ turn, state.covariance_path @ turn)
    step = rng.normal(size=5)
    after = cma_update(state, step, y, rates.weights, rates)
    other = cma_update(turned, step @ turn, y @ turn, rates.weights, rates)
    np.testing.assert_allclose(other.sigma_path, after.sigma_path @ turn, rtol=1e-9)
    np.testing.assert_allclose(other.covariance_path, after.covariance_path @ turn, rtol=1e-9)
    np.testing.assert_allclose(other.covariance, turn.T @ after.covariance @ turn, rtol=1e-9, atol=1e-12)


def test_without_selection_the_covariance_stays_on_average():
    rng, n = np.random.default_rng(1), 4
    state = moments(np.diag([1.0, 4.0, 9.0, 16.0]), np.zeros(n), np.zeros(n))
    rates = rates_of(n, 8)
    draws = rng.normal(size=(4000, 8, n)) @ np.sqrt(state.covariance)
    ratios = []
    for y in draws:
        step = np.maximum(rates.weights, 0) @ y
        after = cma_update(state, step, y, rates.weights, rates).covariance
        ratios.append(np.diagonal(after) / np.trace(after))
    np.testing.assert_allclose(np.mean(ratios, axis=0), np.array([1, 4, 9, 16]) / 30, rtol=0.03)


def test_equal_losses_share_the_mean_of_their_weights():
    weights = np.array([0.6, 0.4, 0.0, -0.5])
    np.testing.assert_allclose(rank_weights(weights, np.array([3.0, 1.0, 3.0, 2.0])), [-0.25, 0.6, -0.25, 0.4])
    np.testing.assert_allclose(rank_weights(weights, np.array([1.0, 1.0, math.inf, 2.0])), [0.5, 0.5, -0.5, 0.0])


def test_draws_have_the_mean_and_covariance_of_the_state():
    optimizer = run(CovarianceASNG(reals(4), population_size=8, seed=0), 40, tilted_ellipsoid)
    x = np.array([candidate.x for candidate in optimizer.ask(40_000)])
    expected = optimizer._state.covariance
    correlation = np.corrcoef(x.T)
    np.testing.assert_allclose(x.mean(0), optimizer.theta[:4], atol=1e-6)  # mirrored
    scale = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(correlation, expected / np.outer(scale, scale), atol=0.03)
    assert np.abs(correlation - np.eye(4)).max() > 0.5


def test_axes_between_the_variables_are_learned():
    """Where independent numbers need many times as many evaluations."""
    for seed in range(3):
        found = minimize(tilted_ellipsoid, reals(5), evaluations=800, seed=seed, progress=False).loss
        plain = run(ASNG(reals(5), population_size=8, max_beta=1 / 6, delta_init=0.5, seed=seed), 100, tilted_ellipsoid)
        assert found < 0.05 * plain.best.loss


def test_choices_move_as_in_asng_beside_numbers():
    """Those of a space without numbers, told the same losses."""
    choices: dict[str, Any] = {f"c{i}": Categorical(range(3)) for i in range(4)}
    both = CovarianceASNG({**choices, "x": Real(0, 1)}, population_size=6, seed=0)

    class Alone(ASNG):
        _mode_prob = MODE_PROB  # the same bounds

    alone = Alone(choices, population_size=6, alpha=ALPHA, seed=0)
    for _ in range(30):
        candidates = both.ask()
        losses = [sum(candidate.x[:4]) + candidate.values["x"] for candidate in candidates]
        both.tell(candidates, losses)
        alone.tell([type(c)({}, c.x[:4]) for c in candidates], losses)
        np.testing.assert_array_equal(both.theta[:12], alone.theta)


def test_spreads_stay_within_their_bounds():
    space = {"bit": Integer(0, 1), "n": Integer(0, 20), "x": Real(-5, 5)}
    optimizer = CovarianceASNG(space, population_size=7, seed=0)
    for loss in (lambda v: -v["x"] - v["n"], lambda v: v["x"] ** 2 + abs(v["n"] - 3)):  # outwards, then inwards
        for _ in range(100):
            run(optimizer, 1, loss)
            stds = {name: normal.std for name, normal in optimizer.distribution().items()}
            assert 0.25 - 1e-9 <= stds["bit"] <= 0.5 + 1e-9
            assert 0.25 - 1e-9 <= stds["n"] <= 10 + 1e-9
            assert 1e-5 - 1e-9 <= stds["x"] <= 5 + 1e-9
    assert optimizer.mode()["n"] == 3


@pytest.mark.parametrize(
    ("space", "noisy", "share"),
    [(reals(2), False, 1e-6), (reals(2), True, 1e-3), (reals(2) | {"n": Integer(0, 9)}, False, 1e-6)],
    ids=["reals", "noise", "beside an integer"],
)
def test_reals_are_located_to_a_millionth_of_their_range_and_under_noise_to_a_thousandth(space, noisy, share):
    optimizer = CovarianceASNG(space, noisy=noisy, population_size=8, seed=0)
    run(optimizer, 400, lambda values: sum((values[name] - 0.3) ** 2 for name in reals(2)))
    spreads = [optimizer.distribution()[name].std for name in reals(2)]
    low, high = reals(2)["x0"].range()
    assert spreads == pytest.approx([share * (high - low)] * 2, rel=0.1)


def test_a_mean_at_a_bound_draws_around_a_point_beyond_it():
    space = {"x": Real(-5, 5), "y": Real(-5, 5), "n": Integer(0, 7)}
    initial = {"x": (5, 1), "y": (-5, 1), "n": (7, 0.25)}
    optimizer = CovarianceASNG(space, initial=initial, population_size=6, seed=0)
    drawn = [candidate.values for candidate in optimizer.ask(20_000)]
    assert np.mean([values["x"] == 5 for values in drawn]) == pytest.approx(NormalDist().cdf(0.5), abs=0.01)
    assert np.mean([values["y"] == -5 for values in drawn]) == pytest.approx(NormalDist().cdf(0.5), abs=0.01)
    assert np.mean([values["n"] == 6 for values in drawn]) == pytest.approx(NormalDist().cdf(-2), abs=0.005)


def test_the_corner_of_a_steep_slope_is_found():
    steepness = {f"x{i}": (-1) ** i * 3.0**i for i in range(5)}
    losses = [
        minimize(
            lambda values: sum(abs(slope) + slope * values[name] for name, slope in steepness.items()),
            {name: Real(-1, 1) for name in steepness},
            evaluations=500,
            seed=seed,
            progress=False,
        ).loss
        for seed in range(20)
    ]
    assert losses.count(0) >= 15


def test_numbers_of_very_different_ranges_are_searched_together():
    space = {"n": Integer(0, 100_000)} | {f"x{i}": Real(0, 1) for i in range(4)}
    loss = lambda v: (v["n"] / 1e5 - 0.7) ** 2 + sum((v[f"x{i}"] - 0.3) ** 2 * 100**i for i in range(4))  # noqa: E731
    assert minimize(loss, space, evaluations=2000, seed=0, restarts=0, progress=False).loss < 1e-5


def test_a_slope_to_the_bounds_does_not_widen_the_distribution():
    space = {f"n{i}": Integer(0, 7) for i in range(6)} | {"x": Real(-5, 5)}
    result = minimize(lambda v: -sum(v.values()), space, evaluations=1500, seed=0, progress=False)
    assert result.values == {**{f"n{i}": 7 for i in range(6)}, "x": 5.0}
    assert max(normal.std for normal in result.optimizer.distribution().values()) < 1


def test_a_covariance_stays_symmetric_at_the_bounds_of_standard_deviations():
    space = {"x": Real(0, 1), "n": Integer(-5, 5)}
    optimizer = CovarianceASNG(space, population_size=6, seed=0)
    run(optimizer, 400, lambda values: values["x"] - values["n"])
    correlation = optimizer._state.covariance / np.outer(*[np.sqrt(np.diagonal(optimizer._state.covariance))] * 2)
    np.testing.assert_allclose(correlation, correlation.T, rtol=0, atol=1e-8)
    assert abs(correlation[0, 1]) <= 1
    CovarianceASNG(space, population_size=6).load_state_dict(optimizer.state_dict())


def test_a_correlation_above_one_is_refused():
    optimizer = run(CovarianceASNG(reals(2), population_size=6, seed=0), 5, tilted_ellipsoid)
    state = optimizer.state_dict()
    optimizer._state.covariance[:] = np.diag(np.diagonal(optimizer._state.covariance))
    variances = np.diagonal(optimizer._state.covariance)
    optimizer._state.covariance[[0, 1], [1, 0]] = 1.01 * math.sqrt(variances[0] * variances[1])
    with pytest.raises(ValueError, match="no run leads to its covariance"):
        CovarianceASNG(reals(2), population_size=6).load_state_dict(optimizer.state_dict())
    CovarianceASNG(reals(2), population_size=6).load_state_dict(state)


def test_prior_knowledge_is_the_distribution_to_start_from():
    optimizer = CovarianceASNG(MIXED, population_size=6, initial={"n": (3, 2), "op": [0.2, 0.3, 0.5]}, seed=0)
    distribution = optimizer.distribution()
    assert distribution["n"] == pytest.approx((3, 2))
    np.testing.assert_allclose(distribution["op"], [0.2, 0.3, 0.5])
    assert distribution["y"] == pytest.approx((5, 1.2))


def test_noise_is_averaged_by_shorter_steps_from_a_narrower_start():
    plain, noisy = (CovarianceASNG(reals(3), noisy=noisy, population_size=6, seed=0) for noisy in (False, True))
    spreads = [np.sqrt(optimizer._state.covariance) for optimizer in (plain, noisy)]
    np.testing.assert_allclose(spreads[1], spreads[0] * 2 / 3)
    candidates = plain.ask()
    for optimizer in (plain, noisy):
        optimizer.tell(candidates, range(6))
    steps = [np.array(list(optimizer.mode().values())) for optimizer in (plain, noisy)]  # from 0
    np.testing.assert_allclose(steps[1], steps[0] / 2)


def test_losses_that_are_all_equal_teach_nothing():
    optimizer = CovarianceASNG(MIXED, population_size=6, seed=0)
    before = optimizer.state_dict()["state"]
    for loss in (1.0, math.nan, math.inf):
        optimizer.tell(optimizer.ask(), [loss] * 6)
    assert optimizer.state_dict()["state"] == before


def test_resumed_equals_uninterrupted():
    loss = lambda values: (values["x"] - values["y"]) ** 2 + values["n"]  # noqa: E731
    whole, first, second = (CovarianceASNG(MIXED, population_size=6, seed=3) for _ in range(3))
    run(whole, 40, loss)
    second.load_state_dict(json.loads(json.dumps(run(first, 20, loss).state_dict())))
    assert run(second, 20, loss).state_dict() == whole.state_dict()


class Coarse(Real):
    """A variable of one's own, with draws in units for which float64 does not hold mean and variance together."""

    bounds: Bounds

    def __init__(self, bounds):
        super().__init__(0, 1)
        object.__setattr__(self, "bounds", bounds)

    def marginal(self):
        return self.bounds


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (MIXED, CovarianceASNG),
        (reals(MAX_NUMBERS), CovarianceASNG),
        (reals(MAX_NUMBERS + 1), ASNG),
        ({"a": Categorical([0, 1])}, ASNG),
        ({"n": Integer(0, 10**9), "far": Integer(10**9, 10**9 + 5), "x": Real(0, 1)}, CovarianceASNG),
        ({"own": Coarse(Bounds(0.0, 1e9, 0.25)), "x": Real(0, 1)}, ASNG),
        ({"own": Coarse(Bounds(-1.0, 1.0, 1e-5, is_real=True))}, ASNG),
        ({"own": Coarse(Bounds(-1.0, 1.0, 1e-5))}, CovarianceASNG),
        ({"own": Custom(Bounded(5)), "x": Real(0, 1)}, ASNG),
    ],
    ids=[
        "mixed",
        "many",
        "too many",
        "choices",
        "wide integers",
        "too wide bounds",
        "too narrow reals",
        "no reals",
        "own family",
    ],
)
def test_covariances_are_kept_where_they_pay(space, kind):
    assert type(black_box_optimizer(space, population_size=4)) is kind


def test_integers_are_found_however_wide_or_far_from_zero_their_range_is():
    def losses(low, width):
        space = {"n": Integer(low, low + width), "x": Real(-1, 1), "op": Categorical(["a", "b"])}
        loss = lambda v: abs((v["n"] - low) / width - 0.7) + (v["x"] - 0.3) ** 2 + (v["op"] == "a")  # noqa: E731
        return [evaluation.loss for evaluation in minimize(loss, space, evaluations=200, seed=0, restarts=0).history]

    assert losses(10**6, 1000) == pytest.approx(losses(10**15, 1000), abs=1e-9)
    wide, wider = losses(0, 10**6), losses(0, 10**12)
    assert wide[:60] == pytest.approx(wider[:60], abs=1e-3)
    assert min(wide) < 0.001
    assert min(wider) < 0.001


@pytest.mark.slow
def test_numbers_beside_few_choices_converge():
    """With the paper's smallest probabilities half of all candidates would have other choices in each variable."""
    space: dict[str, Any] = {name: Categorical(list("abc")) for name in "pq"} | {name: Real(-1, 1) for name in "xyz"}

    def loss(values):
        wrong = sum(values[name] != "b" for name in "pq")
        return wrong / 4 + sum(
            scale * (values[name] - 0.3) ** 2 for name, scale in zip("xyz", (0.1, 1, 10), strict=True)
        )

    assert statistics.median(minimize(loss, space, evaluations=1000, seed=seed).loss for seed in range(7)) < 1e-5
