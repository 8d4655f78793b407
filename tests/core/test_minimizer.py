"""minimizer: the optimizer of minimize, in a loop of one's own."""

import math
import re

import pytest

from asng import ASNG, Categorical, Integer, Real, minimizer
from asng._blackbox import BlackBox
from tests.helpers.black_boxes import LINE, WIDE


@pytest.mark.parametrize("settings", [{}, {"noisy": True}, {"population_size": 5}], ids=["quiet", "noisy", "given"])
@pytest.mark.parametrize(
    "space", [{"x": Real(0, 1), "op": Categorical(list("abc"))}, {"op": Categorical([1, 2, 3]), **WIDE}]
)
def test_minimizer_asks_what_minimize_evaluates(space, settings):
    optimizer = minimizer(space, evaluations=400, initial={"op": [0.5, 0.3, 0.2]}, seed=4, **settings)
    population = [candidate.values for candidate in optimizer.ask()]
    box = BlackBox(space, 400, settings.get("population_size"), {"op": [0.5, 0.3, 0.2]}, 4, "noisy" in settings, (), 0)
    assert len(population) == box.population_size
    assert population == [candidate.values for candidate in box.optimizer.ask()]
    assert minimizer(space).population_size == 4 + math.floor(3 * math.log(2))


def test_minimizer_finds_numbers_beside_choices_where_the_defaults_of_one_shot_search_do_not():
    space = {"a": Categorical(list("xyz")), "n": Integer(1, 20), "r": Real(0, 1)}

    def find(make):
        losses = []
        for seed in range(20):
            optimizer = make(space, seed=seed)
            for _ in range(480 // optimizer.population_size):
                candidates = optimizer.ask()
                rows = [candidate.values for candidate in candidates]
                optimizer.tell(candidates, [(v["a"] != "y") + abs(v["n"] - 7) / 10 + abs(v["r"] - 0.25) for v in rows])
            losses.append(optimizer.best.loss)
        return losses

    assert max(find(minimizer)) < 1e-3
    assert max(find(ASNG)) > 0.1  # docs/black_boxes.md


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"evaluations": 1}, "evaluations must be at least 2, got 1"),
        ({"population_size": 1}, "population_size must be at least 2, got 1"),
        ({"noisy": 1}, "noisy must be True or False, got 1"),
        ({"initial": {"m": 1}}, "initial names 'm', which is not in the space: n"),
    ],
)
def test_minimizer_names_what_does_not_fit(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        minimizer(LINE, **wrong)
