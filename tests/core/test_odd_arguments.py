"""Arguments of types that belong nowhere are refused by ValueErrors; NumPy's scalars are numbers like any other."""

from typing import Any

import numpy as np
import pytest

from asng import ASNG, Categorical, Integer, minimize

SPACE: dict[str, Any] = {"op": Categorical(["a", "b"]), "n": Integer(1, 10**6)}


def loss(values):
    return values["n"]


@pytest.mark.parametrize("names", [np.array("op"), np.array(None), np.float64(1.0), 5, "op", b"op"])
def test_active_without_axes_is_refused(names):
    optimizer = ASNG(SPACE, seed=0)
    for active in (names, [names, ["op"]]):
        with pytest.raises(ValueError, match=r"active (must have a set of names for each of the 2 candidates|names)"):
            optimizer.tell(optimizer.ask(2), [1.0, 2.0], active=active)


@pytest.mark.parametrize("size", ["4", 4.0, [4], {}, None.__class__, np.array(None), np.datetime64("2020"), 1, True])
def test_a_population_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match=r"population_size must be (an integer|at least 2), got"):
        minimize(loss, SPACE, evaluations=4, population_size=size, progress=False)


@pytest.mark.parametrize("path", [5, 1.5, True, b"x", [], {}, np.int64(3), abs])
def test_a_checkpoint_that_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=r"checkpoint must be the path of a file, such as 'search\.json', got"):
        minimize(loss, SPACE, evaluations=4, checkpoint=path, progress=False)


def test_scalars_of_numpy_are_numbers(tmp_path):
    settings: dict[str, Any] = {"evaluations": 40, "seed": 3, "population_size": 4, "restarts": 1, "target": 1}
    expected = minimize(loss, SPACE, **settings, progress=False)
    numpys: dict[str, Any] = {name: np.int64(value) for name, value in settings.items()}
    for checkpoint in (None, tmp_path / "search.json"):
        assert minimize(loss, SPACE, **numpys, checkpoint=checkpoint, progress=False).history == expected.history
    assert minimize(loss, SPACE, **settings, checkpoint=checkpoint, progress=False).history == expected.history


@pytest.mark.parametrize("seed", [[1, 2], [], (3,), "3", 1.5, -1, True, np.array([1]), {}])
def test_a_seed_is_an_integer_a_seed_sequence_or_none(seed):
    with pytest.raises(ValueError, match="seed must be an integer >= 0, a SeedSequence or None, got "):
        ASNG(SPACE, seed=seed)


def test_a_seed_that_holds_itself_is_refused_where_numpy_would_crash():
    seed: list[Any] = []
    seed.append(seed)
    with pytest.raises(ValueError, match=r"seed must be .* got \[\[\.\.\.\]\]"):
        ASNG(SPACE, seed=seed)  # type: ignore[arg-type]


def test_a_choice_that_holds_itself_is_refused_where_it_is_saved():
    choice: list[Any] = []
    choice.append(choice)
    variable = Categorical([choice, 2])
    for save in (lambda: variable.to_json(choice), ASNG({"v": variable}).state_dict):
        with pytest.raises(ValueError, match="choice"):
            save()


@pytest.mark.parametrize("x", [-1, 2, 10**400, np.inf, np.nan, None, "1", 1j])
def test_a_raw_draw_of_no_choice_is_refused(x):
    with pytest.raises(ValueError, match="a raw draw must be a number"):
        Categorical(["a", "b"]).decode(x)
