"""The table of short searches is the one that the kept file gives; its searches find what is easy to find."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import short_searches as bench

from asng import CategoricalFamily
from asng.optimizer import asng_init, asng_update

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_choices_are_found_with_little_noise(noise):
    modes, largest = bench.search(bench.CELLS, bench.noisy_choices(1.0, noise), 8000, 8, 1.0, 0, runs=3)
    assert bench.share_wrong(bench.CELLS, modes).tolist() == [0.0] * 3
    assert (largest > 0.9).all()


def test_the_toy_problem_learns_weights_and_choices():
    losses = bench.toy_losses(0.05, runs=3, seed=0)
    modes, _ = bench.search([5] * 30, losses, 6000, 2, 1.0, 0, runs=3)
    assert bench.share_wrong([5] * 30, modes).tolist() == [0.0] * 3


@pytest.mark.parametrize(("delta_init", "largest"), [(0.1, 0.33), (1.0, 0.54), (10.0, 0.79)])
def test_on_noise_the_squares_of_the_steps_add_up_to_what_the_page_says(delta_init, largest):
    family, rng, runs = CategoricalFamily(bench.CELLS), np.random.default_rng(0), 8
    state, total = asng_init(family, np.tile(family.initial(), (runs, 1)), delta_init), 0.0
    for step in range(4000):
        delta = float(np.mean(delta_init / state.divisor))
        total += delta**2
        if step in (1000, 3000):
            assert delta == pytest.approx(delta_init / (1 + step * delta_init / (3 * 140**0.5)), rel=0.1)
        c = family.sample(state.theta, 2, rng)
        state = asng_update(family, state, c, rng.standard_normal((runs, 2)), 1.5, delta_init, math.inf)
    assert total == pytest.approx(3 * 140**0.5 * delta_init, rel=0.2)
    starts = np.cumsum([0, *bench.CELLS[:-1]])
    assert np.maximum.reduceat(state.theta, starts, -1).mean() == pytest.approx(largest, abs=0.02)


def test_rows_without_a_right_answer_do_not_count():
    row = {setting: [0.5, 0.01] for setting in bench.SETTINGS}
    rows = [row | {"problem": "noise 3", "8 candidates": [0.4, 0.01]}, row | {"problem": "nothing", "defaults": [9, 0]}]
    assert ", of 1 rows with a right answer: " in bench.count_differences(rows)
    assert bench.count_differences(rows).endswith("8 candidates is better in 1 and worse in 0.")


def test_the_page_has_the_table_of_the_file(capsys, monkeypatch):
    folder, page = ROOT / "results" / "short_searches", (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["short_searches.py", "--draw", str(folder)])
    bench.main()
    table, _, summary = capsys.readouterr().out.strip().partition("\n\n")
    assert table in page
    for counts in ("of 27 rows", "delta_init 0.1 is better in 14 and worse in 1,", "10 is better in 0 and worse in 13"):
        assert counts in summary
    assert "4 candidates is better in 13 and worse in 3, 8 candidates is better in 14 and worse in 5." in summary
    result = json.loads((folder / "short_searches.json").read_text(encoding="utf-8"))
    assert (result["quick"], result["runs"], result["seed"]) == (False, 100, 0)
