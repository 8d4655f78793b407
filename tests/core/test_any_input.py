"""Whatever is told or loaded, an optimizer refuses it, or stays finite and goes on."""

import json
import math
from typing import Any

import numpy as np
import pytest

from asng import Candidate, Categorical, CategoricalFamily, Custom, Integer, RandomSearch, Real
from tests.helpers.small_space import METHODS, SPACE, Bounded, through_json

pytestmark = pytest.mark.slow

SPACES: dict[str, dict[str, Any]] = {
    "choices": {"a": Categorical(["x", "y"]), "b": Categorical([1, 2, 3]), "one": Categorical([0])},
    "alike": {name: Categorical([0, 1]) for name in "abcd"},
    "mixed": SPACE,
    "numbers": {"n": Integer(-(2**52), 2**52), "r": Real(1e-300, 1e300, log=True), "far": Integer(10**5, 10**5 + 3)},
    "own": {"own": Custom(Bounded(5)), "op": Custom(CategoricalFamily([3]), value=int), "c": Categorical([1, 2])},
}
SETTINGS: list[dict[str, Any]] = [{}, {"mirrored": False}, {"population_size": 5}]
STEPS = {
    "ASNG": ("delta_init", [1e-300, 1e-5, 1.0, 1e6]),
    "SNG": ("delta", [1e-300, 1e6]),
    "Adam": ("lr", [1e-300, 1e6]),
}

NUMBERS: list[Any] = [
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 1e200, 1e154, -1e30, 1e18, 1e9, 1e5, 7, 3, 2, 1.0, 0.5),
    *(0, -0.0, 5e-324, 1e-200, -1, -0.1, 1 + 1e-12, True, 2**53 + 1, 10**400, np.float32(0.5), np.int8(1)),
    *(None, "1", b"1", 1j, [1.0], {}),
]
LOSSES: list[Any] = [
    0.0,
    1.0,
    1.0,
    2,
    -1e308,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    10**400,
    np.float64(3),
    "1",
    1j,
]

KINDS: list[Any] = [np.float32, np.float16, np.longdouble, object, int, bool, complex, str, ">f8"]


class Hostile:
    """Random calls of an optimizer, of the kind that nobody should make."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, things):
        return things[self.rng.integers(len(things))]

    def chance(self, probability):
        return self.rng.random() < probability

    def number(self, value):
        """In place of a number: another one, one far from it or next to it, or none."""
        if self.chance(0.5) or not isinstance(value, float):
            return self.pick(NUMBERS)
        return self.pick([-value, value * self.factor(20), math.nextafter(value, math.inf), value + 1])

    def factor(self, digits):
        return 10.0 ** int(self.rng.integers(-digits, digits))

    def draw(self, x):
        """In place of a raw draw: other numbers, in another container, or of another length."""
        x = [self.number(value) if self.chance(0.3) else value for value in x]
        kind = self.pick([*KINDS, *(float,) * len(KINDS)])
        try:
            with np.errstate(all="ignore"):
                array = np.array(x, dtype=kind)
        except (TypeError, ValueError, OverflowError):
            return x
        shapes = [
            array,
            array,
            x,
            tuple(x),
            array[::-1],
            array[:-1],
            array[None],
            array[0],
            np.ma.array(array),
            iter(x),
        ]
        return self.pick(shapes)

    def tell(self, optimizer, others):
        """What to tell: some candidates as they were drawn, others not, with losses."""
        candidates = optimizer.ask(int(self.rng.integers(1, 6)))
        for i, candidate in enumerate(candidates):
            if self.chance(0.2):
                candidates[i] = self.pick([Candidate({}, candidate.x), *others])
            if self.chance(0.3):
                candidates[i] = Candidate({}, self.draw(candidate.x.tolist()))
        losses = [self.pick(LOSSES if self.chance(0.1) else LOSSES[:6]) for _ in candidates]
        if self.chance(0.8):
            return candidates, losses, None
        return candidates, losses, [[name for name in optimizer.space if self.chance(0.5)] for _ in candidates]

    def state(self, optimizer, others):
        """What to load: a state of this optimizer or of another one, changed in one place or two."""
        state = through_json(self.pick([optimizer.state_dict(), *others]))
        for _ in range(self.rng.integers(1, 3)):
            self.change(state)
        return state

    def change(self, state):
        """Change something, somewhere in it."""
        parent, key = state, self.pick(list(state))
        while isinstance(parent[key], (dict, list)) and parent[key] and self.chance(0.9):
            parent = parent[key]
            key = self.pick(list(parent) if isinstance(parent, dict) else range(len(parent)))
        value = parent[key]
        if isinstance(value, list) and all(type(each) is float for each in value) and self.chance(0.7):
            parent[key] = [each * self.factor(self.pick([2, 20, 300])) for each in value]
        elif self.chance(0.9) or not isinstance(parent, dict):
            parent[key] = self.number(value)
        else:
            del parent[key]


def check_usable(optimizer):
    """The state is finite and allowed, can be saved and loaded, and everything that reads it works."""
    for name, part in optimizer._state._asdict().items():
        assert np.asarray(part).dtype == np.float64, name
        assert np.isfinite(part).all(), name
    theta = optimizer.theta
    np.testing.assert_allclose(optimizer._family.project(theta), theta, rtol=1e-9)
    if hasattr(optimizer, "delta"):
        assert 0 < optimizer.delta < math.inf
    best = optimizer.best
    assert best is None or (math.isfinite(best.loss) and list(best.values) == list(optimizer.space))
    assert list(optimizer.mode()) == list(optimizer.distribution()) == list(optimizer.space)
    again = through_json(optimizer.state_dict())
    optimizer.load_state_dict(again)
    assert through_json(optimizer.state_dict()) == again
    json.dumps([candidate.x.tolist() for candidate in optimizer.ask(3)], allow_nan=False)


def attack(method, space, settings, seed, calls):
    """How many of `calls` hostile calls were accepted; each leaves the optimizer usable or unchanged."""
    hostile, accepted = Hostile(seed), 0
    optimizer, other = method(space, seed=seed, **settings), method(space, seed=seed + 1, **settings)
    for _ in range(calls):
        for one in (optimizer, other):
            drawn = one.ask()
            one.tell(drawn, hostile.rng.random(len(drawn)))
        check_usable(optimizer)
        before = optimizer.state_dict()
        try:
            if hostile.chance(0.5):
                candidates, losses, active = hostile.tell(optimizer, other.ask(2))
                before = optimizer.state_dict()
                optimizer.tell(candidates, losses, active=active)
            else:
                optimizer.load_state_dict(hostile.state(optimizer, [other.state_dict()]))
            accepted += 1
        except ValueError:
            assert optimizer.state_dict() == before
        check_usable(optimizer)
    return accepted


def variants(method):
    name, steps = STEPS.get(method.__name__, ("seed", []))
    return SETTINGS + [{name: step} for step in steps]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("method", [*METHODS, RandomSearch])
def test_hostile_calls_are_refused_or_leave_the_optimizer_usable(method, space):
    calls, accepted = 25, [attack(method, space, settings, seed=1, calls=25) for settings in variants(method)]
    assert 0 < sum(accepted) < calls * len(accepted)  # some of each, or this shows nothing
