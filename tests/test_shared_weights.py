"""The benchmark of shared weights, on a release of a few images of noise."""

import numpy as np
import pytest
import shared_weights as bench
import torch

from asng.experiments._image_runs import search
from asng.experiments.cifar10 import data, space
from asng.experiments.cifar10.task import Cifar10, Cifar10SearchSettings
from asng.runs import Run
from tests.helpers.small_cifar10 import random_files, release_of, write

pytestmark = pytest.mark.slow


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A search of one step, and the size of trainings alone."""
    files = random_files(16)
    write(tmp_path / data.FOLDER, files)
    monkeypatch.setattr(data, "RELEASE", release_of(files))
    settings = Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch_size=4, num_train_images=16, test=False)
    search(Cifar10(*data.load_cifar10(tmp_path, torch.device("cpu"))), settings, tmp_path / "run")
    yield tmp_path / "run", bench.Size(tmp_path, "cpu", epochs=1, channels=2, cells=3, max_images=80)
    bench.load_task.cache_clear()
    bench.load_search.cache_clear()


def rows_of(shared, alone):
    ways = dict.fromkeys(bench.WAYS)
    return [
        {"seed": n, **dict.fromkeys(ways, a), "alone": b, "parameters": 10 * n}
        for n, (a, b) in enumerate(zip(shared, alone, strict=True))
    ]


def test_a_row_has_all_accuracies_of_an_architecture_of_its_seed(found):
    folder, size = found
    row = bench.measure_shared(folder, size, 3) | bench.measure_alone(size, 3)
    assert row["seed"] == 3
    assert all(0 <= row[name] <= 1 for name in (*bench.WAYS, "alone"))
    assert row["parameters"] == space.num_parameters(space.random_values(3), 2, 3)


def test_the_same_architecture_gets_the_same_rows(found):
    folder, size = found
    assert bench.measure_alone(size, 1) == bench.measure_alone(size, 1)
    assert bench.measure_shared(folder, size, 1) == bench.measure_shared(folder, size, 1)


def test_equal_orders_correlate_fully_and_opposite_ones_negatively():
    values = [0.1, 0.4, 0.2, 0.9, 0.6]
    assert {name: r[0] for name, r in bench.correlate(values, [v**2 for v in values]).items()} == {
        "Spearman": 1.0,
        "Kendall": 1.0,
    }
    assert bench.correlate(values, [-v for v in values])["Kendall"] == pytest.approx((-1, -1, -1))


def test_equal_accuracies_have_no_correlation():
    assert all(np.isnan(r).all() for r in bench.correlate([0.1, 0.1, 0.1], [0.2, 0.3, 0.4]).values())


def test_the_interval_of_unrelated_numbers_holds_zero():
    value, low, high = bench.correlate([1, 2, 3, 4, 5, 6, 7, 8], [3, 7, 1, 8, 4, 2, 6, 5])["Spearman"]
    assert low < 0 < high
    assert low < value < high


def test_the_table_shows_each_way_and_the_spread_of_trainings_alone():
    table = bench.show_table(rows_of([0.1, 0.2, 0.3, 0.5], [0.4, 0.5, 0.6, 0.7]))
    assert table.startswith("4 architectures; trained alone: 55.0 % (40.0 to 70.0).")
    assert all(f"| {text} | 27.5 % (10.0 to 50.0) | 1.00 [1.00, 1.00] |" in table for text in bench.WAYS.values())


def test_one_figure_shows_all_searches(tmp_path):
    bench.draw({"a": rows_of([0.1, 0.2], [0.4, 0.5]), "b": rows_of([0.3, 0.2], [0.4, 0.5])}, tmp_path)
    assert all(f"{name}: test accuracy" in (tmp_path / "shared-weights.svg").read_text() for name in "ab")
    assert (tmp_path / "shared-weights.png").stat().st_size > 1000


def test_rows_of_both_kinds_meet_by_their_seeds(tmp_path, capsys):
    for name, rows in {
        "alone": rows_of([0] * 4, [0.4, 0.5, 0.6, 0.7]),
        "found": rows_of([0.1, 0.2, 0.3], [0] * 3),
    }.items():
        kept = ("alone", "parameters") if name == "alone" else bench.WAYS
        with Run(tmp_path / name, {"after_epoch": 7}) as run:
            for row in reversed(rows):
                run.append({key: row[key] for key in ("seed", *kept)})
    bench.show(tmp_path, tmp_path / "figures")
    assert (tmp_path / "figures/shared-weights.png").exists()
    assert "found, after epoch 7: 3 architectures; trained alone: 50.0 % (40.0 to 60.0)." in capsys.readouterr().out


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"alone holds no results\.jsonl"):
        bench.show(tmp_path, tmp_path)
