"""The tables of the digits experiment: computed right, and those of docs/results.md are what the kept files give."""

from itertools import combinations
from pathlib import Path
from typing import Any

import digits_seeds as bench
import numpy as np
import pytest

from asng._untrusted import read_json_lines
from asng.cli.digits import describe_error, digits_table
from asng.experiments import digits

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "digits"
SETTINGS = digits.DigitsSettings(epochs=3, training_epochs=3)


def rows_of(seed: int, found: float) -> list[dict[str, Any]]:
    """All records of a seed whose networks have fixed accuracies."""
    times = {"seed": seed, "seconds": 2.0, "values": digits.HANDCRAFTED}
    rows = [{**times, "kind": "search", "probability": 0.1, "most_likely": digits.HANDCRAFTED, "certainty": 0.5}]
    tested = {"found": found, "handcrafted": 0.99, "random_first": 0.5, "random_best": 0.98}
    rows += [
        {**times, "kind": kind, "valid_accuracy": None, "accuracy": accuracy, "parameters": 10}
        for kind, accuracy in tested.items()
    ]
    valid = {"valid_accuracy": 0.6, "accuracy": 0.7, "parameters": 10}
    return [*rows, *({**times, "kind": "random", **valid} for _ in range(SETTINGS.num_random))]


def test_the_expected_best_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    pool = [{"valid": valid, "test": test} for valid, test in rng.random((6, 2))]
    for k in range(1, 7):
        best = [max(subset, key=lambda row: row["valid"])["test"] for subset in combinations(pool, k)]
        assert bench.expected_best(pool, k, by="valid", shown="test") == pytest.approx(np.mean(best))


def test_differences_are_paired_by_seed_and_costs_are_beside_them():
    shown = bench.show_comparison(SETTINGS, [*rows_of(0, 0.99), *rows_of(1, 0.97), *rows_of(2, 0.98)])
    assert "| found by the search | 98.00 % | 0.58 | 1.00 | 97.00 to 99.00 | 10 | 54 | 2 |" in shown
    assert "| best of 2 random ones, by validation | 98.00 % | 0.00 |" in shown
    assert (
        "best of 2 random ones, by validation: +0.00 ± 0.58 points (-1.00 to +1.00); 1 seeds higher, 1 equal, 1 lower"
        in shown
    )


def test_the_table_of_the_command_has_standard_errors_of_several_seeds_alone():
    one = digits_table(digits.summarize(SETTINGS, rows_of(0, 0.99)))
    assert [column.header for column in one.columns] == [
        "architecture",
        "accuracy",
        "parameters",
        "gradients",
        "seconds",
    ]
    assert [next(iter(column.cells)) for column in one.columns] == ["found by the search", "99.00 %", "10", "54", "2"]
    several = digits_table(digits.summarize(SETTINGS, [*rows_of(0, 0.99), *rows_of(1, 0.97)]))
    assert several.columns[2].header == "± error"
    assert next(iter(several.columns[2].cells)) == "1.00"


def test_the_error_of_an_accuracy_is_the_spread_of_that_over_random_test_images():
    summary = digits.summarize(SETTINGS, rows_of(0, 0.99))
    mean = (0.99 + 0.99 + 0.5 + 0.98) / 4
    images, error, of_difference = digits.sampling_error(summary["accuracy"])
    tested = np.random.default_rng(0).binomial(images, mean, (2, 100_000)) / images
    assert images == 597
    assert error == pytest.approx(tested[0].std(), rel=0.02)
    assert of_difference == pytest.approx((tested[0] - tested[1]).std(), rel=0.02)
    shown = f"of an accuracy is {100 * error:.2f} points, that of a difference {100 * of_difference:.2f};"
    assert shown in describe_error(summary)


@pytest.mark.long
def test_searches_without_and_with_a_warm_up_are_added_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "LOOK", 1)
    monkeypatch.setattr(bench, "SCORED", (1, 3))
    digits.run(SETTINGS, tmp_path)
    bench.search_all(tmp_path, 1, None)
    kept = (tmp_path / "why" / "results.jsonl").read_text()
    bench.search_all(tmp_path, 1, None)
    assert (tmp_path / "why" / "results.jsonl").read_text() == kept
    plain, warm = read_json_lines(tmp_path / "why" / "results.jsonl", "")
    assert [look["certainty"] > 0.001 for look in plain["looks"]] == [True, True, True]
    assert [look["certainty"] > 0.001 for look in warm["looks"]] == [False, False, True]
    found = [row for row in read_json_lines(tmp_path / "results.jsonl", "") if row["kind"] == "found"]
    assert warm["found"]["values"] == found[0]["values"]
    assert warm["found"]["accuracies"][0] == found[0]["accuracy"]
    bench.show(tmp_path)
    assert "Warm-up 0%, 1 seeds" in capsys.readouterr().out


def test_the_page_has_the_tables_of_the_files(capsys):
    bench.show(KEPT)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "- found less"))]
    assert len(lines) > 20
    assert [line for line in lines if line not in page] == []
