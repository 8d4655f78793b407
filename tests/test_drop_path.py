"""The tables of images that dropped paths cut off, beside the losses of kept trainings."""

import math
import shutil

import drop_path as bench
import pytest

from asng.experiments.cifar10.drop_path import measure_cut_off
from asng.experiments.cifar10.space import random_values
from asng.experiments.cifar10.task import Cifar10RetrainSettings
from asng.runs import SUMMARY


def test_the_page_has_what_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["drop_path.py"])
    bench.main()
    *tables, random = capsys.readouterr().out.strip().split("\n\n")
    page = (bench.FOUND.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(tables) == 2  # of all trainings, and of the one that loses many images
    assert all(table in page for table in tables)
    assert random.startswith("Images cut off at the end, 2,000 random architectures (seeds from 0): more than 1 % in ")


def test_trainings_of_a_folder_are_shown_if_they_are_finished(tmp_path):
    for name in ("found1", "random3"):
        shutil.copytree(bench.TRAININGS / name, tmp_path / name)
    (tmp_path / "found1" / SUMMARY).unlink()
    _, _, *rows = bench.show_trainings(bench.list_trainings(tmp_path)).splitlines()
    assert rows == ["| random3 | 0.0 % | 1.9 % | 0.019 | 0.518 | 6.36 % |"]


@pytest.mark.parametrize("epoch", [1, 50, 100])
def test_an_epoch_is_measured_with_the_paths_that_it_drops(epoch):
    settings = Cifar10RetrainSettings(epochs=100)
    dropped = settings.drop_path * settings.fraction_done(625 * epoch - 1, 625)
    expected = measure_cut_off(random_values(4), settings.cells, dropped)
    cut_off, least = bench.measure_epoch(bench.TRAININGS / "random4", epoch)
    assert cut_off == pytest.approx(expected)
    assert least == pytest.approx((expected.output + settings.auxiliary * expected.auxiliary) * math.log(10))


def test_no_epoch_of_a_training_has_a_lower_loss_than_the_least():
    for path in bench.list_trainings(bench.TRAININGS):
        records = bench.read_epochs(path)[9::10]
        assert len(records) == 10
        assert all(record["train_loss"] > bench.measure_epoch(path, record["epoch"])[1] for record in records)
