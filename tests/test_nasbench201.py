"""The benchmark on NAS-Bench-201, on a small table of the same format: 3 edges with 3 operations each."""

import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "benchmarks"

import nasbench201 as bench  # noqa: E402
import nasbench201_report as report  # noqa: E402
import searchers  # noqa: E402

CODES = np.array(list(product(range(3), repeat=3)))
RESULTS = FOLDER.parent / "results" / "nasbench201"


@pytest.fixture
def data(tmp_path):
    """A file of 27 architectures in another order, every third of them trained twice instead of three times."""
    rng = np.random.default_rng(0)
    code = rng.permutation(CODES)
    val = (60 + 5 * code.sum(1)[:, None] + rng.normal(0, 2, (27, 3))).round(1)  # with ties
    val[::3, 2] = np.nan
    path = tmp_path / "nasbench201" / "cifar10.npz"
    path.parent.mkdir()
    np.savez(path, code=code, val=val, test=val[:, 0] + rng.normal(0, 1, 27))
    return path


def expected_regret(table, n):
    """Of the best of n random draws, exactly: each training of an architecture is one outcome with its probability."""
    outcomes = [
        (value, table.test.max() - table.test[code], 1 / table.test.size / np.isfinite(table.valid[code]).sum())
        for code in np.ndindex(table.test.shape)
        for value in table.valid[code]
        if np.isfinite(value)
    ]
    values, regrets, shares = np.array(outcomes).T
    total = 0.0
    for value in np.unique(values):
        same, below = values == value, shares[values < value].sum()
        highest = (below + shares[same].sum()) ** n - below**n  # the probability that this is the best value drawn
        total += highest * np.average(regrets[same], weights=shares[same])
    return total


def test_table_is_indexed_by_operations(data):
    table = bench.load_table(data)
    with np.load(data) as file:
        code, val, test = file["code"], file["val"], file["test"]
    for i in range(27):
        assert table.test[tuple(code[i])] == test[i]
        trainings = table.trainings[tuple(code[i])]
        assert trainings == (2 if i % 3 == 0 else 3)
        assert table.valid[tuple(code[i])][:trainings].tolist() == sorted(val[i][:trainings])


@pytest.mark.parametrize("n", [1, 3, 10])
def test_regret_of_random_search_is_the_exact_expectation(data, n):
    rows = [bench.search(data, n, False, ("random", seed)) for seed in range(2000)]
    regrets = report.curves(rows)["random"][:, -1]
    assert abs(regrets.mean() - expected_regret(bench.load_table(data), n)) < 4 * report.standard_error(regrets)


def test_noiseless_evaluations_lead_to_the_best_mean(data):
    row = bench.search(data, 400, True, ("random", 0))
    assert row["distinct"][-1] == 27
    assert row["best"]["valid"][-1] == 0


@pytest.mark.parametrize("population", [1, 3, 10])
def test_parents_are_the_best_of_the_last_p_architectures(population):
    """With accuracies that fall, the best of those alive is the oldest; it is in every tournament as large as this."""
    searcher = searchers.evolve((5,) * 6, 0, population=population, sample=300)
    asked = [next(searcher)[0]]
    asked += [searcher.send(-float(n))[0] for n in range(200)]
    differences = [(np.array(a) != b).sum() for a, b in zip(asked[population:], asked, strict=False)]
    assert differences == [1] * (201 - population)


def test_tournaments_of_one_choose_parents_uniformly():
    searcher = searchers.evolve((50,) * 20, 0, population=4, sample=1)  # large, so that parents can be told apart
    asked = [next(searcher)[0]] + [searcher.send(float(n))[0] for n in range(4003)]
    ages = [age for n in range(4, 4004) for age in range(1, 5) if (np.array(asked[n]) != asked[n - age]).sum() == 1]
    assert np.abs(np.bincount(ages)[1:] - 1000).max() < 5 * np.sqrt(750)


def test_mutations_reach_every_other_operation_alike():
    rng = np.random.default_rng(0)
    children = [searchers.mutate((0, 1, 2), (3, 3, 3), rng) for _ in range(6000)]
    found, counts = np.unique(children, axis=0, return_counts=True)
    assert len(found) == 6
    assert ((found != (0, 1, 2)).sum(1) == 1).all()
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_mode_is_the_one_after_the_last_full_update(data):
    row = bench.search(data, 200, True, ("ASNG 15", 1))
    at, table = bench.checkpoints(200), bench.load_table(data)
    first = round(float(table.test.max() - table.test[0, 0, 0]), 4)  # the mode of a uniform distribution
    assert row["mode"]["test"][0] == first
    assert at[:2] == [10, 15]
    assert row["mode"]["test"][1] != first
    assert row["mode"]["valid"][-1] < row["mode"]["valid"][0]
    assert "mode" not in bench.search(data, 3, True, ("random", 0))


