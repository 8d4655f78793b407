"""The population adapted instead of delta (paper, section 2.4)."""

import json
import math
from typing import Any

import numpy as np
import pytest

from asng import ASNG, Categorical, Integer, Real

BITS: dict[str, Any] = {str(i): Categorical([0, 1]) for i in range(20)}
MIXED: dict[str, Any] = {"op": Categorical(["a", "b", "c"]), "n": Integer(1, 9), "x": Real(-1, 1)}
ADAPTED: dict[str, Any] = {"adapt": "population_size"}


def run(optimizer, steps, loss):
    """Population sizes of some updates."""
    sizes = []
    for _ in range(steps):
        candidates = optimizer.ask()
        sizes.append(len(candidates))
        optimizer.tell(candidates, [loss(candidate.values) for candidate in candidates])
    return sizes


def noise(seed):
    generator = np.random.default_rng(seed)
    return lambda values: generator.random()


@pytest.mark.parametrize("space", [BITS, MIXED], ids=["bits", "mixed"])
def test_updates_are_those_of_a_delta_that_never_changes(space):
    """Of plain ASNG whose Delta is set back to 1 before each update."""
    adapted, plain = ASNG(space, seed=0, population_size=6, **ADAPTED), ASNG(space, seed=0, population_size=6)
    loss, delta = noise(0), 1.0
    for _ in range(50):
        candidates = adapted.ask()
        losses = [loss(candidate.values) for candidate in candidates]
        plain._state = plain._state._replace(divisor=1.0)
        adapted.tell(candidates, losses)
        plain.tell(candidates, losses)
        assert adapted.delta == delta
        for name in ("theta", "path", "gamma"):
            np.testing.assert_array_equal(getattr(adapted, name), getattr(plain, name))


def test_the_population_grows_by_delta_of_the_formula():
    optimizer, loss, divisor = ASNG(BITS, seed=0, population_size=4, **ADAPTED), noise(1), 1.0
    beta = 1 / math.sqrt(20)
    for _ in range(40):
        candidates = optimizer.ask()
        assert len(candidates) == optimizer.population_size == round(4 * divisor)
        optimizer.tell(candidates, [loss(candidate.values) for candidate in candidates])
        divisor *= math.exp(beta * (optimizer.gamma - optimizer.path @ optimizer.path / 1.5))
        divisor = max(divisor, 1.0)
    assert divisor > 2


def test_the_population_stays_small_where_updates_agree():
    ones = run(ASNG(BITS, seed=0, **ADAPTED), 15, lambda values: -sum(values.values()))
    random = run(ASNG(BITS, seed=0, **ADAPTED), 60, noise(0))
    assert max(ones) <= 4 < 10 < max(random)


@pytest.mark.parametrize(("delta_max", "largest"), [(3.0, 6), (math.inf, 2000)])
def test_the_population_does_not_grow_forever(delta_max, largest):
    optimizer = ASNG({"a": Categorical([0, 1])}, seed=0, delta_max=delta_max, **ADAPTED)
    sizes = run(optimizer, 60, noise(0))
    assert max(sizes) == largest


def test_a_noisy_problem_is_solved_with_a_step_that_alone_is_too_long():
    generator = np.random.default_rng(0)

    def loss(values):
        return sum(values.values()) + 3 * generator.standard_normal()

    found = {}
    for name, settings in {"adapted": ADAPTED, "fixed": {"delta_max": 1.0}}.items():
        optimizer = ASNG(BITS, seed=0, **settings)
        evaluations = 0
        while evaluations < 6000:
            evaluations += sum(run(optimizer, 1, loss))
        found[name] = sum(optimizer.mode().values())
    assert found["adapted"] == 0 < found["fixed"]


def test_resumed_equals_uninterrupted():
    whole, first, second = (ASNG(MIXED, seed=3, **ADAPTED) for _ in range(3))
    run(whole, 60, lambda v: round(v["x"], 1) + v["n"] % 3)
    run(first, 30, lambda v: round(v["x"], 1) + v["n"] % 3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.population_size == first.population_size
    run(second, 30, lambda v: round(v["x"], 1) + v["n"] % 3)
    assert second.state_dict() == whole.state_dict()


def test_states_of_other_population_sizes_are_refused():
    """Since the state holds a factor of it."""
    with pytest.raises(ValueError, match="population_size"):
        ASNG(BITS, population_size=4, **ADAPTED).load_state_dict(ASNG(BITS, **ADAPTED).state_dict())


@pytest.mark.parametrize("adapt", ["lambda", None, 2])
def test_something_else_to_adapt_is_refused(adapt):
    with pytest.raises(ValueError, match='adapt must be "delta" or "population_size", got'):
        ASNG(BITS, adapt=adapt)


def test_max_beta_caps_the_step():
    optimizer = ASNG(MIXED, seed=0, max_beta=0.2, population_size=8)
    deltas = []
    for _ in range(60):
        run(optimizer, 1, lambda values: values["n"] + values["x"])
        deltas.append(optimizer.delta)
    assert max(deltas) == pytest.approx(0.2 * math.sqrt(6), rel=1e-12)
    with pytest.raises(ValueError, match="max_beta must be a number above 0 and at most 1"):
        ASNG(MIXED, max_beta=1.5)
