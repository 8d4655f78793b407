"""The state of an optimizer: through JSON it goes on to the bit, and what does not fit is refused."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asng import ASNG, SNG, Adam, Categorical, Custom, Integer, Real
from asng._state import checksum
from tests.helpers.small_space import METHODS, SPACE, Bounded, Stubborn, run, through_json

# Going on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population_size", [2, 5])
@pytest.mark.parametrize("method", METHODS)
def test_resumed_equals_uninterrupted_to_the_bit(method, population_size):
    whole = method(SPACE, population_size=population_size, seed=3)
    for _ in range(25):
        resumed = method(SPACE, population_size=population_size, seed=99)
        resumed.load_state_dict(through_json(whole.state_dict()))
        assert resumed.state_dict() == whole.state_dict()
        assert resumed.best == whole.best
        for optimizer in (whole, resumed):
            optimizer.ask(3)  # odd numbers of draws, so that the generator is caught at any moment
            run(optimizer, 4)
        assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("method", METHODS)
def test_resumed_in_another_process(method, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(run(method(SPACE, seed=3), 20).state_dict()))
    program = (
        "import json, pathlib\n"
        "from tests.helpers import small_space as t\n"
        f"optimizer = t.{method.__name__}(t.SPACE)\n"
        "optimizer.load_state_dict(json.loads(pathlib.Path('state.json').read_text()))\n"
        "print(json.dumps(t.run(optimizer, 20).state_dict()))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == through_json(run(method(SPACE, seed=3), 40).state_dict())


def test_loading_checks_the_best_values_as_a_whole():
    """And not one after another, each in a whole row, which took seconds for 10,000 variables."""
    optimizer = run(ASNG(SPACE, seed=0), 5)
    calls: list[Any] = []
    optimizer._family.statistics = calls.append
    optimizer.load_state_dict(through_json(optimizer.state_dict()))
    assert [x.tolist() for x in calls] == [optimizer.state_dict()["best"]["x"]]


def test_a_saved_state_is_a_copy():
    optimizer = run(ASNG(SPACE, seed=0), 5)
    state = optimizer.state_dict()
    kept = through_json(state)
    run(optimizer, 5)
    assert state == kept
    other = ASNG(SPACE)
    other.load_state_dict(state)
    state["state"]["theta"][0] = 0.0
    state["generator"]["state"]["state"] = 0
    assert other.state_dict() == kept


# What is refused ------------------------------------------------------------------------------------


def change_at(path, value):
    def change(state):
        *inner, last = path
        for key in inner:
            state = state[key]
        state[last] = value

    return change


def remove_at(path):
    def change(state):
        *inner, last = path
        for key in inner:
            state = state[key]
        del state[last]

    return change


DAMAGE: dict[str, Any] = {
    "without space": remove_at(["space"]),
    "without settings": remove_at(["settings"]),
    "without state": remove_at(["state"]),
    "without generator": remove_at(["generator"]),
    "without best": remove_at(["best"]),
    "with something more": change_at(["more"], 1),
    "space is nothing": change_at(["space"], None),
    "space is something else": change_at(["space"], ["lr"]),
    "settings is no dict": change_at(["settings"], "ASNG"),
    "of another method": change_at(["settings", "method"], "Other"),
    "drawn otherwise": change_at(["settings", "mirrored"], False),
    "state is no dict": change_at(["state"], None),
    "without theta": remove_at(["state", "theta"]),
    "theta too short": change_at(["state", "theta"], [0.5]),
    "theta not numbers": change_at(["state", "theta"], ["a"] * 11),
    "theta one number": change_at(["state", "theta"], 0.5),
    "theta nested unevenly": change_at(["state", "theta"], [[1.0], [1.0, 2.0]]),
    "theta NaN": change_at(["state", "theta", 0], math.nan),
    "theta infinite": change_at(["state", "theta", 0], math.inf),
    "theta outside the allowed set": change_at(["state", "theta", 0], -0.5),
    "theta null": change_at(["state", "theta", 0], None),
    "generator is no dict": change_at(["generator"], None),
    "generator empty": change_at(["generator"], {}),
    "generator of another kind": change_at(["generator", "bit_generator"], "MT19937"),
    "generator without state": remove_at(["generator", "state"]),
    "generator with a negative state": change_at(["generator", "state", "state"], -1),
    "generator with text": change_at(["generator", "state", "state"], "x"),
    "best is no dict": change_at(["best"], 3),
    "best without loss": remove_at(["best", "loss"]),
    "best without x": remove_at(["best", "x"]),
    "best too short": change_at(["best", "x"], [0.0]),
    "best of text": change_at(["best", "x"], ["a"] * 5),
    "best NaN": change_at(["best", "x", 0], math.nan),
    "best loss NaN": change_at(["best", "loss"], math.nan),
    "best loss text": change_at(["best", "loss"], "low"),
    "best of no choice": change_at(["best", "x", 1], 3.0),
    "best far away": change_at(["best", "x", 2], 1e200),
    "best loss as text": change_at(["best", "loss"], "0.5"),
    "space is an array": change_at(["space"], np.zeros((5, 2))),
    "settings do not compare": change_at(["settings", "mirrored"], Stubborn()),
    "state is an array": change_at(["state"], np.zeros(3)),
    "state is no NumPy": change_at(["state"], Stubborn()),
    "theta is no NumPy": change_at(["state", "theta"], Stubborn()),
    "theta as text": change_at(["state", "theta", 0], "0.5"),
    "theta complex": change_at(["state", "theta", 0], 1j),
    "generator is an array": change_at(["generator"], np.zeros(3)),
    "generator with an even increment": change_at(["generator", "state", "inc"], 2),
    "generator in a fraction": change_at(["generator", "state", "state"], 1.5),
    "best is an array": change_at(["best"], np.zeros(3)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_state_is_refused_and_changes_nothing(damage, method):
    optimizer = run(method(SPACE, seed=0), 5)
    before, best = optimizer.state_dict(), optimizer.best
    state = through_json(run(method(SPACE, seed=1), 9).state_dict())
    damage(state)
    with pytest.raises(ValueError, match=r"state|the saved optimizer has (another space|other settings)"):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == before
    assert optimizer.best == best


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        (ASNG, "gamma", 0.0),
        (ASNG, "divisor", math.nan),
        (ASNG, "divisor", 0.0),
        (ASNG, "path", [1e200] + [0.0] * 10),
        (Adam, "updates", -1.0),
        (Adam, "updates", 1e300),
        (Adam, "second", [0.0] * 11),
        (Adam, "first", [8.0] * 11),
    ],
)
def test_a_state_with_a_changed_number_is_refused(method, name, value):
    optimizer = method(SPACE, seed=0)
    state = through_json(run(method(SPACE, seed=1), 9).state_dict())
    state["state"][name] = value
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match="the state is damaged: it is not as it was saved"):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("theta", [math.nan, math.inf])
def test_a_forged_state_that_is_not_finite_is_refused(theta):
    optimizer = ASNG(SPACE, seed=0)
    state = through_json(run(ASNG(SPACE, seed=1), 9).state_dict())
    state["state"]["theta"][0] = theta
    state["checksum"] = checksum(state)
    with pytest.raises(ValueError, match="the state is damaged: not all of its numbers are finite"):
        optimizer.load_state_dict(state)


FORGED: dict[str, tuple[Any, Any]] = {
    "a probability below 0": (ASNG, change_at(["state", "theta", 2], -0.5)),
    "probabilities that do not sum to 1": (SNG, change_at(["state", "theta", 2], 0.9)),
    "a variance below its bound": (SNG, change_at(["state", "theta"], [0.0] * 11)),
    "no theta": (ASNG, remove_at(["state", "theta"])),
    "a path beyond all steps": (ASNG, change_at(["state", "path", 0], 1e200)),
    "no gamma": (ASNG, change_at(["state", "gamma"], None)),
    "a negative gamma": (ASNG, change_at(["state", "gamma"], -0.1)),
    "gamma above 1": (ASNG, change_at(["state", "gamma"], 2.0)),
    "a step size without bound": (ASNG, change_at(["state", "divisor"], 0.0)),
    "a negative step size": (ASNG, change_at(["state", "divisor"], -1.0)),
    "too large a step size": (ASNG, change_at(["state", "divisor"], 1e-3)),
    "a negative second moment": (Adam, change_at(["state", "second", 0], -1e-3)),
    "a huge second moment": (Adam, change_at(["state", "second", 0], 1e308)),
    "a first moment without a second": (Adam, change_at(["state", "second"], [0.0] * 11)),
    "a huge first moment": (Adam, change_at(["state", "first", 0], 1e200)),
    "negative updates": (Adam, change_at(["state", "updates"], -1.0)),
    "half an update": (Adam, change_at(["state", "updates"], 1.5)),
    "a best of no choice": (ASNG, change_at(["best", "x", 1], 3.0)),
    "a best far away": (SNG, change_at(["best", "x", 2], 1e200)),
    "a best too short": (ASNG, change_at(["best", "x"], [0.0])),
    "zero as best": (ASNG, change_at(["best"], 0)),
    "no best, but an empty list": (ASNG, change_at(["best"], [])),
    "a best of text": (ASNG, change_at(["best", "loss"], "low")),
}


@pytest.mark.parametrize(("method", "forge"), FORGED.values(), ids=FORGED)
def test_a_forged_state_that_no_run_leads_to_is_refused(method, forge):
    optimizer = run(method(SPACE, seed=0), 5)
    before = optimizer.state_dict()
    state = through_json(run(method(SPACE, seed=1), 9).state_dict())
    forge(state)
    state["checksum"] = checksum(state)
    with pytest.raises(ValueError, match="the state is damaged"):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize(
    "settings", [{}, {"delta_init": 1e-5}, {"alpha": 1e9}, {"delta_max": 3.0}, {"delta_init": 50.0}]
)
def test_no_state_of_a_run_is_refused(settings):
    optimizer = ASNG(SPACE, seed=0, **settings)
    for _ in range(300):
        state = run(optimizer, 1).state_dict()
        optimizer.load_state_dict(state)
        assert optimizer.state_dict() == state


@pytest.mark.parametrize("state", [None, [], "state", {}, 3])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="state"):
        ASNG(SPACE).load_state_dict(state)


@pytest.mark.parametrize(
    "other",
    [
        {**SPACE, "op": Categorical(["pool", "conv", "skip"])},
        {**SPACE, "op": Categorical(["conv", "pool"])},
        {**SPACE, "n": Integer(1, 10)},
        {**SPACE, "lr": Real(1e-4, 1e-1)},
        {**SPACE, "more": Categorical([1])},
        {name: SPACE[name] for name in list(SPACE)[:-1]},
        {name: SPACE[name] for name in reversed(SPACE)},
    ],
    ids=["order of choices", "fewer choices", "range", "scale", "more", "fewer", "order of variables"],
)
def test_a_state_of_another_space_is_refused(other):
    optimizer, state = ASNG(other, seed=0), run(ASNG(SPACE, seed=1), 5).state_dict()
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match="another space"):
        optimizer.load_state_dict(through_json(state))
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("low", [-300_000, 10**6])
def test_a_state_with_other_units_of_wide_integers_is_refused(low):
    """As those of earlier versions have, which would be other integers."""
    space = {"n": Integer(low, low + 600_000)}
    state = ASNG(space, seed=0).state_dict()
    ASNG(space).load_state_dict(through_json(state))
    state["space"] = [["n", state["space"][0][1].split(", drawn")[0]]]
    with pytest.raises(ValueError, match=r"another space \(n: Integer.* there, Integer.*, drawn as .* / 300000 here\)"):
        ASNG(space).load_state_dict(through_json(state))


def test_states_of_integers_that_are_drawn_as_they_are_say_no_units():
    assert ASNG({"n": Integer(1, 9)}).state_dict()["space"] == [["n", "Integer(1, 9)"]]


@pytest.mark.parametrize(
    "setting",
    [
        {"alpha": 2.0},
        {"delta_init": 0.5},
        {"delta_max": 9.0},
        {"mirrored": False},
        {"max_beta": 0.1},
        {"adapt": "population_size"},
    ],
)
def test_a_state_with_other_settings_is_refused_by_name(setting):
    optimizer = ASNG(SPACE, **setting)
    with pytest.raises(ValueError, match=next(iter(setting))):
        optimizer.load_state_dict(ASNG(SPACE).state_dict())


def test_a_state_of_another_method_is_refused():
    for method in METHODS:
        for other in METHODS:
            if method is not other:
                with pytest.raises(ValueError, match="method"):
                    method(SPACE).load_state_dict(other(SPACE).state_dict())


def test_a_state_of_other_parameters_of_ones_own_family_is_refused():
    state = ASNG({"own": Custom(Bounded(5))}).state_dict()
    ASNG({"own": Custom(Bounded(5))}).load_state_dict(state)
    with pytest.raises(ValueError, match=r"high=5.*high=6"):
        ASNG({"own": Custom(Bounded(6))}).load_state_dict(state)


def test_sets_as_choices_are_the_same_space_in_another_process():
    code = (
        "from asng import *\n"
        "print(ASNG({'s': Categorical([frozenset('abcde'), frozenset('xyz')])}).state_dict()['space'])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1