@pytest.mark.parametrize("name", ["ASNG 2", "ASNG 15", "evolution 5/3", "CatCMAwM", "TPE"])
def test_methods_find_the_best_of_27_architectures(data, name):
    library = {"CatCMAwM": "cmaes", "TPE": "optuna"}.get(name)
    if library:
        pytest.importorskip(library)
    rows = [bench.search(data, 100, True, (name, seed)) for seed in range(5)]
    assert np.median(report.curves(rows, "valid")[name][:, -1]) == 0


def test_catcmawm_has_its_default_population_size():
    cmaes = pytest.importorskip("cmaes")
    for variables in (1, 3, 6, 20):
        assert cmaes.CatCMAwM(c_space=[5] * variables).population_size == searchers.default_size((5,) * variables)


def test_interrupted_run_continues_to_the_same_rows(data, tmp_path):
    methods = ["random", "ASNG 2", "evolution 5/3"]
    run = partial(bench.run, data, methods=methods, seeds=range(3), budget=20, workers=1)
    whole = run(out=tmp_path / "whole")

    def interrupt(fraction, left):
        if left <= 5:  # of 9
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "parts", progress=interrupt)
    lines = tmp_path / "parts" / "results.jsonl"
    assert 0 < len(lines.read_text().splitlines()) < 9
    with lines.open("a") as file:
        file.write('{"method": "random", "se')  # torn by a crash
    parts = run(out=tmp_path / "parts")

    def key(row):
        return row["method"], row["seed"]

    assert sorted(parts, key=key) == sorted(whole, key=key)
    assert len({key(row) for row in parts}) == len(parts) == 9


def test_other_data_does_not_continue_a_run(data, tmp_path):
    bench.run(data, tmp_path / "out", ["random"], range(1), budget=5, workers=1)
    with np.load(data) as file:
        arrays = dict(file)
    other = tmp_path / "other.npz"
    np.savez(other, **arrays | {"test": arrays["test"] + 1})
    with pytest.raises(ValueError, match="another configuration"):
        bench.run(other, tmp_path / "out", ["random"], range(1), budget=5, workers=1)


@pytest.mark.parametrize("name", ["ASGN 2", "ASNG", "ASNG two", "evolution 10", "evolution 0/3", "random 3", ""])
def test_unknown_methods_are_refused_by_name(name):
    with pytest.raises(ValueError, match="there is no method"):
        searchers.method_of(name)


def test_incomplete_tables_are_refused(tmp_path):
    val = np.full((27, 3), 50.0)
    for name, code, values in (
        ("twice", CODES[[0, *range(26)]], val),
        ("untrained", CODES, np.where(np.arange(27)[:, None] == 4, np.nan, val)),
    ):
        np.savez(tmp_path / f"{name}.npz", code=code, val=values, test=val[:, 0])
        with pytest.raises(ValueError, match=f"{name}.npz (does not hold every|has 1 arch)"):
            bench.load_table(tmp_path / f"{name}.npz")


def run_script(*arguments, **options):
    command = [sys.executable, str(FOLDER / "nasbench201.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.long
def test_missing_data_says_what_the_file_holds(tmp_path):
    done = run_script("--data", tmp_path, cwd=tmp_path)
    assert done.returncode == 1
    for part in (str(tmp_path / "nasbench201" / "cifar10.npz"), "ASNG_DATA", "val (n, 3)", "nas_201_api", "savez"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_results_are_shown_again_without_data(data, tmp_path):
    rows = bench.run(data, tmp_path / "out", ["random", "ASNG 2"], range(3), budget=30, workers=1)
    expected = bench.show_tables(rows, bench.checkpoints(30))
    data.unlink()
    done = run_script("--draw", tmp_path / "out", "--figure", tmp_path / "figure.png", cwd=tmp_path)
    assert done.stdout.strip() == expected, done.stderr
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_kept_results_hold_100_seeds_of_every_method():
    rows, _ = bench.read_results(RESULTS)
    assert sorted((row["method"], row["seed"]) for row in rows) == sorted(product(bench.METHODS, range(100)))


def test_tables_in_the_documentation_are_those_of_the_results():
    shown = (FOLDER.parent / "docs" / "results.md").read_text().splitlines()
    lines = bench.show_tables(*bench.read_results(RESULTS)).splitlines()
    assert [line for line in lines if line not in shown] == []
