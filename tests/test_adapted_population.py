"""The table of the adapted population is the one that the kept files give, and is drawn from what a run wrote."""

from pathlib import Path

import adapted_population as bench
import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "adapted_population"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_files():
    assert bench.show(bench.read_rows(KEPT)) in PAGE


def test_the_page_has_the_medians_of_the_longer_runs():
    rows = {row["method"]: row["runs"] for row in bench.read_rows(KEPT / "longer")}
    adapted, constant = (
        sorted(run["iterations"] for run in rows[method])[1]
        for method in ("lambda adapted, delta = 1", "delta adapted, lambda = 8")
    )
    assert f"after medians of {adapted:,} and {constant:,} iterations" in " ".join(PAGE.split())
    assert {len(runs) for runs in rows.values()} == {3}
    assert [name for name, runs in rows.items() if any(run["draws"] is None for run in runs)] == [
        "delta adapted, lambda = 32"
    ]


def test_medians_are_those_of_successful_runs():
    runs = [{"draws": 40, "iterations": 10, "largest": 2}, {"draws": None, "iterations": 99, "largest": 6}]
    shown = bench.show([{"lr": 0.05, "method": "some", "runs": runs}, {"lr": 0.05, "method": "no", "runs": runs[1:]}])
    assert shown.splitlines()[2:] == [
        "| 0.05 | some | 1 of 2 | 40 | 80 | 10 | 4 |",
        "| 0.05 | no | 0 of 1 |  |  |  | 6 |",
    ]


def test_a_run_adds_the_rows_that_its_folder_lacks(tmp_path, monkeypatch):
    bench.run(tmp_path, runs=2, iterations=5, lrs=[0.05])
    first = bench.read_rows(tmp_path)
    assert [row["method"] for row in first] == list(bench.METHODS)
    assert [run["iterations"] for run in first[0]["runs"]] == [5, 5]  # all draws are used, without success
    bench.run(tmp_path, runs=2, iterations=5, lrs=[0.05, 0.0005])
    assert [row["lr"] for row in bench.read_rows(tmp_path)] == [0.05] * len(first) + [0.0005] * len(first)
    assert bench.read_rows(tmp_path)[: len(first)] == first
    monkeypatch.setattr(bench, "simulate", pytest.fail)
    bench.run(tmp_path, runs=2, iterations=5, lrs=[0.05])


def test_a_folder_without_rows_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not a run: it has no"):
        bench.read_rows(tmp_path)
